import { setImmediate as turn } from "node:timers/promises";
import type { Clock } from "../../core/clock.js";
import { InvalidArgumentError, StoreUnavailableError } from "../../core/errors.js";
import { claimOf } from "../../core/held-lease.js";
import type { Lease } from "../../core/lease.js";
import { systemRuntime } from "../../core/runtime.js";
import {
  type Claim,
  type ClaimAnswer,
  type Grant,
  type HolderInfo,
  type LostAnswer,
  MOST_WAITERS,
  type NameInfo,
  type Push,
  type Release,
  type ReleaseAnswer,
  type RenewAnswer,
  type Renewal,
  type Store,
  type Traits,
} from "../../core/store.js";
import { checkOptions, checkText, orElse } from "../../core/validate.js";
import { Batches } from "./batches.js";
import { Closures } from "./closures.js";
import { createdAt, isEmpty, modifiedAt, unchangedSince } from "./compare.js";
import { type Asked, type Kept, KeptClaims } from "./kept.js";
import { Keys, PREFIX } from "./keys.js";
import { Moves } from "./moves.js";
import { becauseOf, fasterAgain, Names, OPS_AT_ONCE, TRIES } from "./names.js";
import { type Claimed, type Place, type Queue, readValue, written } from "./queue.js";
import { RevisionFell, refuseFallen } from "./revisions.js";
import { checkClient, type EtcdClient } from "./rpc/client.js";
import { Code, EtcdError } from "./rpc/errors.js";
import type { Compare, Op, OpAnswer, Txn } from "./rpc/messages.js";
import {
  found,
  isElsewhere,
  mayEnter,
  readsOf,
  type Seen,
  seenBy,
  type Where,
  whereIn,
} from "./seen.js";
import { type Proof, type Session, SessionDead } from "./session.js";
import { Sessions, secondsOf } from "./sessions.js";
import { type Turn, Turns } from "./turns.js";
import { ClusterTraits } from "./versions.js";
import { Waiting } from "./waiting.js";

export type { EtcdClient, EtcdClientOptions } from "./rpc/client.js";
export { openEtcdClient } from "./rpc/client.js";

export interface EtcdStoreOptions {
  /** Closes the client with the store. Default false: it is the caller's. */
  closeClient?: boolean;
  /** Before every key; `holdfast/` by default. */
  prefix?: string;
}

export const ETCD_TRAITS: Traits = {
  store: "etcd",
  scope: "network",
  liveness: "session",
  waiting: "pushed",
  fair: true,
  minTtlMs: 1_000,
  survives: [
    "the crash of any client",
    "lost, late and repeated messages",
    "the loss of any minority of the members, their leader included",
    "a restart of all members with their data",
    "jumps of the members' clocks",
  ],
  grantsTwiceAfter: [],
  // Four operations each, of 128.
  namesAtOnce: 30,
  cannot: {},
};

const NAMES_AT_ONCE = 50;
const KEYS_PER_TURN = 500;
/** As the core's own, if a claim does not tell. */
const DRIFT_FACTOR = 0.01;

/** Locks in etcd: a claim is a key under the session, the queue is the order of their creation. */
export class EtcdStore implements Store {
  readonly #traits: ClusterTraits;
  readonly #client: EtcdClient;
  readonly #closeClient: boolean;
  readonly #clock: Clock = systemRuntime().clock;
  readonly #keys: Keys;
  readonly #names: Names;
  readonly #sessions: Sessions;
  readonly #waiting: Waiting;
  readonly #closures: Closures;
  readonly #moves: Moves;
  readonly #batches: Batches;
  readonly #kept: KeptClaims;
  readonly #turns = new Turns();
  /** Claims that are not answered yet, by grantId. */
  readonly #claiming = new Map<string, Promise<ClaimAnswer>>();
  /** The largest that was asked for. */
  #driftFactor = DRIFT_FACTOR;

  /** `faults`: of this cluster, if they are known; they are asked for when the first session begins. */
  constructor(client: EtcdClient, options: EtcdStoreOptions = {}, faults?: readonly string[]) {
    checkClient(client, ', or use connect("etcd://…")');
    checkOptions(options, "the options of etcdStore", ["closeClient", "prefix"]);
    this.#traits = new ClusterTraits(client, ETCD_TRAITS, faults);
    this.#client = client;
    this.#closeClient = options.closeClient ?? false;
    this.#keys = new Keys(checkText(orElse(options.prefix, PREFIX), "prefix", 1, 255));
    this.#names = new Names(client, this.#keys);
    this.#batches = new Batches(client);
    this.#kept = new KeptClaims(this.#clock, this.#keys, {
      dropped: (kept) => this.#waiting.leave(kept),
      swept: (keys) => void this.#delete(keys).catch(() => {}),
    });
    this.#sessions = new Sessions(client, this.#clock, this.#keys, {
      isNeeded: (session) => !this.#kept.of(session).next().done,
      reconcile: (session) => this.#reconcile(session),
      another: () => this.#traits.update(),
    });
    this.#waiting = new Waiting(
      client,
      this.#keys,
      (kept, queue) => void this.#handOver(kept, queue),
    );
    this.#closures = new Closures(client, this.#clock, this.#keys);
    this.#moves = new Moves(client, this.#keys, this.#sessions, (ms) => this.#kept.sweepIn(ms));
  }

  /** `grantsTwiceAfter` follows what the cluster tells of its versions and members. */
  get traits(): Traits {
    return this.#traits.current;
  }

  claim(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    const askedAtMs = this.#clock.elapsedMs();
    const ask = { seq: claim.seq, askedAtMs, push };
    const { names, grantId } = claim;
    const under = this.#claiming.get(grantId);
    if (under !== undefined) {
      // Asked again before it is answered: that would only load a server that is slow already.
      for (const name of names) this.#kept.get(name, grantId)?.askAgain(ask);
      return under;
    }
    // Only who may wait has a place in the order.
    const turn = claim.queue && names.length === 1 ? this.#turns.begin(names[0]!) : null;
    const answer = this.#claimInSession(claim, ask, turn).finally(() => {
      this.#claiming.delete(grantId);
      turn?.end();
    });
    this.#claiming.set(grantId, answer);
    return answer;
  }

  async renew(renewals: readonly Renewal[]): Promise<readonly RenewAnswer[]> {
    const askedAtMs = this.#clock.elapsedMs();
    // One keepalive for all under a session, one read for all who wait for a name.
    const proofs = new Map<Session, Promise<Proof>>();
    const prove = (session: Session): Promise<Proof> => {
      const proof = proofs.get(session) ?? session.prove();
      proofs.set(session, proof);
      return proof;
    };
    const waited = renewals.filter(({ name, grantId }) => {
      const kept = this.#kept.get(name, grantId);
      return kept !== undefined && kept.state !== "held";
    });
    const read = this.#waiting.read([...new Set(waited.map(({ name }) => name))]);
    read.catch(() => {});
    return Promise.all(
      renewals.map((renewal) =>
        this.#renew(renewal, askedAtMs, prove, read).catch(
          (cause: unknown): RenewAnswer => ({ kind: "unknown", cause: explain(cause) }),
        ),
      ),
    );
  }

  async release(releases: readonly Release[]): Promise<readonly ReleaseAnswer[]> {
    const answers: ReleaseAnswer[] = [];
    for (let i = 0; i < releases.length; i += NAMES_AT_ONCE) {
      const some = releases.slice(i, i + NAMES_AT_ONCE);
      answers.push(...(await this.#release(some).catch(rethrow)));
    }
    return answers;
  }

  revoke(name: string, by: { holder: string; why: string }): Promise<readonly HolderInfo[]> {
    return this.#names.revoke(name, by).catch(rethrow);
  }

  resize(name: string, limit: number): Promise<number | null> {
    return this.#names.resize(name, limit).catch(rethrow);
  }

  inspect(name: string): Promise<NameInfo | null> {
    return this.#names.inspect(name).catch(rethrow);
  }

  list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    return this.#names.list(prefix, limit).catch(rethrow);
  }

  observe(name: string, changed: () => void): () => void {
    return this.#waiting.observe(name, changed);
  }

  async close(): Promise<void> {
    // Other Locks on the same store still have something.
    if (!this.#closeClient && !this.#kept.isEmpty) return;
    this.#kept.close();
    this.#closures.close();
    this.#waiting.close();
    await this.#sessions.close(this.#closeClient);
    if (this.#closeClient) await this.#client.close();
  }

  async #claimInSession(claim: Claim, ask: Asked, turn: Turn | null): Promise<ClaimAnswer> {
    for (let tries = 0; ; tries++) {
      const session = await this.#sessions.use(claim.ttlMs).catch(rethrow);
      try {
        return await this.#claim(claim, ask, session, turn);
      } catch (error) {
        const dead = await this.#dead(session, error);
        if (tries > 0 || dead === null) throw explain(error);
        this.#sessions.forget(dead);
      }
    }
  }

  async #claim(
    claim: Claim,
    asked: Asked,
    session: Session,
    turn: Turn | null,
  ): Promise<ClaimAnswer> {
    const { names, grantId, driftFactor = DRIFT_FACTOR } = claim;
    this.#driftFactor = Math.max(this.#driftFactor, driftFactor);
    if (names.some((name) => this.#kept.wasSwept(name, grantId))) {
      // Its deletion may still be on the way, and would take the new one with it: another id, please.
      return { kind: "lost", reason: "expired" };
    }
    const before = names.map((name) => askOf(this.#kept.get(name, grantId)));
    const all = names.map((name) => this.#kept.keep(name, grantId, session, asked));
    const earlier = turn?.earlier ?? null;
    // Of several exclusive claims at most one is granted: nothing is gained by asking together.
    if (earlier !== null && claim.permits === claim.limit) {
      await earlier;
      if (!this.#kept.has(all[0]!)) return this.#givenUp(all);
    }
    const closing = claim.atLeastMs > 0 ? await this.#closures.begin(claim.atLeastMs) : null;
    const answer = await this.#ask({ claim, all, closing, before, earlier }).catch(
      async (error) => {
        // The refusal says that nothing was claimed.
        if (error instanceof RevisionFell) await this.#delete(all.map((kept) => this.#key(kept)));
        throw error;
      },
    );
    // Of an unknown outcome it runs out by itself.
    if (closing !== null && !this.#closures.uses(closing)) {
      this.#client.leaseRevoke(closing).catch(() => {});
    }
    return answer;
  }

  /** The session that it failed for. A lease that is not found may be that of a closure, too. */
  async #dead(session: Session, error: unknown): Promise<Session | null> {
    if (error instanceof SessionDead) return error.session;
    if (!isLeaseGone(error)) return null;
    return session.prove().then(
      () => null,
      (why: unknown) => (why instanceof SessionDead ? session : null),
    );
  }

  async #ask(ask: Ask): Promise<ClaimAnswer> {
    const { claim, all } = ask;
    const full = this.#knownToBeFull(claim);
    // Nobody is there, as a rule: one round trip. So it is where others of this process wait already.
    let seen = full === null ? await this.#enterIf("empty", ask) : await this.#queue(ask, full);
    for (let tries = 0; tries < TRIES && !("kind" in seen); tries++) {
      if (all.some((kept) => !this.#kept.has(kept))) return this.#givenUp(all);
      const { queues } = seen;
      const elsewhere = all.filter((kept, i) => isElsewhere(queues[i]!.get(kept.grantId), kept));
      if (elsewhere.length > 0) {
        for (const kept of elsewhere) await this.#moves.bring(kept);
        seen = await this.#readAgain(all);
        continue;
      }
      const told = found(claim, all, seen);
      if (told !== null) {
        if (told.kind === "granted" || told.kind === "queued") await this.#extend(all);
        return told.kind === "granted" ? this.#claimed(all, seen, null) : this.#refused(ask, told);
      }
      if (!queues.every((queue) => mayEnter(claim, queue))) {
        seen = await this.#queue(ask, queues[0]!);
      } else if (all.length === 1 && ask.closing === null && queues[0]!.size > 0) {
        seen = await this.#join(ask, queues[0]!);
      } else seen = await this.#enterIf(seen, ask);
    }
    if ("kind" in seen) return seen;
    throw fasterAgain();
  }

  /** All of them, if nobody is there, or nobody has come since they were seen. */
  async #enterIf(since: "empty" | Seen, ask: Ask): Promise<ClaimAnswer | Seen> {
    const { claim, all, closing } = ask;
    const standing = (i: number): boolean =>
      since !== "empty" && since.queues[i]!.get(claim.grantId) !== undefined;
    const puts = all.flatMap((kept, i) => (standing(i) ? [] : this.#puts(kept, ask)));
    const reads = readsOf(this.#keys, all);
    const compare = all.map(({ name }) => {
      const range = this.#keys.name(name);
      return since === "empty" ? isEmpty(range) : unchangedSince(range, since.revision);
    });
    const names = all.map(({ name }) => name);
    const { succeeded, revision, responses } = await this.#step(names, {
      compare: [...compare, ...this.#notRevoked(all)],
      // Where nobody was there, it is known who is now.
      success: since === "empty" ? puts : [...puts, ...reads],
      failure: reads,
    });
    if (!succeeded) return this.#seen(all, responses, revision);
    if (since !== "empty") {
      return this.#claimed(all, this.#seen(all, responses.slice(puts.length), revision), closing);
    }
    return this.#granted(all, closing, (kept) => ({
      token: revision,
      floor: revision,
      claimed: this.#claimedBy(claim, kept),
      modRevision: revision,
    }));
  }

  /**
   * After the last, which must not have gone or changed; others may have come since, as when many
   * readers come at once. Whether it holds is read in the same step.
   */
  async #join({ claim, all }: Ask, queue: Queue): Promise<ClaimAnswer | Seen> {
    const kept = all[0]!;
    const reads = readsOf(this.#keys, all);
    const { succeeded, responses, revision } = await this.#step([kept.name], {
      compare: this.#isNewAfter(queue.last!, kept),
      success: [this.#put(kept, claim), ...reads],
      failure: reads,
    });
    if (!this.#kept.has(kept)) return this.#givenUp(all);
    const seen = this.#seen(all, succeeded ? responses.slice(1) : responses, revision);
    if (!succeeded) return seen;
    const now = seen.queues[0]!;
    if (now.holds(kept.grantId)) return this.#claimed(all, seen, null);
    if (claim.queue) return seen;
    // Others were faster, and it does not wait.
    this.#kept.drop(kept);
    await this.#delete([this.#key(kept)]);
    return { kind: "busy", name: kept.name, position: now.position(kept.grantId) };
  }

  #isNewAfter(last: Place, kept: Kept): Compare[] {
    return [
      modifiedAt(this.#names.keyOf(kept.name, last), last.modRevision),
      createdAt(this.#key(kept), 0n),
      ...this.#notRevoked([kept]),
    ];
  }

  /** Its queue, if that is watched, and the claim would have to wait. It may be behind: it only says where to begin. */
  #knownToBeFull({ names, queue, grantId, permits, limit }: Claim): Queue | null {
    const watched = names.length === 1 && queue ? this.#waiting.get(names[0]!) : undefined;
    if (watched === undefined || !watched.isComplete) return null;
    const { queue: known } = watched;
    // Perhaps no ticket may be added: what the server has decides.
    if (known.size > MOST_WAITERS) return null;
    const waits = known.limit === limit && known.get(grantId) === undefined && !known.fits(permits);
    return waits ? known : null;
  }

  /** A ticket after the last, which must not have gone or changed: so the limit has not, either. */
  async #queue({ claim, all, earlier }: Ask, queue: Queue): Promise<ClaimAnswer | Seen> {
    const kept = all[0]!;
    const watched = await this.#waiting.enter(kept);
    await earlier;
    if (!this.#kept.has(kept)) return this.#givenUp([kept]);
    const last = queue.last;
    if (last === undefined) return this.#readAgain([kept]);
    // What the watch tells need not be read.
    const told = watched.isComplete;
    const reads = readsOf(this.#keys, [kept]);
    const answer = await this.#step([kept.name], {
      compare: this.#isNewAfter(last, kept),
      success: told ? [this.#put(kept, claim)] : [this.#put(kept, claim), ...reads],
      failure: reads,
    });
    if (!this.#kept.has(kept)) return this.#givenUp([kept]);
    if (!answer.succeeded) return this.#seen([kept], answer.responses, answer.revision);
    if (!told) {
      const seen = this.#seen([kept], answer.responses.slice(1), answer.revision);
      watched.reset(seen.kvs[0]!, answer.revision);
      if (seen.queues[0]!.holds(kept.grantId)) return this.#claimed([kept], seen, null);
    }
    kept.state = "queued";
    kept.token = answer.revision;
    kept.modRevision = answer.revision;
    // What was told before this answer came.
    queueMicrotask(() => this.#waiting.changed(kept.name));
    return { kind: "queued", position: watched.queue.position(kept.grantId) };
  }

  async #readAgain(all: readonly Kept[]): Promise<Seen> {
    const answer = refuseFallen(await this.#txn({ success: readsOf(this.#keys, all) }));
    return this.#seen(all, answer.responses, answer.revision);
  }

  /** Released or swept while it was under way. The key, if there is one, is a stranger. */
  #givenUp(all: readonly Kept[]): ClaimAnswer {
    for (const kept of all) this.#kept.drop(kept);
    return { kind: "lost", reason: "expired" };
  }

  /** All stand and hold. */
  #claimed(all: readonly Kept[], { queues }: Seen, closing: bigint | null): Promise<ClaimAnswer> {
    return this.#granted(all, closing, (kept, i) => whereIn(queues[i]!, kept));
  }

  async #granted(
    all: readonly Kept[],
    closing: bigint | null,
    where: (kept: Kept, i: number) => Where,
  ): Promise<ClaimAnswer> {
    const grants: Grant[] = [];
    for (const [i, kept] of all.entries()) {
      if (!(await this.#enter(kept, where(kept, i), closing))) {
        return { kind: "lost", reason: "expired" };
      }
      grants.push(this.#grantOf(kept, false));
    }
    return { kind: "granted", grants };
  }

  /** What closes the name is there before the grant counts. False: it was over before that. */
  async #enter(
    kept: Kept,
    { token, floor, claimed, modRevision }: Where,
    closing: bigint | null,
  ): Promise<boolean> {
    const { name, grantId } = kept;
    if (kept.state === "held" && kept.token === token) return true;
    if (claimed.atLeastMs > 0) {
      if (closing !== null) this.#closures.keep(name, grantId, closing, claimed.atLeastMs);
      else if (!(await this.#closures.shut(name, grantId, claimed, token))) return false;
    }
    if (!this.#kept.has(kept)) return false;
    this.#waiting.leave(kept);
    kept.state = "held";
    kept.push = ignore;
    kept.modRevision = modRevision;
    kept.token = token;
    kept.floor = floor;
    return true;
  }

  /** Neither a grant nor a ticket: nothing of it is kept, unless it stands in the queue. */
  async #refused({ claim, all, before }: Ask, answer: ClaimAnswer): Promise<ClaimAnswer> {
    if (answer.kind === "queued") return this.#foundQueued(all[0]!, answer);
    for (const [i, kept] of all.entries()) {
      if (kept.state !== "held") this.#kept.drop(kept);
      // Of several names, some may still be held: as before, unless they were renewed since.
      else if (kept.seq === claim.seq) Object.assign(kept, before[i]);
    }
    return answer;
  }

  /** Found again, perhaps by a store that did not know of it: its watch must be there. */
  async #foundQueued(kept: Kept, answer: ClaimAnswer): Promise<ClaimAnswer> {
    if (kept.state !== "queued") {
      const watched = await this.#waiting.enter(kept);
      kept.state = "queued";
      if (!watched.isComplete) await this.#waiting.read([kept.name]);
      // The holder may have gone meanwhile.
      queueMicrotask(() => this.#waiting.changed(kept.name));
    }
    return answer;
  }

  /** Asked again: it is good for a ttl from then on. */
  async #extend(all: readonly Kept[]): Promise<void> {
    if (all.every(({ seq }) => seq === 1)) return;
    await Promise.all([...new Set(all.map(({ session }) => session))].map((one) => one.prove()));
  }

  async #renew(
    renewal: Renewal,
    askedAtMs: number,
    prove: (session: Session) => Promise<Proof>,
    read: Promise<ReadonlyMap<string, Queue | Error>>,
  ): Promise<RenewAnswer> {
    const { name, grantId, seq, ttlMs } = renewal;
    const kept = this.#kept.get(name, grantId);
    if (kept === undefined) return this.#names.whyLost(name, grantId);
    const isLatest = seq > kept.seq;
    if (isLatest) {
      kept.seq = seq;
      kept.askedAtMs = askedAtMs;
    }
    try {
      const moves = isLatest && (kept.moving || secondsOf(ttlMs) !== kept.session.ttlS);
      if (moves && !(await this.#moveOrStay(kept, ttlMs))) return await this.#lose(kept);
      if (kept.moving) throw new Error("etcd: it is on its way to another session");
      const { notices } = await prove(kept.session);
      const notice = this.#keys.notice(kept.session.lease, name, grantId);
      const revoked = notices.get(notice);
      if (revoked !== undefined) {
        this.#kept.drop(kept);
        this.#delete([notice]).catch(() => {});
        return { kind: "lost", reason: "revoked", why: whyOf(revoked) };
      }
      if (kept.gone && (await this.#moves.isGone(kept))) return await this.#lose(kept);
      if (kept.state !== "held") {
        // What was read before a move is old.
        const known = moves ? undefined : (await read).get(name);
        const queue = known ?? (await this.#names.read(name)).queue;
        if (queue instanceof Error) throw queue;
        const mine = queue.get(grantId);
        if (mine === undefined) return await this.#lose(kept);
        if (isElsewhere(mine, kept)) {
          await this.#moves.bring(kept);
          throw new Error("etcd: it was under another session");
        }
        if (!queue.holds(grantId)) {
          return { kind: "queued", position: queue.position(grantId) };
        }
        if (!(await this.#enter(kept, whereIn(queue, kept), null))) return await this.#lose(kept);
      }
      return { kind: "granted", grant: this.#grantOf(kept, false) };
    } catch (error) {
      if (!(error instanceof SessionDead)) throw error;
      this.#sessions.forget(error.session);
      // It may have moved to another since.
      if (kept.session !== error.session) throw error;
      return this.#lose(kept);
    }
  }

  /** A server that is full refuses new sessions; the one that lives is still good. */
  async #moveOrStay(kept: Kept, ttlMs: number): Promise<boolean> {
    try {
      return await this.#moves.move(kept, ttlMs);
    } catch (error) {
      if (kept.moving) throw error;
      return true;
    }
  }

  async #release(releases: readonly Release[]): Promise<readonly ReleaseAnswer[]> {
    const held = new Set<Release>();
    const ops = releases.map((release) => {
      const { name, grantId, unused } = release;
      const key = this.#keys.claim(name, grantId);
      const kept = this.#kept.get(name, grantId);
      if (kept?.state === "held") held.add(release);
      // From here on it is a stranger, whatever becomes of this release.
      if (kept !== undefined) this.#kept.drop(kept);
      const opens = this.#closures.opens(name, grantId, unused === true);
      const open = { delete: { key: this.#keys.closure(name, grantId) } };
      return [{ delete: { key } }, ...(opens ? [open] : [])];
    });
    const names = releases.map(({ name }) => name);
    const keys = releases.map(({ name, grantId }) => this.#keys.claim(name, grantId));
    const released = this.#batches.txn(names, { success: ops.flat() }, true);
    const { responses, repeated } = await this.#kept.whileReleasing(keys, released);
    let at = 0;
    return Promise.all(
      releases.map(async (release, i) => {
        const { name, grantId } = release;
        const told = responses.slice(at, at + ops[i]!.length);
        at += told.length;
        if (told.length > 1) this.#closures.opened(name, grantId);
        const gone = told.some((one) => one.delete!.deleted > 0);
        if (gone) return "released";
        const lost = await this.#names.whyLost(name, grantId);
        // The attempt that was not answered may have released it: that is no loss.
        if (repeated && held.has(release) && lost.reason !== "revoked") {
          throw new Error("etcd: the answer to the release was lost");
        }
        return lost;
      }),
    );
  }

  async #lose(kept: Kept): Promise<LostAnswer> {
    this.#kept.drop(kept);
    return this.#names.whyLost(kept.name, kept.grantId);
  }

  /** Those before it are gone, and at that revision its own key stood. */
  async #handOver(kept: Kept, queue: Queue): Promise<void> {
    const { push } = kept;
    kept.state = "asked";
    try {
      if (!(await this.#enter(kept, whereIn(queue, kept), null))) throw new Error("it is over");
      const grant = this.#grantOf(kept, true);
      push(grant.ttlMs > 0 ? { kind: "granted", grant } : { kind: "look" });
    } catch {
      push({ kind: "look" });
    }
  }

  // What is kept.

  /**
   * What stands under the session and nobody knows was given up while it was still on the way, or is a
   * notice to somebody who has gone: nobody else would delete it. What is known and does not stand
   * there is gone.
   */
  async #reconcile(session: Session): Promise<void> {
    const missing = new Set<Kept>();
    for (const kept of this.#kept.of(session)) if (isSettled(kept, session)) missing.add(kept);
    const strangers: string[] = [];
    let looked = 0;
    for (const key of await this.#client.leaseKeys(session.lease)) {
      // Thousands must not block the event loop.
      if (++looked % KEYS_PER_TURN === 0) await turn();
      const under = this.#keys.readUnder(session.lease, key);
      if (under === null) continue;
      const { name, grantId, isNotice } = under;
      const kept = this.#kept.get(name, grantId);
      if (kept !== undefined && !isNotice) missing.delete(kept);
      else if (this.#kept.isStranger(name, grantId)) strangers.push(key);
    }
    // Of a session that is gone no key stands, and its own proof tells that.
    if (looked === 0) return;
    for (const kept of missing) if (isSettled(kept, session)) kept.gone = true;
    await this.#delete(strangers);
  }

  async #delete(keys: readonly string[]): Promise<void> {
    for (let i = 0; i < keys.length; i += OPS_AT_ONCE) {
      const some = keys.slice(i, i + OPS_AT_ONCE);
      await this.#txn({ success: some.map((key) => ({ delete: { key } })) });
    }
  }

  #grantOf(kept: Kept, handedOver: boolean): Grant {
    const { token, floor, seq, session, askedAtMs } = kept;
    // The core subtracts drift for what follows the ask, and so allows for none of the time before it.
    const beforeMs = Math.max(0, askedAtMs - session.provedAtMs);
    const driftMs = (beforeMs * this.#driftFactor) / (1 - this.#driftFactor);
    const leftMs = session.deadlineMs - askedAtMs - driftMs;
    // No longer than until it is swept.
    return { token, floor, ttlMs: Math.min(leftMs, session.ttlMs), seq, handedOver };
  }

  // Requests and what they bring.

  #key({ name, grantId }: Kept): string {
    return this.#keys.claim(name, grantId);
  }

  #claimedBy({ permits, limit, holder, atLeastMs }: Claim, { session }: Kept): Claimed {
    const atMs = this.#clock.wallMs();
    return { permits, limit, holder, ttlMs: session.ttlMs, atLeastMs, atMs };
  }

  #put(kept: Kept, claim: Claim): Op {
    const value = written(this.#claimedBy(claim, kept));
    return { put: { key: this.#key(kept), value, lease: kept.session.lease } };
  }

  #puts(kept: Kept, { claim, closing }: Ask): Op[] {
    const put = this.#put(kept, claim);
    if (closing === null) return [put];
    const { name, grantId } = kept;
    return [put, this.#closures.put(name, grantId, this.#claimedBy(claim, kept), closing)];
  }

  /** A step of a claim on these names. */
  async #step(names: readonly string[], txn: Txn): ReturnType<EtcdClient["txn"]> {
    return refuseFallen(await this.#batches.txn(names, txn));
  }

  #seen(all: readonly Kept[], responses: readonly OpAnswer[], revision: bigint): Seen {
    return seenBy({ keys: this.#keys, names: this.#names }, all, responses, revision);
  }

  #notRevoked(all: readonly Kept[]): Compare[] {
    return all.map(({ name, grantId }) => createdAt(this.#keys.revocation(name, grantId), 0n));
  }

  /** All that is sent may be sent again: keys carry the grantId. */
  #txn(txn: Parameters<EtcdClient["txn"]>[0]): ReturnType<EtcdClient["txn"]> {
    return this.#client.txn(txn, { again: true });
  }
}

export function etcdStore(client: EtcdClient, options: EtcdStoreOptions = {}): EtcdStore {
  return new EtcdStore(client, options);
}

/**
 * What a transaction of yours must compare to succeed only while the lease's claim stands: the fence
 * for data in etcd.
 */
export function guardTxn(lease: Lease, options: Pick<EtcdStoreOptions, "prefix"> = {}): Compare {
  checkOptions(options, "the options of guardTxn", ["prefix"]);
  const { store, name, grantId, token } = claimOf(lease);
  if (store.traits.store !== ETCD_TRAITS.store) {
    throw new InvalidArgumentError(
      `guardTxn needs a lease of an etcd store, and this one is of ${store.traits.store}`,
    );
  }
  return createdAt(new Keys(options.prefix).claim(name, grantId), token);
}

const ignore = (): void => {};

/** A claim, what is kept of each of its names, and the lease that keeps them closed by `atLeast`. */
interface Ask {
  readonly claim: Claim;
  readonly all: readonly Kept[];
  readonly closing: bigint | null;
  /** What each was asked last before that, if it was kept. */
  readonly before: readonly (Pick<Kept, "seq" | "askedAtMs"> | undefined)[];
  /** What this process asked of the name before it; a ticket comes after those. */
  readonly earlier: Promise<void> | null;
}

const askOf = (kept: Kept | undefined): Ask["before"][number] =>
  kept && { seq: kept.seq, askedAtMs: kept.askedAtMs };

/** Known to stand under it. */
const isSettled = ({ state, moving, session }: Kept, of: Session): boolean =>
  session === of && state !== "asked" && !moving;

/** A notice that can't be read, as of a later format, is one all the same. */
function whyOf(notice: string): string {
  try {
    return becauseOf(readValue<{ by: string; why: string }>(notice));
  } catch {
    return "by a notice that this version of Holdfast can't read";
  }
}

const isLeaseGone = (error: unknown): boolean =>
  error instanceof EtcdError &&
  error.grpcCode === Code.NOT_FOUND &&
  /lease not found/.test(error.message);

function rethrow(error: unknown): never {
  throw explain(error);
}

/** Errors that no repetition mends. */
function explain(error: unknown): unknown {
  if (!(error instanceof EtcdError)) return error;
  const refused: readonly number[] = [Code.PERMISSION_DENIED, Code.UNAUTHENTICATED];
  if (refused.includes(error.grpcCode) || /authentication failed/.test(error.message)) {
    return new StoreUnavailableError(`the etcd server refuses: ${error.message}`, {
      cause: error,
      retryable: false,
    });
  }
  return error;
}
