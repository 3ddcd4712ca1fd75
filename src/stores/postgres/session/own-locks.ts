import { type Clock, LONGEST_TIMER_MS, type Timer } from "../../../core/clock.js";
import type { Push } from "../../../core/store.js";
import type { SessionConnection } from "./connection.js";

/** A lock that a session of this process has. */
export interface OwnLock {
  readonly key: bigint;
  readonly name: string;
  readonly grantId: string;
  readonly holder: string;
  readonly isShared: boolean;
  readonly token: bigint;
  readonly floor: bigint;
  readonly push: (push: Push) => void;
  readonly session: SessionConnection;
  /** The number and ttl of the latest claim or renewal, and when it was made. */
  seq: number;
  ttlMs: number;
  requestedAtMs: number;
  /** Whether its release has begun: it is not renewed any more. */
  isEnding: boolean;
  /** A release of it has failed: it is not known whether the session has unlocked it, so no other claim may share it. */
  isUnsure: boolean;
  /** The release that is under way. */
  ending: Promise<boolean> | null;
}

const SHORTEST_SWEEP_INTERVAL_MS = 20;

/** The locks of this process. A lock that is not renewed for its ttl is ended: the session lives on without it. */
export class OwnLocks {
  readonly #clock: Clock;
  readonly #expired: (lock: OwnLock) => Promise<unknown>;
  readonly #byGrant = new Map<string, OwnLock>();
  readonly #byKey = new Map<bigint, OwnLock[]>();
  #timer: Timer | null = null;
  #timerAtMs = Number.POSITIVE_INFINITY;

  constructor(clock: Clock, expired: (lock: OwnLock) => Promise<unknown>) {
    this.#clock = clock;
    this.#expired = expired;
  }

  get size(): number {
    return this.#byGrant.size;
  }

  get(name: string, grantId: string): OwnLock | undefined {
    const lock = this.#byGrant.get(grantId);
    return lock?.name === name ? lock : undefined;
  }

  /** Whether the lock counts: it is there, and is not about to be released. */
  has(lock: OwnLock): boolean {
    return this.isThere(lock) && !lock.isEnding;
  }

  isThere(lock: OwnLock): boolean {
    return this.#byGrant.get(lock.grantId) === lock;
  }

  withKey(key: bigint): readonly OwnLock[] {
    return this.#byKey.get(key) ?? [];
  }

  add(lock: OwnLock): void {
    this.#byGrant.set(lock.grantId, lock);
    this.#byKey.set(lock.key, [...this.withKey(lock.key), lock]);
    this.#sweepAt(lock.requestedAtMs + lock.ttlMs);
  }

  /** Ignores a renewal that arrives after a later one. */
  renew(lock: OwnLock, seq: number, ttlMs: number): void {
    if (seq <= lock.seq || lock.isEnding) return;
    lock.seq = seq;
    lock.ttlMs = ttlMs;
    lock.requestedAtMs = this.#clock.elapsedMs();
    this.#sweepAt(lock.requestedAtMs + ttlMs);
  }

  delete(lock: OwnLock): void {
    if (!this.isThere(lock)) return;
    this.#byGrant.delete(lock.grantId);
    const others = this.withKey(lock.key).filter((other) => other !== lock);
    if (others.length > 0) this.#byKey.set(lock.key, others);
    else this.#byKey.delete(lock.key);
  }

  /** Deletes the locks of a session, and returns them. */
  deleteOf(session: SessionConnection): readonly OwnLock[] {
    const gone = [...this.#byGrant.values()].filter((lock) => lock.session === session);
    for (const lock of gone) this.delete(lock);
    return gone;
  }

  stop(): void {
    this.#timer?.cancel();
    this.#timerAtMs = Number.POSITIVE_INFINITY;
  }

  #sweepAt(atMs: number): void {
    if (atMs >= this.#timerAtMs) return;
    this.#timer?.cancel();
    this.#timerAtMs = atMs;
    const inMs = Math.max(atMs - this.#clock.elapsedMs(), SHORTEST_SWEEP_INTERVAL_MS);
    this.#timer = this.#clock.after(Math.min(inMs, LONGEST_TIMER_MS), () => this.#sweep());
  }

  #sweep(): void {
    this.#timerAtMs = Number.POSITIVE_INFINITY;
    const nowMs = this.#clock.elapsedMs();
    let nextAtMs = Number.POSITIVE_INFINITY;
    for (const lock of [...this.#byGrant.values()]) {
      const endsAtMs = lock.requestedAtMs + lock.ttlMs;
      if (endsAtMs > nowMs) nextAtMs = Math.min(nextAtMs, endsAtMs);
      // If its release fails, the lock stays, and is swept again after a ttl.
      else if (lock.ending === null) {
        this.#expired(lock).catch(() => this.#sweepAt(this.#clock.elapsedMs() + lock.ttlMs));
      }
    }
    this.#sweepAt(nextAtMs);
  }
}
