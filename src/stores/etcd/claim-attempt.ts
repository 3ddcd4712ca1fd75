import { type Claim, type ClaimAnswer, type Grant, MOST_WAITERS } from "../../core/store.js";
import { LOST } from "../shared/lost.js";
import { ATTEMPTS, tooMuchContentionError } from "../shared/sessions/operations.js";
import type { PendingClaim } from "../shared/sessions/pending-claims.js";
import type { EtcdContext } from "./context.js";
import { RevisionFell, refuseFallen } from "./errors.js";
import {
  type ClaimValue,
  encodeClaim,
  type GrantedClaim,
  type Queue,
  type StoredClaim,
} from "./queue.js";
import type { TxnReply } from "./rpc/client.js";
import { createdAt, isEmpty, modifiedAt, unchangedSince } from "./rpc/compare.js";
import type { Compare, Op, Txn } from "./rpc/messages.js";
import type { EtcdClaim } from "./session-port.js";
import { answerFrom, type Snapshot, snapshotReads, toSnapshot } from "./snapshot.js";
import { isMisplaced } from "./waiters.js";

/** The reply to the claim; or, if the names were not as expected, their present state. */
type Outcome = ClaimAnswer | Snapshot;

/** Claims one or more names under the session of their `own` claims. */
export async function attemptClaim(
  context: EtcdContext,
  pending: PendingClaim,
  own: readonly EtcdClaim[],
): Promise<ClaimAnswer> {
  const { closedNames, transactions, keys, claims } = context;
  const { names, grantId, atLeastMs, permits, limit } = pending.claim;
  const { earlier } = pending;
  // At most one of several exclusive claims is granted: nothing is gained by sending them together.
  if (earlier !== null && permits === limit) await claims.waitInLine(own, earlier);
  const atLeastLease = atLeastMs > 0 ? await closedNames.grantLease(atLeastMs) : null;
  try {
    const answer = await new ClaimAttempt(context, pending, own, atLeastLease).run();
    // If the outcome is unknown, the lease runs out by itself.
    if (atLeastLease !== null) closedNames.revokeIfUnused(atLeastLease);
    return answer;
  } catch (error) {
    // The error says that nothing was claimed, but the transaction that it refuses may have created the keys.
    if (error instanceof RevisionFell) {
      await transactions.delete(names.map((name) => keys.claim(name, grantId)));
    }
    throw error;
  }
}

/** One claim under one session: enters its names, or takes a ticket. */
class ClaimAttempt {
  readonly #context: EtcdContext;
  readonly #pending: PendingClaim;
  readonly #claim: Claim;
  /** One for each name. */
  readonly #own: readonly EtcdClaim[];
  /** The lease that closes the names for `atLeast`, if they are entered in one step. */
  readonly #atLeastLease: bigint | null;

  constructor(
    context: EtcdContext,
    pending: PendingClaim,
    own: readonly EtcdClaim[],
    atLeastLease: bigint | null,
  ) {
    this.#context = context;
    this.#pending = pending;
    this.#claim = pending.claim;
    this.#own = own;
    this.#atLeastLease = atLeastLease;
  }

  async run(): Promise<ClaimAnswer> {
    if (this.#isGivenUp()) return this.#giveUp();
    const full = this.#knownFullQueue();
    // One round trip if nobody is there, which is usual, or if others of this process wait already.
    let outcome = full === null ? await this.#enter(null) : await this.#append(full);
    for (let attempt = 0; attempt < ATTEMPTS && !("kind" in outcome); attempt++) {
      outcome = this.#isGivenUp() ? this.#giveUp() : await this.#proceed(outcome);
    }
    if ("kind" in outcome) return outcome;
    throw tooMuchContentionError(this.#claim.names[0]!);
  }

  /** The next step after the names were read. */
  async #proceed(snapshot: Snapshot): Promise<Outcome> {
    const { names, grantId, permits } = this.#claim;
    if (await this.#bringBack(snapshot)) return this.#read();
    const answer = answerFrom(this.#claim, snapshot);
    if (answer === "granted" || answer?.kind === "queued") {
      await this.#extend();
      if (this.#isGivenUp()) return this.#giveUp();
      if (answer === "granted") return this.#grantFrom(snapshot, null);
      await this.#keepTicket(snapshot[0]!.queue.get(grantId)!);
      return answer;
    }
    if (answer !== null) return this.#refuse(answer);
    const { queue } = snapshot[0]!;
    // In one step with `atLeast` only if the claim is sure to be granted.
    const mayAppend = this.#atLeastLease === null || !queue.fits(permits);
    if (names.length === 1 && queue.size > 0 && mayAppend) return this.#append(queue);
    return this.#enter(snapshot);
  }

  /** Enters all names, if they are empty (null), or if no claim has come or changed since the snapshot. */
  async #enter(snapshot: Snapshot | null): Promise<Outcome> {
    const { keys, closedNames } = this.#context;
    const { names, grantId } = this.#claim;
    const lease = this.#atLeastLease;
    const values = this.#own.map((own) => this.#valueOf(own));
    const puts = this.#own.flatMap((own, i) => {
      if (snapshot?.[i]?.queue.get(grantId) !== undefined) return [];
      const put = this.#putOf(own, values[i]!);
      if (lease === null) return [put];
      return [put, closedNames.put(own.name, grantId, values[i]!, lease)];
    });
    const unchanged = names.map((name, i) => {
      const range = keys.name(name);
      return snapshot === null
        ? isEmpty(range)
        : unchangedSince(range, snapshot[i]!.queue.revision);
    });
    const reads = snapshotReads(keys, this.#claim);
    const reply = await this.#send({
      compare: [...unchanged, ...this.#notRevoked()],
      // Names that were empty need not be read: they hold this claim and nothing else.
      success: snapshot === null ? puts : [...puts, ...reads],
      failure: reads,
    });
    if (!reply.succeeded) return this.#toSnapshot(reply);
    if (snapshot !== null) return this.#grantFrom(this.#toSnapshot(reply), lease);
    const { revision } = reply;
    const granted = values.map((value) => ({ ...value, token: revision, floor: revision }));
    return this.#grant(granted, lease);
  }

  /**
   * Adds the claim after the last one, which must be there unchanged: so the name's limit is the same.
   * Others may come in between, as when many readers come at once, so whether it is granted is read in
   * the same step. A claim that will have to wait watches the name first.
   */
  async #append(queue: Queue): Promise<Outcome> {
    const { claims, waiters, keys } = this.#context;
    const { grantId, permits, queue: mayWait } = this.#claim;
    const own = this.#own[0]!;
    const watched = queue.fits(permits) ? null : await waiters.add(own);
    const { earlier } = this.#pending;
    if (watched !== null && earlier !== null) await claims.waitInLine(this.#own, earlier);
    if (this.#isGivenUp()) return this.#giveUp();
    const { last } = queue;
    if (last === undefined) return this.#read();
    const put = this.#putOf(own, this.#valueOf(own));
    const reads = snapshotReads(keys, this.#claim);
    const needsRead = watched === null || !watched.isComplete;
    const reply = await this.#send({
      compare: [
        modifiedAt(keys.inQueue(own.name, last), last.modRevision),
        createdAt(keys.claim(own.name, grantId), 0n),
        ...this.#notRevoked(),
      ],
      success: needsRead ? [put, ...reads] : [put],
      failure: reads,
    });
    if (this.#isGivenUp()) return this.#giveUp();
    if (!reply.succeeded) return this.#toSnapshot(reply);
    if (needsRead) {
      const snapshot = this.#toSnapshot(reply);
      const now = snapshot[0]!.queue;
      watched?.reset(now);
      if (now.holds(grantId)) return this.#grantFrom(snapshot, null);
      if (!mayWait) return this.#withdraw(now);
      if (watched === null) return snapshot;
    }
    claims.markQueued(own, reply.revision);
    // The watch may have received the events that make it the holder before this reply.
    queueMicrotask(() => waiters.changed(own.name));
    return { kind: "queued", position: watched!.queue.position(grantId) };
  }

  /** Deletes a claim that others overtook and that does not wait. */
  async #withdraw(queue: Queue): Promise<ClaimAnswer> {
    const { claims, transactions, keys } = this.#context;
    const { name, grantId } = this.#own[0]!;
    claims.drop(this.#own[0]!);
    await transactions.delete([keys.claim(name, grantId)]);
    return { kind: "busy", name, position: queue.position(grantId) };
  }

  /** The queue, if it is watched and the claim would have to wait. It may be behind: the step compares it. */
  #knownFullQueue(): Queue | null {
    const { names, queue: mayWait, grantId, permits, limit } = this.#claim;
    const watched =
      names.length === 1 && mayWait ? this.#context.waiters.get(names[0]!) : undefined;
    if (watched === undefined || !watched.isComplete) return null;
    const { queue } = watched;
    // Whether one more ticket may be added is decided by what the server has.
    if (queue.size > MOST_WAITERS) return null;
    const isNew = queue.get(grantId) === undefined;
    return isNew && queue.limit === limit && !queue.fits(permits) ? queue : null;
  }

  /** Brings keys back that stand under another session than they should; false: there are none. */
  async #bringBack(snapshot: Snapshot): Promise<boolean> {
    let isAny = false;
    for (const [i, own] of this.#own.entries()) {
      const record = snapshot[i]!.queue.get(own.grantId);
      if (record === undefined || !isMisplaced(record, own)) continue;
      await this.#context.moves.bringBack(own, record.modRevision);
      isAny = true;
    }
    return isAny;
  }

  /** A claim that was requested again is good for a ttl from then on. */
  async #extend(): Promise<void> {
    const { seq } = this.#pending.request;
    if (seq === 1 && this.#own.every((own) => own.seq === 1)) return;
    const sessions = new Set(this.#own.map(({ session }) => session));
    await Promise.all([...sessions].map((session) => session.prove()));
  }

  /** The ticket exists already, perhaps unknown to this store: it must be watched. */
  async #keepTicket({ token }: StoredClaim): Promise<void> {
    const { claims, waiters } = this.#context;
    const own = this.#own[0]!;
    if (own.state === "queued") return;
    const watched = await waiters.add(own);
    claims.markQueued(own, token);
    if (!watched.isComplete) await waiters.read([own.name]);
    // The holder may have gone meanwhile.
    queueMicrotask(() => waiters.changed(own.name));
  }

  #grantFrom(snapshot: Snapshot, atLeastLease: bigint | null): Promise<ClaimAnswer> {
    const { grantId } = this.#claim;
    return this.#grant(
      snapshot.map(({ queue }) => queue.granted(grantId)),
      atLeastLease,
    );
  }

  /** `atLeastLease`: closes the names since the step that granted them. */
  async #grant(
    granted: readonly GrantedClaim[],
    atLeastLease: bigint | null,
  ): Promise<ClaimAnswer> {
    const { claims, grants: completing } = this.#context;
    const grants: Grant[] = [];
    for (const [i, own] of this.#own.entries()) {
      if (!(await completing.complete(own, granted[i]!, atLeastLease))) return LOST;
      // A claim that was held before counts from this request on.
      claims.renew(own, this.#pending.request.seq, this.#pending.request.requestedAtMs);
      grants.push(claims.grantOf(own, false));
    }
    return { kind: "granted", grants };
  }

  /** Drops claims that are neither granted nor waiting. An earlier grant may still hold some of several names. */
  #refuse(answer: ClaimAnswer): ClaimAnswer {
    for (const own of this.#own) if (own.state !== "held") this.#context.claims.drop(own);
    return answer;
  }

  #isGivenUp(): boolean {
    return this.#own.some((own) => !this.#context.claims.has(own));
  }

  /** Released or swept while its request was on the way: the key, if there is one, is an orphan. */
  #giveUp(): ClaimAnswer {
    for (const own of this.#own) this.#context.claims.drop(own);
    return LOST;
  }

  async #read(): Promise<Snapshot> {
    const { transactions, keys } = this.#context;
    const reply = await transactions.send({ success: snapshotReads(keys, this.#claim) });
    return this.#toSnapshot(refuseFallen(reply));
  }

  async #send(txn: Txn): Promise<TxnReply> {
    return refuseFallen(await this.#context.transactions.sendBatched(this.#claim.names, txn));
  }

  #toSnapshot(reply: TxnReply): Snapshot {
    return toSnapshot(this.#context.keys, this.#claim, reply);
  }

  #valueOf({ session }: EtcdClaim): ClaimValue {
    const { permits, limit, holder, atLeastMs } = this.#claim;
    const atMs = this.#context.clock.wallMs();
    return { permits, limit, holder, ttlMs: session.ttlMs, atLeastMs, atMs };
  }

  #putOf({ name, grantId, session }: EtcdClaim, value: ClaimValue): Op {
    const key = this.#context.keys.claim(name, grantId);
    return { put: { key, value: encodeClaim(value), lease: session.id } };
  }

  #notRevoked(): Compare[] {
    const { names, grantId } = this.#claim;
    return names.map((name) => createdAt(this.#context.keys.revocation(name, grantId), 0n));
  }
}
