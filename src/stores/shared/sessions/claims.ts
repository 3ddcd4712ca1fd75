import { type Clock, LONGEST_TIMER_MS } from "../../../core/clock.js";
import type { Awaitable, Grant, Push } from "../../../core/store.js";
import type { Session, SessionKey, SessionPort } from "./session.js";

const SHORTEST_SWEEP_INTERVAL_MS = 20;
/** The time for which a deletion may be in flight, at most. */
const SWEPT_REMEMBERED_MS = 60_000;
/** The core's default, for claims without a `driftFactor`. */
const DRIFT_FACTOR = 0.01;

/** One request for a claim. */
export interface ClaimRequest {
  readonly seq: number;
  readonly requestedAtMs: number;
  readonly push: (push: Push) => void;
}

/** A store may have ten thousand claims: a class keeps them small. */
class Entry<S> {
  readonly name: string;
  readonly grantId: string;
  /** The session that its key is under, unless `isMoving`. */
  session: S;
  /** `requested`: it is not yet known whether the claim waits or holds the name. */
  state: "requested" | "queued" | "held" = "requested";
  /** The latest request or renewal, and when it was made. */
  seq = 0;
  requestedAtMs = 0;
  /** Notifies the waiter, and after the grant the holder. */
  push: (push: Push) => void = ignore;
  token = 0n;
  floor = 0n;
  /** Whether its key is being moved to another session: the key may be under either. */
  isMoving = false;
  /** Not sent yet: claims of this process that came before it are answered first. */
  isInLine = false;
  /** The claim of the same grantId on another name. */
  sibling: Entry<S> | undefined;

  constructor(name: string, grantId: string, session: S, sibling: Entry<S> | undefined) {
    this.name = name;
    this.grantId = grantId;
    this.session = session;
    this.sibling = sibling;
  }
}

/** A claim of this store on one name. Only `SessionClaims` changes it. */
export type SessionClaim<S> = Readonly<Entry<S>>;

/** Whether the key is known to be under the session. */
export const isSettled = <S>(claim: SessionClaim<S>, session: S): boolean =>
  claim.session === session && claim.state !== "requested" && !claim.isMoving;

/**
 * The claims that this store has made and not given up. A key under one of its sessions without a
 * claim in this table is an orphan, and is deleted.
 */
export class SessionClaims<S extends Session<unknown>> {
  readonly #clock: Clock;
  readonly #port: Pick<SessionPort<unknown, never>, "claimKey" | "deleteKeys">;
  readonly #stoppedWaiting: (claim: SessionClaim<S>) => void;
  /** By grantId; of a claim on several names, the first of its siblings. */
  readonly #entries = new Map<string, Entry<S>>();
  /** Keys whose release has not been answered. They are no orphans: if they were deleted, the release would report a loss. */
  readonly #releasing = new Set<string>();
  /** Keys of claims that were not renewed, or of orphans, and when they were deleted; oldest first. */
  readonly #sweptAtMs = new Map<string, number>();
  #driftFactor = DRIFT_FACTOR;
  #timer: NodeJS.Timeout | undefined;
  #timerAtMs = Number.POSITIVE_INFINITY;

  /** `stoppedWaiting` is called when a claim was granted or dropped. */
  constructor(
    clock: Clock,
    port: Pick<SessionPort<unknown, never>, "claimKey" | "deleteKeys">,
    stoppedWaiting: (claim: SessionClaim<S>) => void,
  ) {
    this.#clock = clock;
    this.#port = port;
    this.#stoppedWaiting = stoppedWaiting;
  }

  get isEmpty(): boolean {
    return this.#entries.size === 0;
  }

  get(name: string, grantId: string): SessionClaim<S> | undefined {
    return this.#get(name, grantId);
  }

  has(claim: SessionClaim<S>): boolean {
    return this.#get(claim.name, claim.grantId) === claim;
  }

  *all(): Generator<SessionClaim<S>> {
    for (const first of this.#entries.values()) {
      for (let one: Entry<S> | undefined = first; one !== undefined; one = one.sibling) yield one;
    }
  }

  isUsing(session: S): boolean {
    for (const claim of this.all()) if (claim.session === session) return true;
    return false;
  }

  /** Whether the key is an orphan: it belongs to no claim of this store. */
  isOrphan({ name, grantId }: SessionKey): boolean {
    const isReleasing = this.#releasing.has(this.#port.claimKey(name, grantId));
    return this.#get(name, grantId) === undefined && !isReleasing;
  }

  /** Deletes those of these keys that are still orphans: some of them may have been claimed again meanwhile. */
  deleteOrphans(keys: readonly SessionKey[]): Promise<void> {
    const orphans = keys.filter((key) => this.isOrphan(key));
    for (const { name, grantId } of orphans) this.#noteSwept(this.#port.claimKey(name, grantId));
    return this.#port.deleteKeys(orphans.map(({ key }) => key));
  }

  /** Whether the claim was swept: its deletion may still be under way, and would delete a new key of the same id. */
  wasSwept(name: string, grantId: string): boolean {
    return this.#sweptAtMs.has(this.#port.claimKey(name, grantId));
  }

  /** Adds a claim, or repeats it if it is there. */
  add(
    name: string,
    grantId: string,
    session: S,
    request: ClaimRequest,
    driftFactor = DRIFT_FACTOR,
  ): SessionClaim<S> {
    this.#driftFactor = Math.max(this.#driftFactor, driftFactor);
    const there = this.#get(name, grantId);
    if (there?.session.isDead) this.drop(there);
    else if (there !== undefined) {
      this.repeat(there, request);
      return there;
    }
    const entry = new Entry(name, grantId, session, this.#entries.get(grantId));
    this.#entries.set(grantId, entry);
    this.repeat(entry, request);
    this.#sweepWithin(session.ttlMs);
    return entry;
  }

  /** A held claim keeps its latest renewal until the request is answered with a grant: it may be refused. */
  repeat(claim: SessionClaim<S>, request: ClaimRequest): void {
    const entry = claim as Entry<S>;
    if (entry.state === "held") return;
    this.renew(entry, request.seq, request.requestedAtMs);
    entry.push = request.push;
  }

  /** Extends the claim; false if a later request or renewal is known already. */
  renew(claim: SessionClaim<S>, seq: number, requestedAtMs: number): boolean {
    const entry = claim as Entry<S>;
    if (seq <= entry.seq) return false;
    entry.seq = seq;
    entry.requestedAtMs = requestedAtMs;
    return true;
  }

  /**
   * Waits until the claim's turn has come. However long that takes, the claim is not swept meanwhile: under a new
   * id, at the end of the line, it might never be sent.
   */
  async waitInLine(claims: readonly SessionClaim<S>[], turn: Promise<void>): Promise<void> {
    const entries = claims as readonly Entry<S>[];
    for (const entry of entries) entry.isInLine = true;
    await turn;
    for (const entry of entries) {
      entry.isInLine = false;
      entry.requestedAtMs = this.#clock.elapsedMs();
      this.#sweepWithin(entry.session.ttlMs);
    }
  }

  /** The claim has a ticket, created at this revision. */
  markQueued(claim: SessionClaim<S>, token: bigint): void {
    const entry = claim as Entry<S>;
    entry.state = "queued";
    entry.token = token;
  }

  /** The ticket's turn has come. `complete` makes the claim a holder; false: it was over before that. */
  async handOver(claim: SessionClaim<S>, complete: () => Awaitable<boolean>): Promise<void> {
    const entry = claim as Entry<S>;
    const { push } = entry;
    // The claim leaves the queue first, so that its waiter is notified once.
    entry.state = "requested";
    try {
      const grant = (await complete()) ? this.grantOf(claim, true) : null;
      push(grant !== null && grant.ttlMs > 0 ? { kind: "granted", grant } : { kind: "look" });
    } catch {
      push({ kind: "look" });
    }
  }

  /** The claim holds its name. */
  markHeld(claim: SessionClaim<S>, token: bigint, floor: bigint): void {
    const entry = claim as Entry<S>;
    entry.state = "held";
    entry.token = token;
    entry.floor = floor;
    this.#stoppedWaiting(entry);
  }

  /** The session has ended, or is given up: its holders and waiters are notified at once. */
  notifyOfEnd(session: S): void {
    for (const claim of [...this.all()]) if (claim.session === session) notifyOfLoss(claim);
  }

  /** The grant of a held claim, good for what is left of its session's proof; for nothing if the session was given up. */
  grantOf(claim: SessionClaim<S>, handedOver: boolean): Grant {
    const { token, floor, seq, session, requestedAtMs } = claim;
    // The core subtracts drift for the time after the request, and none for the time before it.
    const beforeMs = Math.max(0, requestedAtMs - session.provedAtMs);
    const driftMs = (beforeMs * this.#driftFactor) / (1 - this.#driftFactor);
    const leftMs = session.isDead ? 0 : session.deadlineMs - requestedAtMs - driftMs;
    // The grant must not outlast the claim, which is swept after a ttl.
    return { token, floor, ttlMs: Math.min(leftMs, session.ttlMs), seq, handedOver };
  }

  startMove(claim: SessionClaim<S>): void {
    (claim as Entry<S>).isMoving = true;
  }

  /** The key is under the session. */
  settle(claim: SessionClaim<S>, session = claim.session): void {
    const entry = claim as Entry<S>;
    entry.session = session;
    entry.isMoving = false;
    this.#sweepWithin(session.ttlMs);
  }

  /** The claim is over, or given up: its key, if there is one, is an orphan. */
  drop(claim: SessionClaim<S>): void {
    const { grantId, sibling } = claim;
    const first = this.#entries.get(grantId);
    if (first !== claim) {
      for (let one = first; one !== undefined; one = one.sibling) {
        if (one.sibling === claim) one.sibling = sibling;
      }
    } else if (sibling === undefined) this.#entries.delete(grantId);
    else this.#entries.set(grantId, sibling);
    this.#stoppedWaiting(claim);
  }

  /** The claim's key was found to be gone. */
  lose(claim: SessionClaim<S>): void {
    this.drop(claim);
    notifyOfLoss(claim);
  }

  async whileReleasing<T>(keys: readonly string[], released: Promise<T>): Promise<T> {
    for (const key of keys) this.#releasing.add(key);
    try {
      return await released;
    } finally {
      for (const key of keys) this.#releasing.delete(key);
    }
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#timerAtMs = Number.POSITIVE_INFINITY;
  }

  #get(name: string, grantId: string): Entry<S> | undefined {
    let entry = this.#entries.get(grantId);
    while (entry !== undefined && entry.name !== name) entry = entry.sibling;
    return entry;
  }

  #sweepWithin(ms: number): void {
    const atMs = this.#clock.elapsedMs() + ms;
    if (atMs >= this.#timerAtMs) return;
    clearTimeout(this.#timer);
    this.#timerAtMs = atMs;
    const timeoutMs = Math.min(Math.ceil(ms), LONGEST_TIMER_MS);
    this.#timer = setTimeout(() => this.#sweep(), timeoutMs).unref();
  }

  #noteSwept(claimKey: string): void {
    const nowMs = this.#clock.elapsedMs();
    for (const [key, sweptAtMs] of this.#sweptAtMs) {
      if (nowMs - sweptAtMs < SWEPT_REMEMBERED_MS) break;
      this.#sweptAtMs.delete(key);
    }
    // Added at the end, so that the oldest ones come first.
    this.#sweptAtMs.delete(claimKey);
    this.#sweptAtMs.set(claimKey, nowMs);
  }

  /** Gives up claims that were not renewed for a ttl: under a session that lives on, they would never expire. */
  #sweep(): void {
    this.#timerAtMs = Number.POSITIVE_INFINITY;
    const nowMs = this.#clock.elapsedMs();
    let nextMs = Number.POSITIVE_INFINITY;
    const expired: SessionClaim<S>[] = [];
    for (const claim of this.all()) {
      if (claim.isInLine) continue;
      const { ttlMs, requestedTtlMs } = claim.session;
      // Waiters do not learn that the store gave a shorter ttl, and renew their tickets by their own.
      const keptMs = claim.state === "held" ? ttlMs : Math.max(ttlMs, requestedTtlMs);
      const leftMs = claim.requestedAtMs + keptMs - nowMs;
      if (leftMs <= 0) expired.push(claim);
      else nextMs = Math.min(nextMs, leftMs);
    }
    const keys = expired.map(({ name, grantId }) => this.#port.claimKey(name, grantId));
    for (const key of keys) this.#noteSwept(key);
    for (const claim of expired) this.drop(claim);
    // A key whose deletion fails is an orphan from now on.
    this.#port.deleteKeys(keys).catch(() => {});
    if (nextMs < Number.POSITIVE_INFINITY)
      this.#sweepWithin(Math.max(nextMs, SHORTEST_SWEEP_INTERVAL_MS));
  }
}

/** The holder or waiter renews at once, and learns why the claim is over. */
function notifyOfLoss({ state, push }: SessionClaim<unknown>): void {
  if (state !== "requested") push({ kind: state === "held" ? "lost" : "look" });
}

function ignore(): void {}
