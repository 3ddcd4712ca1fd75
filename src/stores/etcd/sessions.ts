import type { Clock } from "../../core/clock.js";
import type { Keys } from "./keys.js";
import type { EtcdClient } from "./rpc/client.js";
import { Session, SessionDead } from "./session.js";

/** One that nobody needs is kept for so long: the next acquire takes one round trip. */
const IDLE_MS = 60_000;
/** How often in a ttl it is looked after. */
const LOOKS = 6;
const LONGEST_PAUSE_MS = 10_000;

export interface Upkeep {
  /** Whether something stands under it. */
  isNeeded(session: Session): boolean;
  /** Once per ttl. */
  reconcile(session: Session): Promise<void>;
  /** A session has begun, or another member or leader has answered: the cluster may have changed. */
  another(): void;
}

/** The sessions of a store, one for each ttl. */
export class Sessions {
  readonly #client: EtcdClient;
  readonly #clock: Clock;
  readonly #keys: Keys;
  readonly #upkeep: Upkeep;
  readonly #sessions = new Map<number, { begun: Promise<Session>; session: Session | null }>();
  readonly #timers = new Set<NodeJS.Timeout>();
  readonly #usedAtMs = new WeakMap<Session, number>();
  #closed = false;

  constructor(client: EtcdClient, clock: Clock, keys: Keys, upkeep: Upkeep) {
    this.#client = client;
    this.#clock = clock;
    this.#keys = keys;
    this.#upkeep = upkeep;
  }

  /** One that lives for half of its ttl at least, and was proved since then. */
  async use(ttlMs: number, sinceMs = Number.NEGATIVE_INFINITY): Promise<Session> {
    for (;;) {
      const session = await this.#of(secondsOf(ttlMs));
      const nowMs = this.#clock.elapsedMs();
      this.#usedAtMs.set(session, nowMs);
      const isGood = session.deadlineMs - nowMs > session.ttlMs / 2;
      if (isGood && session.provedAtMs >= sinceMs && !session.isDead) return session;
      try {
        await session.prove();
        return session;
      } catch (error) {
        if (!(error instanceof SessionDead)) throw error;
        this.forget(session);
      }
    }
  }

  /** The next who asks gets another. */
  forget(session: Session): void {
    session.die();
    // There may be another by now.
    if (this.#sessions.get(session.ttlS)?.session === session) this.#sessions.delete(session.ttlS);
  }

  /** Ends them all: what is left under them goes. `forGood`: there will be no others. */
  async close(forGood: boolean): Promise<void> {
    this.#closed = forGood;
    for (const timer of this.#timers) clearTimeout(timer);
    const sessions = [...this.#sessions.values()];
    this.#sessions.clear();
    await Promise.allSettled(sessions.map(({ session }) => session?.end()));
  }

  #of(ttlS: number): Promise<Session> {
    if (this.#closed) return Promise.reject(new Error("the store is closed"));
    const there = this.#sessions.get(ttlS);
    if (there !== undefined) return there.begun;
    const begun = Session.begin(this.#client, this.#clock, this.#keys, ttlS, () =>
      this.#upkeep.another(),
    );
    const entry: { begun: Promise<Session>; session: Session | null } = { begun, session: null };
    this.#sessions.set(ttlS, entry);
    begun.then(
      (session) => {
        entry.session = session;
        if (this.#sessions.get(ttlS) === entry) this.#lookAfter(session, session.provedAtMs);
        else session.end().catch(() => {});
      },
      () => {
        if (this.#sessions.get(ttlS) === entry) this.#sessions.delete(ttlS);
      },
    );
    return begun;
  }

  #lookAfter(session: Session, reconciledAtMs: number): void {
    if (this.#closed || session.isDead) return;
    const pauseMs = Math.min(session.ttlMs / LOOKS, LONGEST_PAUSE_MS);
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      void this.#look(session, reconciledAtMs).then((at) => this.#lookAfter(session, at));
    }, pauseMs).unref();
    this.#timers.add(timer);
  }

  /** When it was last reconciled. */
  async #look(session: Session, reconciledAtMs: number): Promise<number> {
    const nowMs = this.#clock.elapsedMs();
    const needed = this.#upkeep.isNeeded(session);
    const idleMs = nowMs - (this.#usedAtMs.get(session) ?? nowMs);
    try {
      if (!needed && idleMs > Math.max(IDLE_MS, session.ttlMs)) {
        this.forget(session);
        await session.end();
        return nowMs;
      }
      // Whoever renews has proved it already, as a rule.
      if (nowMs - session.provedAtMs >= session.ttlMs / 3) await session.prove();
      if (nowMs - reconciledAtMs < session.ttlMs) return reconciledAtMs;
      await this.#upkeep.reconcile(session);
      return nowMs;
    } catch (error) {
      if (error instanceof SessionDead) this.forget(session);
      return reconciledAtMs;
    }
  }
}

/** etcd counts in seconds. */
export const secondsOf = (ms: number): number => Math.max(1, Math.ceil(ms / 1_000));
