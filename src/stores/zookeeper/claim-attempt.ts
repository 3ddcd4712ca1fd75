import { setTimeout as sleep } from "node:timers/promises";
import {
  type Claim,
  type ClaimAnswer,
  type LostAnswer,
  MOST_WAITERS,
  modeOf,
} from "../../core/store.js";
import { LOST } from "../shared/lost.js";
import type { PendingClaim } from "../shared/sessions/pending-claims.js";
import { describeClaim, describeFirstHolder } from "./claim-reads.js";
import type { MultiPart } from "./client/multi.js";
import type { ZooKeeperContext } from "./context.js";
import { isCode, isUnanswered } from "./errors.js";
import type { Link } from "./link.js";
import { deleteNode } from "./nodes.js";
import type { Queue } from "./queue.js";
import { prepareRoot } from "./root.js";
import type { ZooKeeperClaim } from "./session-port.js";
import type { Written } from "./turn-requests.js";

const ATTEMPTS = 5;
/** A resize takes a few round trips, and so does the withdrawal of a claim that is refused. */
const PAUSE_MS = 20;
const PAUSES = 50;

/** The claim's node and the name's queue, read after the node was created. */
interface Standing {
  readonly token: bigint;
  readonly queue: Queue;
}

/**
 * One claim on one name under one session. It creates its node first, and then reads the queue: the claims before
 * it are known for good, because no other can come in between.
 */
export class ClaimAttempt {
  readonly #context: ZooKeeperContext;
  readonly #pending: PendingClaim;
  readonly #claim: Claim;
  #own: ZooKeeperClaim;
  readonly #link: Link;
  readonly #name: string;
  readonly #key: string;
  /** How often this claim has waited for one with another limit. */
  #pauses = 0;

  constructor(context: ZooKeeperContext, pending: PendingClaim, own: ZooKeeperClaim) {
    this.#context = context;
    this.#pending = pending;
    this.#claim = pending.claim;
    this.#own = own;
    this.#link = own.session.id;
    this.#name = own.name;
    this.#key = context.key(own);
  }

  async run(): Promise<ClaimAnswer> {
    // Only a request that was sent before can have left a node.
    const isRepeated =
      this.#pending.request.seq > 1 ||
      this.#own.state !== "requested" ||
      this.#context.revoked.has(this.#claim.grantId);
    let found = isRepeated ? await this.#find() : null;
    if (found === null) await this.#waitInLine();
    for (let attempt = 1; found === null; attempt++) {
      if (this.#isGivenUp()) return LOST;
      try {
        found = await this.#create();
      } catch (error) {
        if (attempt === ATTEMPTS || !isUnanswered(error)) throw error;
        // The reply was lost: the node may be there.
        found = await this.#find();
      }
    }
    if (this.#isGivenUp()) return this.#withdraw("kind" in found ? found : LOST);
    return "kind" in found ? this.#lose(found) : this.#answer(found);
  }

  async #waitInLine(): Promise<void> {
    const { claims, containers } = this.#context;
    const { earlier } = this.#pending;
    const { permits, limit } = this.#claim;
    // Requests on one connection are executed in their order, unless one has to be sent again. Nothing is gained by
    // sending exclusive claims together, as at most one of them is granted.
    const keepsOrder = permits < limit && containers.has(this.#name);
    if (earlier !== null && !keepsOrder) await claims.waitInLine([this.#own], earlier);
  }

  async #answer({ token, queue }: Standing): Promise<ClaimAnswer> {
    const { grantId, queue: mayWait } = this.#claim;
    const name = this.#name;
    if (queue.get(grantId) === undefined) return this.#lose(LOST);
    // A claim that was here before keeps its place, also after a resize.
    const isNew = this.#own.state === "requested";
    // A claim that may wait gets here, too: the resize decides whether its limit is the right one.
    if (isNew && queue.isBarred(grantId)) return this.#answerAfterResize(token);
    const other = isNew ? queue.claimOfOtherLimit(grantId) : null;
    if (other !== null) {
      // The first claim has this one's limit, so the other is refused: its node goes, unless its client is dead.
      const isRefused = queue.limit === queue.get(grantId)?.limit;
      if (isRefused && this.#pauses++ < PAUSES) return this.#lookAgain(token, PAUSE_MS);
      const described = await describeClaim(this.#link, name, other.node);
      if (described === null) return this.#lookAgain(token);
      return this.#withdraw({ kind: "mismatch", name, limit: other.limit });
    }
    if (queue.holds(grantId)) return this.#grant(queue, token);
    const { ahead } = queue.position(grantId);
    if (isNew && mayWait && ahead >= MOST_WAITERS) {
      return this.#withdraw({ kind: "full", name, waiting: ahead });
    }
    if (isNew && !mayWait) {
      if (!(await this.#describeHolder(queue))) return this.#lookAgain(token);
      return this.#withdraw({ kind: "busy", name, position: queue.position(grantId) });
    }
    return this.#wait(token);
  }

  /** The claim in the way of this one was withdrawn, or is about to be, so it is no reason to reply `busy`. */
  async #lookAgain(token: bigint, pauseMs = 0): Promise<ClaimAnswer> {
    if (pauseMs > 0) await sleep(pauseMs);
    const queue = await this.#link.watches.read(this.#name);
    return this.#isGivenUp() ? this.#withdraw(LOST) : this.#answer({ token, queue });
  }

  async #answerAfterResize(token: bigint): Promise<ClaimAnswer> {
    const { watches } = this.#link;
    const { grantId, queue: mayWait } = this.#claim;
    let queue = await watches.read(this.#name);
    for (let pause = 0; pause < PAUSES && queue.isBarred(grantId); pause++) {
      await sleep(PAUSE_MS);
      queue = await watches.read(this.#name);
    }
    if (this.#isGivenUp()) return this.#withdraw(LOST);
    if (!queue.isBarred(grantId)) return this.#answer({ token, queue });
    // The client that resizes is gone, and its barrier ends with its session.
    const position = queue.position(grantId);
    return this.#withdraw(mayWait ? LOST : { kind: "busy", name: this.#name, position });
  }

  /** Takes the ticket: watches the name, and looks once more, because the holder may have gone meanwhile. */
  async #wait(token: bigint): Promise<ClaimAnswer> {
    const { claims } = this.#context;
    const { watches } = this.#link;
    const { grantId } = this.#claim;
    const queue = await watches.addAndRead(this.#own);
    if (this.#isGivenUp()) return this.#withdraw(LOST);
    if (queue.holds(grantId)) return this.#grant(queue, token);
    if (queue.get(grantId) === undefined) return this.#lose(LOST);
    await this.#describeHolder(queue);
    if (this.#isGivenUp()) return this.#withdraw(LOST);
    claims.markQueued(this.#own, token);
    // Events may have made it the holder while the label was read.
    queueMicrotask(() => watches.changed(this.#name));
    return { kind: "queued", position: queue.position(grantId) };
  }

  async #grant(queue: Queue, token: bigint): Promise<ClaimAnswer> {
    const { claims } = this.#context;
    const { seq, requestedAtMs } = this.#pending.request;
    if (!(await this.#context.complete(this.#own, queue, token))) return this.#withdraw(LOST);
    // A claim that was held before counts from this request on.
    claims.renew(this.#own, seq, requestedAtMs);
    return { kind: "granted", grants: [claims.grantOf(this.#own, false)] };
  }

  /** Creates the node, and reads the name after it on the same connection, unless a watch knows the whole queue. */
  async #create(): Promise<Standing> {
    const { clock, layout, nodes } = this.#context;
    const { watches } = this.#link;
    const { holder, permits, limit, grantId } = this.#claim;
    const path = layout.claim(this.#name, { permits, limit, grantId }, modeOf({ permits, limit }));
    const { ttlMs } = this.#own.session;
    const data = JSON.stringify({ holder, ttlMs, atMs: clock.wallMs() });
    const created = this.#createNode(path, data);
    const known = watches.completeQueue(this.#name);
    const read = known === null ? watches.readBehind(this.#name, this.#claim) : null;
    read?.catch(() => {});
    const { path: node, zxid: token } = await created;
    nodes.add(this.#key, node, this.#link, token);
    // The first read of a new name found no container, or the claim is not the first one.
    let queue = (await read) ?? watches.completeQueue(this.#name);
    const isRead = queue !== null && node.endsWith(`/${queue.get(grantId)?.node}`);
    if (queue === null || !isRead) queue = await watches.read(this.#name);
    return { token, queue };
  }

  async #createNode(path: string, data: string): Promise<Written> {
    const { containers } = this.#context;
    const name = this.#name;
    const node = { op: "create", path, mode: "ephemeral-sequential", data } as const;
    for (let attempt = 1; ; attempt++) {
      const hasContainer = containers.has(name);
      try {
        const parts = hasContainer ? [node] : [this.#container(), node];
        const written = await this.#link.requests.create(name, parts);
        containers.add(name);
        return written;
      } catch (error) {
        // Another client has made the container, or the server has removed it since it was empty.
        if (isCode(error, "NODE_EXISTS")) containers.add(this.#name);
        else if (isCode(error, "NO_NODE")) containers.delete(this.#name);
        else throw error;
        if (attempt === ATTEMPTS) throw error;
        // The parent of all containers is missing: somebody has deleted it.
        const isUprooted = isCode(error, "NO_NODE") && !hasContainer;
        if (isUprooted) await prepareRoot(this.#link.client, this.#context.layout);
      }
    }
  }

  #container(): MultiPart {
    return { op: "create", path: this.#context.layout.name(this.#name), mode: "container" };
  }

  /** The node of an earlier request under this id, looked for behind a proof, so that it can't appear later. */
  async #find(): Promise<Standing | LostAnswer | null> {
    const { nodes, layout, claims } = this.#context;
    const { client, watches } = this.#link;
    const { grantId } = this.#claim;
    await this.#own.session.prove();
    if (!claims.has(this.#own)) {
      const wasAnswered = this.#own.state !== "requested";
      return wasAnswered ? this.#context.whyLost(this.#name, grantId) : LOST;
    }
    const queue = await watches.read(this.#name);
    const found = queue.get(grantId);
    if (found === undefined) {
      const lost = await this.#context.whyLost(this.#name, grantId);
      if (lost.reason === "revoked" || this.#own.state === "held") return lost;
      this.#beginAgain();
      return null;
    }
    const described = await describeClaim(this.#link, this.#name, found.node);
    // A node under another session ends with that session.
    if (described?.owner !== client.sessionId) return LOST;
    nodes.add(this.#key, `${layout.name(this.#name)}/${found.node}`, this.#link, described.token);
    return { token: described.token, queue };
  }

  /** The ticket is gone, as after a resize: this claim is a new one. */
  #beginAgain(): void {
    const { claims } = this.#context;
    const { session, state } = this.#own;
    if (state === "requested" || this.#isGivenUp()) return;
    this.#context.drop(this.#own);
    const { grantId, driftFactor } = this.#claim;
    this.#own = claims.add(this.#name, grantId, session, this.#pending.request, driftFactor);
  }

  #describeHolder(queue: Queue): Promise<boolean> {
    return describeFirstHolder(this.#link, this.#name, queue);
  }

  /** Deletes the node, and drops the claim. */
  async #withdraw(answer: ClaimAnswer): Promise<ClaimAnswer> {
    const { claims, nodes } = this.#context;
    const there = nodes.get(this.#key, this.#link);
    if (claims.has(this.#own)) claims.drop(this.#own);
    nodes.forget(this.#key);
    if (there !== undefined) await deleteNode(this.#link, there.path);
    return answer;
  }

  #isGivenUp(): boolean {
    return !this.#context.claims.has(this.#own) || this.#own.session.isDead;
  }

  #lose(answer: LostAnswer): LostAnswer {
    this.#context.drop(this.#own);
    return answer;
  }
}
