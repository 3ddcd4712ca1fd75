import type { Clock } from "../../core/clock.js";
import type { Push } from "../../core/store.js";
import type { Keys } from "./keys.js";
import type { Session } from "./session.js";
import type { Watched } from "./watched.js";

const SWEEP_EVERY_MS = 20;
/** Longer than a deletion is under way. */
const SWEPT_KEPT_MS = 60_000;
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** A claim that this store has made and not given up. There may be ten thousand: a class keeps them small. */
export class Kept {
  readonly name: string;
  readonly grantId: string;
  session: Session;
  /** `asked`: its answer is not known yet. */
  state: "asked" | "queued" | "held" = "asked";
  /** The last ask, and when it came. */
  seq: number;
  askedAtMs: number;
  push: (push: Push) => void;
  token = 0n;
  floor = 0n;
  /** When its key was last changed, as far as is known. */
  modRevision = 0n;
  /** On its way to another session; until that is known, its key may be under either. */
  moving = false;
  /** A move got no answer. */
  unsettled = false;
  /** The last move. */
  moved: Promise<unknown> | null = null;
  /** The watch that it waits by. */
  watching: Promise<Watched> | null = null;
  /** Its key was found to be gone. */
  gone = false;
  /** Another name of the same grantId. */
  also: Kept | undefined;

  constructor(name: string, grantId: string, session: Session, ask: Asked) {
    this.name = name;
    this.grantId = grantId;
    this.session = session;
    this.seq = ask.seq;
    this.askedAtMs = ask.askedAtMs;
    this.push = ask.push;
  }

  askAgain({ seq, askedAtMs, push }: Asked): void {
    if (seq > this.seq) {
      this.seq = seq;
      this.askedAtMs = askedAtMs;
    }
    this.push = push;
  }
}

export interface Asked {
  readonly seq: number;
  readonly askedAtMs: number;
  readonly push: (push: Push) => void;
}

/**
 * All that are kept. What is not in here is none of ours: it is deleted when it is met under a session
 * of ours.
 */
export class KeptClaims {
  readonly #clock: Clock;
  readonly #keys: Keys;
  readonly #hear: { dropped(kept: Kept): void; swept(keys: readonly string[]): void };
  /** By grantId; of several names, the first. */
  readonly #kept = new Map<string, Kept>();
  /** Not to be taken for strangers: the release would find nothing, and say that it was lost. */
  readonly #releasing = new Set<string>();
  /** Given up unasked, and when. */
  readonly #swept = new Map<string, number>();
  #timer: NodeJS.Timeout | undefined;
  #timerAtMs = Number.POSITIVE_INFINITY;

  constructor(
    clock: Clock,
    keys: Keys,
    hear: { dropped(kept: Kept): void; swept(keys: readonly string[]): void },
  ) {
    this.#clock = clock;
    this.#keys = keys;
    this.#hear = hear;
  }

  get isEmpty(): boolean {
    return this.#kept.size === 0;
  }

  get(name: string, grantId: string): Kept | undefined {
    let kept = this.#kept.get(grantId);
    while (kept !== undefined && kept.name !== name) kept = kept.also;
    return kept;
  }

  has(kept: Kept): boolean {
    return this.get(kept.name, kept.grantId) === kept;
  }

  *of(session: Session): Generator<Kept> {
    for (const kept of this.#all()) if (kept.session === session) yield kept;
  }

  /** Asked for the first time, or again. */
  keep(name: string, grantId: string, session: Session, ask: Asked): Kept {
    const there = this.get(name, grantId);
    if (there !== undefined && !there.session.isDead && !there.gone) {
      there.askAgain(ask);
      return there;
    }
    if (there !== undefined) this.drop(there);
    const kept = new Kept(name, grantId, session, ask);
    kept.also = this.#kept.get(grantId);
    this.#kept.set(grantId, kept);
    this.sweepIn(session.ttlMs);
    return kept;
  }

  drop(kept: Kept): void {
    const { grantId, also } = kept;
    const first = this.#kept.get(grantId);
    if (first !== kept) {
      for (let one = first; one !== undefined; one = one.also) {
        if (one.also === kept) one.also = also;
      }
    } else if (also === undefined) this.#kept.delete(grantId);
    else this.#kept.set(grantId, also);
    this.#hear.dropped(kept);
  }

  /** Whether it was given up unasked: its deletion may still be on the way. */
  wasSwept(name: string, grantId: string): boolean {
    return this.#swept.has(this.#keys.claim(name, grantId));
  }

  async whileReleasing<T>(keys: readonly string[], released: Promise<T>): Promise<T> {
    for (const key of keys) this.#releasing.add(key);
    try {
      return await released;
    } finally {
      for (const key of keys) this.#releasing.delete(key);
    }
  }

  /** A claim that is nobody's: given up while it was still on the way. */
  isStranger(name: string, grantId: string): boolean {
    const key = this.#keys.claim(name, grantId);
    return this.get(name, grantId) === undefined && !this.#releasing.has(key);
  }

  /** Looks then, at the latest, for what is no longer renewed. */
  sweepIn(ms: number): void {
    const atMs = this.#clock.elapsedMs() + ms;
    if (atMs >= this.#timerAtMs) return;
    clearTimeout(this.#timer);
    this.#timerAtMs = atMs;
    this.#timer = setTimeout(
      () => this.#sweep(),
      Math.min(Math.ceil(ms), LONGEST_TIMER_MS),
    ).unref();
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#timerAtMs = Number.POSITIVE_INFINITY;
  }

  /** What is not renewed any more runs out by itself elsewhere; under a session that lives on, it is deleted. */
  #sweep(): void {
    this.#timerAtMs = Number.POSITIVE_INFINITY;
    const nowMs = this.#clock.elapsedMs();
    let nextMs = Number.POSITIVE_INFINITY;
    const over: Kept[] = [];
    for (const kept of this.#all()) {
      const leftMs = kept.askedAtMs + kept.session.ttlMs - nowMs;
      if (leftMs <= 0) over.push(kept);
      else nextMs = Math.min(nextMs, leftMs);
    }
    for (const kept of over) this.drop(kept);
    const keys = over.map(({ name, grantId }) => this.#keys.claim(name, grantId));
    for (const [key, sweptAtMs] of this.#swept) {
      if (nowMs - sweptAtMs < SWEPT_KEPT_MS) break;
      this.#swept.delete(key);
    }
    for (const key of keys) this.#swept.set(key, nowMs);
    this.#hear.swept(keys);
    if (!this.isEmpty) this.sweepIn(Math.max(nextMs, SWEEP_EVERY_MS));
  }

  *#all(): Generator<Kept> {
    for (const first of this.#kept.values()) {
      for (let one: Kept | undefined = first; one !== undefined; one = one.also) yield one;
    }
  }
}
