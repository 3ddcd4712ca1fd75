import { InvalidArgumentError, UnsupportedError } from "../../core/errors.js";
import { type Runtime, systemRuntime } from "../../core/runtime.js";
import {
  type Claim,
  type ClaimAnswer,
  type HolderInfo,
  LOCK_LIMIT,
  type LostAnswer,
  MOST_WAITERS,
  modeOf,
  type NameInfo,
  type Position,
  type Push,
  type Release,
  type ReleaseAnswer,
  type RenewAnswer,
  type Renewal,
  type Store,
  type Traits,
} from "../../core/store.js";
import { checkOptions, orElse, parseDuration } from "../../core/validate.js";
import type { RedisClient } from "../redis/client.js";
import { slices } from "../shared/slices.js";
import { compareUtf8 } from "../shared/utf8.js";
import { Ballot, type BallotOutcome, majorityOf } from "./ballot.js";
import { unavailable } from "./errors.js";
import { Grants, LOST, timeoutOf, toGrant } from "./grants.js";
import { LocalQueue } from "./local-queue.js";
import { askAll, Member } from "./member.js";
import { Membership } from "./membership.js";
import { type Description, holdingsOf, toNameInfo } from "./names.js";
import type { NodeClaim, NodeRelease, QuorumNode } from "./node.js";
import { ProposedNumbers } from "./proposed-numbers.js";
import { RedisNode } from "./redis-node.js";
import { Releases } from "./releases.js";

/** Options of `quorumStore`. */
export interface QuorumStoreOptions {
  /**
   * The longest ttl of a lease, the same in all processes: a node that has lost data stays out of the vote for
   * so long. Default "1m".
   */
  maxTtl?: number | string;
  /** Closes the clients with the first `Locks` on the store that is closed. Default false: they are the caller's. */
  closeClients?: boolean;
}

/** The traits of a quorum of Redis servers. */
export const QUORUM_TRAITS: Traits = {
  store: "quorum of Redis",
  scope: "network",
  liveness: "lease",
  waiting: "polled",
  fair: false,
  minTtlMs: 100,
  survives: [
    "the crash of any client",
    "lost, late and repeated messages",
    "the failure of any minority of the nodes, with or without their data",
  ],
  grantsTwiceAfter: [
    "the clock of a node set ahead, or running fast",
    "lost data on a majority of the nodes within maxTtl",
    "eviction on a node, unless maxmemory-policy is noeviction",
  ],
  cannot: {
    shared:
      "a record on a minority of the nodes looks like a living reader, so no floor can be decided",
    permits: "a majority for each holder does not keep the sum of all holders below a limit",
    "many-names": "each name is a ballot by itself",
  },
};

const DEFAULT_MAX_TTL = "1m";
/** Shorter than this, a node would be back in the vote before people see it. Longer than a day makes no sense. */
export const MAX_TTL_LIMITS = { min: 1_000, max: 86_400_000 };
/** Ballots of one claim while nobody has a majority; then the core claims again. */
const MOST_BALLOTS = 6;
/** A pause after a ballot without a majority, and after a release that others wait for, in round trips. */
const PAUSE_ROUND_TRIPS = { least: 2, most: 5 };
const OTHER_TIMEOUT_MS = 2_000;
const NAMES_AT_ONCE = 100;

/** A claim that has no answer yet. */
interface OwnClaim {
  isGivenUp: boolean;
  /** Ends the pause between two ballots. */
  endPause: () => void;
  readonly answer: Promise<ClaimAnswer>;
}

/**
 * Locks on a majority of independent nodes. The nodes know nothing of each other: each keeps records of
 * ballots, and a ballot whose number a majority has recorded is a grant, with the number as its token. The
 * waiters of a process queue here, and the first of them claims.
 */
export class QuorumStore implements Store {
  readonly traits: Traits;
  readonly #members: readonly Member[];
  readonly #majority: number;
  readonly #runtime: Runtime;
  readonly #membership: Membership;
  readonly #releases: Releases;
  readonly #numbers: ProposedNumbers;
  readonly #grants: Grants;
  /** By grantId. */
  readonly #claiming = new Map<string, OwnClaim>();
  /** By name. */
  readonly #queues = new Map<string, LocalQueue>();
  /** By name: until when this process leaves it to those who wait elsewhere. */
  readonly #pausedUntilMs = new Map<string, number>();
  #isListening = false;
  #isClosed = false;

  constructor(
    nodes: readonly QuorumNode[],
    { maxTtlMs, runtime = systemRuntime() }: { maxTtlMs: number; runtime?: Runtime },
  ) {
    const { clock } = runtime;
    this.#runtime = runtime;
    this.traits = { ...QUORUM_TRAITS, maxTtlMs };
    this.#members = nodes.map((node) => new Member(node, clock));
    this.#majority = majorityOf(nodes.length);
    this.#membership = new Membership(this.#members, clock);
    this.#releases = new Releases(this.#members, clock);
    this.#numbers = new ProposedNumbers(this.#members, clock, maxTtlMs);
    this.#grants = new Grants(this.#members, clock, this.#releases);
  }

  /** Joins the nodes; claims do so first. Rejects if fewer than a majority answer. */
  setUp(): Promise<void> {
    return this.#membership.join();
  }

  claim(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    this.#open();
    const there = this.#claiming.get(claim.grantId);
    if (there !== undefined) return there.answer;
    const own: OwnClaim = {
      isGivenUp: false,
      endPause: () => {},
      answer: Promise.resolve()
        .then(() => this.#claim(claim, push, own))
        .finally(() => this.#claiming.delete(claim.grantId)),
    };
    this.#claiming.set(claim.grantId, own);
    return own.answer;
  }

  async renew(renewals: readonly Renewal[]): Promise<readonly RenewAnswer[]> {
    this.#open();
    const ofTickets = renewals.map((renewal) => this.#renewTicket(renewal));
    const ofGrants = await this.#grants.renew(renewals.filter((_, i) => ofTickets[i] === null));
    let next = 0;
    return ofTickets.map((answer) => answer ?? ofGrants[next++]!);
  }

  async release(releases: readonly Release[]): Promise<readonly ReleaseAnswer[]> {
    this.#open();
    return Promise.all(releases.map((release) => this.#release(release)));
  }

  async revoke(name: string, by: { holder: string; why: string }): Promise<readonly HolderInfo[]> {
    this.#open();
    const [descriptions] = await this.#describe([name]);
    const info = toNameInfo(name, this.#members.length, descriptions!);
    for (const { id, number, holder } of holdingsOf(descriptions!)) {
      const revocation = { name, id, number, holder, by: by.holder, why: by.why };
      await this.#askMajority((node) => node.revoke(revocation));
    }
    return info?.holders ?? [];
  }

  resize(): never {
    throw new UnsupportedError(`semaphores: ${this.traits.cannot.permits}`);
  }

  async inspect(name: string): Promise<NameInfo | null> {
    this.#open();
    const [descriptions] = await this.#describe([name]);
    return toNameInfo(name, this.#members.length, descriptions!);
  }

  async list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    this.#open();
    const found = await this.#askMajority((node) => node.names(prefix));
    const names = [...new Set(found.flatMap(({ answer }) => answer))]
      .filter((name) => name.startsWith(prefix))
      .sort(compareUtf8);
    const infos: NameInfo[] = [];
    for (const some of slices(names, NAMES_AT_ONCE)) {
      if (infos.length >= limit) break;
      for (const [i, descriptions] of (await this.#describe(some)).entries()) {
        const info = toNameInfo(some[i]!, this.#members.length, descriptions);
        if (info !== null && info.holders.length + (info.notes?.length ?? 0) > 0) infos.push(info);
      }
    }
    return infos.slice(0, limit);
  }

  async close(): Promise<void> {
    // Other Locks may share the store: their waiters are still notified.
    const isClaiming = [...this.#claiming.values()].some(({ isGivenUp }) => !isGivenUp);
    if (isClaiming || this.#waiting > 0) return;
    this.#isClosed = true;
    this.#isListening = false;
    this.#releases.close();
    for (const member of this.#members) member.close();
    for (const queue of this.#queues.values()) queue.close();
    await Promise.all(this.#members.map(({ node }) => node.close()));
  }

  /** Other Locks may go on with a store that was closed. */
  #open(): void {
    if (!this.#isClosed) return;
    this.#isClosed = false;
    for (const member of this.#members) member.open();
  }

  async #claim(claim: Claim, push: (push: Push) => void, own: OwnClaim): Promise<ClaimAnswer> {
    this.#refuse(claim);
    await this.#membership.join();
    const name = claim.names[0]!;
    if (this.#grants.has(name, claim.grantId)) return this.#claimAgain(name, claim);
    const revoked = this.#grants.whyRevoked(claim.grantId);
    if (revoked !== undefined) return revoked;
    if (!claim.queue) return this.#toClaimAnswer(claim, await this.#compete(claim, own));
    const queue = this.#queueOf(name);
    if (queue.size >= MOST_WAITERS && queue.find(claim.grantId) === undefined) {
      return { kind: "full", name, waiting: queue.size };
    }
    queue.join(claim, push);
    if (queue.aheadOf(claim.grantId) > 0) {
      if (queue.failure === null) return this.#queued(queue, claim.grantId);
      if (queue.hasFailedLately) throw queue.failure;
    }
    const outcome = await this.#compete(claim, own);
    queue.noteFailure(null);
    try {
      return this.#toClaimAnswer(claim, outcome, queue);
    } catch (error) {
      queue.noteFailure(error);
      throw error;
    }
  }

  /** Ballots, until one is decided, or somebody else has the name, or too many have found no majority. */
  async #compete(claim: Claim, own: OwnClaim): Promise<BallotOutcome> {
    // The lease counts from the claim: what is decided much later is of little use.
    const untilMs = this.#nowMs() + claim.ttlMs / 3;
    const longestPauseMs = timeoutOf(claim.ttlMs);
    const pausedForMs = (this.#pausedUntilMs.get(claim.names[0]!) ?? 0) - this.#nowMs();
    if (pausedForMs > 0) await this.#pause(Math.min(pausedForMs, longestPauseMs), own);
    for (let ballots = 1; ; ballots++) {
      if (own.isGivenUp) return { kind: "split" };
      const outcome = await this.#ballot(claim);
      const isLast = ballots >= MOST_BALLOTS || this.#nowMs() >= untilMs;
      if (outcome.kind !== "split" || isLast) return outcome;
      const pauseMs = this.#randomPauseMs() * 2 ** (ballots - 1);
      await this.#pause(Math.min(pauseMs, longestPauseMs), own);
    }
  }

  /** One ballot under a new id; if it is not decided, its records are released. */
  async #ballot(claim: Claim): Promise<BallotOutcome> {
    const { grantId, ttlMs, seq, atLeastMs, holder } = claim;
    const name = claim.names[0]!;
    const id = this.#runtime.random.grantId();
    const number = this.#numbers.next();
    // If others of this process wait too, the nodes note that, whoever gets the name now.
    const hasMoreWaiters = (this.#queues.get(name)?.size ?? 0) > 1;
    const register = hasMoreWaiters ? "always" : claim.queue ? "if-busy" : "never";
    const request: NodeClaim = { name, id, number, ttlMs, seq, atLeastMs, register, holder };
    const closedUntilMs = atLeastMs > 0 ? this.#nowMs() + atLeastMs : 0;
    const ballot = new Ballot(this.#members, request, timeoutOf(ttlMs));
    const outcome = await ballot.run();
    if (outcome.kind === "decided") {
      this.#grants.add({ name, grantId, id, token: outcome.number, holder, closedUntilMs, ttlMs });
    } else {
      const wakes = outcome.kind !== "busy";
      await this.#takeBack(ballot, { name, id, number: -1, unused: true, wakes }, ttlMs);
    }
    return outcome;
  }

  /** Resolves when the nodes that have recorded the ballot, and answer, have dropped it. */
  #takeBack(ballot: Ballot, release: NodeRelease, ttlMs: number): Promise<void> {
    const waitedFor = new Set(
      this.#members.flatMap(({ isSilent }, i) => (ballot.isRecordedBy(i) && !isSilent ? [i] : [])),
    );
    return new Promise((resolve) => {
      const limits = { timeoutMs: timeoutOf(ttlMs), keptMs: ttlMs };
      this.#releases.send(release, limits, (_answer, i) => {
        waitedFor.delete(i);
        if (waitedFor.size === 0) resolve();
      });
      if (waitedFor.size === 0) resolve();
    });
  }

  /** The answer to a claim has not arrived: a renewal finds the grant, and extends it. */
  async #claimAgain(name: string, { grantId, seq, ttlMs }: Claim): Promise<ClaimAnswer> {
    const [answer] = await this.#grants.renew([{ name, grantId, seq, ttlMs }]);
    if (answer!.kind === "granted") return { kind: "granted", grants: [answer!.grant] };
    if (answer!.kind === "unknown") throw answer!.cause;
    return answer as LostAnswer;
  }

  /**
   * Extends a ticket. Its waiter claims again if it is the first, and is pushed its grant: a ballot must not
   * hold up the renewals of leases in the same batch. Null: it is no ticket.
   */
  #renewTicket({ name, grantId, seq, ttlMs }: Renewal): RenewAnswer | null {
    const queue = this.#queues.get(name);
    const ticket = queue?.find(grantId);
    if (queue === undefined || ticket === undefined || this.#grants.has(name, grantId)) return null;
    const claim = { ...ticket.claim, seq, ttlMs };
    queue.join(claim, ticket.push);
    if (queue.aheadOf(grantId) === 0) {
      this.claim(claim, ticket.push).then(
        (answer) => {
          if (answer.kind === "granted") ticket.push({ kind: "granted", grant: answer.grants[0]! });
        },
        () => {},
      );
    }
    if (queue.failure !== null) return { kind: "unknown", cause: queue.failure };
    return this.#queued(queue, grantId);
  }

  async #release({ name, grantId, unused = false }: Release): Promise<ReleaseAnswer> {
    const failure = this.#leave(name, grantId);
    const claiming = this.#claiming.get(grantId);
    if (claiming !== undefined) {
      claiming.isGivenUp = true;
      claiming.endPause();
      await claiming.answer.catch(() => {});
      this.#leave(name, grantId);
    }
    if (!this.#grants.has(name, grantId)) {
      if (failure !== null) throw failure;
      return this.#grants.whyRevoked(grantId) ?? LOST;
    }
    const { answer, isAwaited } = await this.#grants.release(grantId, unused);
    if (isAwaited) this.#leaveToOthers(name);
    return answer;
  }

  /** Ends the wait of a waiter; returns why the nodes could not be asked, if that is so. */
  #leave(name: string, grantId: string): unknown {
    const queue = this.#queues.get(name);
    const place = queue?.aheadOf(grantId) ?? -1;
    if (queue === undefined || place === -1) return null;
    queue.leave(grantId);
    if (place === 0) queue.look();
    this.#dropIfEmpty(queue);
    return queue.failure;
  }

  #toClaimAnswer(claim: Claim, outcome: BallotOutcome, queue?: LocalQueue): ClaimAnswer {
    const { grantId, seq, ttlMs } = claim;
    if (outcome.kind === "decided") {
      queue?.leave(grantId);
      if (queue !== undefined) this.#dropIfEmpty(queue);
      return { kind: "granted", grants: [toGrant(outcome.number, seq, ttlMs)] };
    }
    if (outcome.kind === "unavailable") {
      throw unavailable(this.#members.length, outcome.failures);
    }
    const { holder, freeInMs } = outcome.kind === "busy" ? outcome : { holder: null, freeInMs: 0 };
    if (queue === undefined) {
      return { kind: "busy", name: claim.names[0]!, position: { ahead: 0, freeInMs, holder } };
    }
    queue.holder = holder;
    return this.#queued(queue, grantId);
  }

  #queued(queue: LocalQueue, grantId: string): { kind: "queued"; position: Position } {
    this.#listen();
    const ahead = Math.max(0, queue.aheadOf(grantId));
    return { kind: "queued", position: { ahead, freeInMs: 0, holder: queue.holder } };
  }

  /** Any node's messages will do. Waiters also poll, so a node that can't be listened to is no error. */
  #listen(): void {
    if (this.#isListening) return;
    this.#isListening = true;
    for (const [i, { node }] of this.#members.entries()) {
      const listening = node.listen({
        freed: (name) => this.#freed(name, i),
        missed: () => {
          for (const queue of this.#queues.values()) queue.look();
        },
        isNeeded: () => this.#waiting > 0,
      });
      listening.catch(() => {});
    }
  }

  #freed(name: string, index: number): void {
    const queue = this.#queues.get(name);
    if (queue?.first !== undefined) queue.woken(index, this.#majority);
    else this.#members[index]!.node.pass(name).catch(() => {});
  }

  /** Others wait for a name that this process has released: without a pause, it would always be faster. */
  #leaveToOthers(name: string): void {
    const nowMs = this.#nowMs();
    for (const [one, endMs] of this.#pausedUntilMs) {
      if (endMs > nowMs) break;
      this.#pausedUntilMs.delete(one);
    }
    this.#pausedUntilMs.delete(name);
    this.#pausedUntilMs.set(name, nowMs + this.#randomPauseMs());
  }

  #queueOf(name: string): LocalQueue {
    let queue = this.#queues.get(name);
    if (queue === undefined) {
      queue = new LocalQueue(name, this.#runtime.clock);
      this.#queues.set(name, queue);
    }
    return queue;
  }

  #dropIfEmpty(queue: LocalQueue): void {
    if (queue.size > 0) return;
    queue.close();
    this.#queues.delete(queue.name);
  }

  get #waiting(): number {
    let waiting = 0;
    for (const queue of this.#queues.values()) waiting += queue.size;
    return waiting;
  }

  async #describe(names: readonly string[]): Promise<Description[][]> {
    const answers = await this.#askMajority((node) => node.inspect(names));
    return names.map((_, i) => answers.map(({ where, answer }) => ({ where, info: answer[i]! })));
  }

  /** The answers of all nodes that answer; rejects if they are fewer than a majority. */
  async #askMajority<T>(
    send: (node: QuorumNode) => Promise<T>,
  ): Promise<{ where: string; answer: T }[]> {
    await this.#membership.join();
    // A node that was silent before is not waited for.
    const isEnough = (some: ReadonlyMap<number, T | Error>): boolean => {
      const good = [...some.values()].filter((answer) => !(answer instanceof Error)).length;
      const missing = this.#members.filter(({ isSilent }, i) => !some.has(i) && !isSilent).length;
      return good >= this.#majority && missing === 0;
    };
    const answers = await askAll(this.#members, OTHER_TIMEOUT_MS, send, isEnough);
    const good: { where: string; answer: T }[] = [];
    const failures: Error[] = [];
    for (const [i, answer] of answers) {
      if (answer instanceof Error) failures.push(answer);
      else good.push({ where: this.#members[i]!.node.where, answer });
    }
    if (good.length < this.#majority) throw unavailable(this.#members.length, failures);
    return good;
  }

  #refuse(claim: Claim): void {
    const { cannot, maxTtlMs } = this.traits;
    const { names, limit, ttlMs } = claim;
    if (limit !== LOCK_LIMIT) throw new UnsupportedError(`semaphores: ${cannot.permits}`);
    if (modeOf(claim) === "shared") throw new UnsupportedError(`shared leases: ${cannot.shared}`);
    if (names.length > 1) throw new UnsupportedError(`several names: ${cannot["many-names"]}`);
    if (ttlMs > maxTtlMs!) {
      throw new InvalidArgumentError(`a ttl of ${ttlMs} ms is above the maxTtl of ${maxTtlMs} ms`);
    }
  }

  #randomPauseMs(): number {
    const { least, most } = PAUSE_ROUND_TRIPS;
    const times = this.#members.map(({ roundTripMs }) => roundTripMs).sort((a, b) => a - b);
    return times[this.#majority - 1]! * (least + (most - least) * this.#runtime.random.unit());
  }

  #pause(ms: number, own: OwnClaim): Promise<void> {
    return new Promise((resolve) => {
      const timer = this.#runtime.clock.after(ms, resolve);
      timer.keepAlive(true);
      own.endPause = () => {
        timer.cancel();
        resolve();
      };
    });
  }

  #nowMs(): number {
    return this.#runtime.clock.elapsedMs();
  }
}

/**
 * Makes a store on an odd number of independent Redis servers, at least three, by clients of ioredis or
 * node-redis that you have built, one for each server. A lease is held by a majority of them. Throws
 * `InvalidArgumentError` if the clients or an option can't be used.
 *
 * @example
 * ```ts
 * import { createLocks } from "holdfast";
 * import { quorumStore } from "holdfast/stores/quorum";
 * import { Redis } from "ioredis";
 *
 * const clients = [7001, 7002, 7003].map((port) => new Redis({ host: "127.0.0.1", port }));
 * const locks = createLocks(quorumStore(clients), { ttl: "30s" });
 * await locks.withLock("order:123", async (lease) => console.log(lease.token));
 * await locks.close();
 * for (const client of clients) await client.quit();
 * ```
 */
export function quorumStore(
  clients: readonly RedisClient[],
  options: QuorumStoreOptions = {},
): QuorumStore {
  checkOptions(options, "the options of quorumStore", ["maxTtl", "closeClients"]);
  const count = Array.isArray(clients) ? clients.length : 0;
  checkNodeCount(count, "quorumStore() takes a list of clients");
  const twice = clients.find((client, i) => clients.indexOf(client) !== i);
  if (twice !== undefined) {
    throw new InvalidArgumentError(
      "quorumStore() got the same client twice: pass one for each server",
    );
  }
  const maxTtlMs = parseDuration(orElse(options.maxTtl, DEFAULT_MAX_TTL), "maxTtl", MAX_TTL_LIMITS);
  const closeClient = options.closeClients ?? false;
  const nodes = clients.map((client) => new RedisNode(client, { maxTtlMs, closeClient }));
  return new QuorumStore(nodes, { maxTtlMs });
}

/** With an even number, one more node may fail without a gain. */
export function checkNodeCount(count: number, what: string): void {
  if (count >= 3 && count % 2 === 1) return;
  throw new InvalidArgumentError(
    `${what}, an odd number of at least three independent servers; there are ${count}`,
  );
}
