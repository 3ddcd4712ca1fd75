import type { Clock } from "../../../core/clock.js";
import type { SessionClaims } from "./claims.js";
import { reconcile } from "./reconcile.js";
import { Session, SessionExpired, type SessionPort, type SessionProof } from "./session.js";

/** An idle session is kept for this long, so that the next acquire takes one round trip. */
const IDLE_MS = 60_000;
const CHECKS_PER_TTL = 6;
const LONGEST_CHECK_INTERVAL_MS = 10_000;

interface Entry<S> {
  readonly begun: Promise<S>;
  session: S | null;
}

/** The sessions of a store, one for each ttl: kept alive while they are needed, reconciled once per ttl. */
export class Sessions<Id, Proof extends SessionProof> {
  readonly #port: SessionPort<Id, Proof>;
  readonly #clock: Clock;
  readonly #claims: SessionClaims<Session<Id, Proof>>;
  /** The store rounds ttls up to a multiple of this. */
  readonly #ttlUnitMs: number;
  readonly #entries = new Map<number, Entry<Session<Id, Proof>>>();
  readonly #timers = new Set<NodeJS.Timeout>();
  readonly #usedAtMs = new WeakMap<Session<Id, Proof>, number>();
  #isClosed = false;

  constructor(
    port: SessionPort<Id, Proof>,
    clock: Clock,
    claims: SessionClaims<Session<Id, Proof>>,
    ttlUnitMs: number,
  ) {
    this.#port = port;
    this.#clock = clock;
    this.#claims = claims;
    this.#ttlUnitMs = ttlUnitMs;
  }

  /** A session with at least half of its ttl left, proved since `sinceMs`. */
  async use(ttlMs: number, sinceMs = Number.NEGATIVE_INFINITY): Promise<Session<Id, Proof>> {
    for (;;) {
      const session = await this.#beginOnce(this.#roundUp(ttlMs));
      if (this.#isFresh(session) && session.provedAtMs >= sinceMs) return session;
      try {
        await session.prove();
        return session;
      } catch (error) {
        if (!(error instanceof SessionExpired)) throw error;
        this.forget(session);
      }
    }
  }

  /** A session with at least half of its ttl left, if there is one already. */
  fresh(ttlMs: number): Session<Id, Proof> | null {
    const session = this.#entries.get(this.#roundUp(ttlMs))?.session ?? null;
    return session !== null && this.#isFresh(session) ? session : null;
  }

  /** Proves and reconciles the session now, as after an interruption. */
  async checkNow(id: Id): Promise<void> {
    for (const { session } of this.#entries.values()) {
      if (session?.id !== id) continue;
      try {
        await session.prove();
        await reconcile(session, this.#port, this.#claims);
      } catch (error) {
        if (error instanceof SessionExpired) this.forget(session);
      }
    }
  }

  /** The session has ended, or is no longer relied on: nothing is granted under it, and its holders lose their leases. */
  giveUp(id: Id): void {
    for (const { session } of [...this.#entries.values()]) {
      if (session?.id !== id) continue;
      this.forget(session);
      this.#claims.notifyOfEnd(session);
    }
  }

  /** Whether claims with this ttl belong under the session. */
  isFor(session: Session<Id, Proof>, ttlMs: number): boolean {
    return session.requestedTtlMs === this.#roundUp(ttlMs);
  }

  /** The next claim gets another session. */
  forget(session: Session<unknown>): void {
    session.markDead();
    const ttlMs = session.requestedTtlMs;
    // By now, another session may have its place.
    if (this.#entries.get(ttlMs)?.session === session) this.#entries.delete(ttlMs);
  }

  /** Ends all sessions, with everything under them. `forGood`: no other will begin. */
  async close(forGood: boolean): Promise<void> {
    this.#isClosed = forGood;
    for (const timer of this.#timers) clearTimeout(timer);
    const entries = [...this.#entries.values()];
    this.#entries.clear();
    await Promise.allSettled(entries.map(({ session }) => session?.end()));
  }

  #isFresh(session: Session<Id, Proof>): boolean {
    const nowMs = this.#clock.elapsedMs();
    this.#usedAtMs.set(session, nowMs);
    return !session.isDead && session.deadlineMs - nowMs > session.ttlMs / 2;
  }

  #roundUp(ttlMs: number): number {
    return Math.max(1, Math.ceil(ttlMs / this.#ttlUnitMs)) * this.#ttlUnitMs;
  }

  #beginOnce(ttlMs: number): Promise<Session<Id, Proof>> {
    if (this.#isClosed) return Promise.reject(new Error("the store is closed"));
    const there = this.#entries.get(ttlMs);
    if (there !== undefined) return there.begun;
    const begun = Session.begin(this.#port, this.#clock, ttlMs);
    const entry: Entry<Session<Id, Proof>> = { begun, session: null };
    this.#entries.set(ttlMs, entry);
    begun.then(
      (session) => {
        entry.session = session;
        if (this.#entries.get(ttlMs) === entry) this.#scheduleCheck(session, session.provedAtMs);
        // The sessions were closed while this one began.
        else session.end().catch(() => {});
      },
      () => {
        if (this.#entries.get(ttlMs) === entry) this.#entries.delete(ttlMs);
      },
    );
    return begun;
  }

  #scheduleCheck(session: Session<Id, Proof>, reconciledAtMs: number): void {
    if (this.#isClosed || session.isDead) return;
    const intervalMs = Math.min(session.ttlMs / CHECKS_PER_TTL, LONGEST_CHECK_INTERVAL_MS);
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      void this.#check(session, reconciledAtMs).then((atMs) => this.#scheduleCheck(session, atMs));
    }, intervalMs).unref();
    this.#timers.add(timer);
  }

  /** Ends the session if it is idle; otherwise proves and reconciles it when due. Returns when it was last reconciled. */
  async #check(session: Session<Id, Proof>, reconciledAtMs: number): Promise<number> {
    const nowMs = this.#clock.elapsedMs();
    const idleMs = nowMs - (this.#usedAtMs.get(session) ?? nowMs);
    try {
      if (!this.#claims.isUsing(session) && idleMs > Math.max(IDLE_MS, session.ttlMs)) {
        this.forget(session);
        await session.end();
        return nowMs;
      }
      // Usually, a renewal has proved the session already.
      if (session.deadlineMs - nowMs <= (session.ttlMs * 2) / 3) await session.prove();
      if (nowMs - reconciledAtMs < session.ttlMs) return reconciledAtMs;
      await reconcile(session, this.#port, this.#claims);
      return nowMs;
    } catch (error) {
      if (error instanceof SessionExpired) this.forget(session);
      return reconciledAtMs;
    }
  }
}
