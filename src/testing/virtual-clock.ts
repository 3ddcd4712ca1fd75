import type { Clock, StoreClock, Timer } from "../core/clock.js";

interface Pending {
  readonly atMs: number;
  readonly run: () => void;
}

/** A clock that stands still until it is advanced: deadlines are tested exactly, without waiting. */
export class VirtualClock implements Clock {
  #elapsedMs = 1_000;
  #wallMs: number;
  #unexplainedMs = 0;
  #pending: Pending[] = [];

  constructor(wallMs = Date.UTC(2030, 0, 1)) {
    this.#wallMs = wallMs;
  }

  elapsedMs(): number {
    return this.#elapsedMs;
  }

  wallMs(): number {
    return this.#wallMs;
  }

  unexplainedMs(): number {
    return this.#unexplainedMs;
  }

  after(ms: number, run: () => void): Timer {
    const one: Pending = { atMs: this.#elapsedMs + Math.max(0, ms), run };
    this.#pending.push(one);
    return {
      cancel: () => {
        this.#pending = this.#pending.filter((other) => other !== one);
      },
      keepAlive: () => {},
    };
  }

  /** How many timers are pending. */
  get timers(): number {
    return this.#pending.length;
  }

  /**
   * Lets `ms` milliseconds pass. Each timer fires at its own moment, and its promise callbacks run
   * before the next timer. Two calls that overlap both count from their own start. Throws
   * `RangeError` if `ms` is negative.
   */
  async advance(ms: number): Promise<void> {
    const untilMs = this.#elapsedMs + checkForward(ms);
    await settle();
    for (;;) {
      const next = this.#next(untilMs);
      if (next === undefined) break;
      this.#goTo(next.atMs);
      this.#pending = this.#pending.filter((one) => one !== next);
      next.run();
      await settle();
    }
    this.#goTo(untilMs);
    await settle();
  }

  /** Lets time pass while no timer fires, like a stalled event loop or a stopped process. */
  stall(ms: number): void {
    this.#goTo(this.#elapsedMs + checkForward(ms));
  }

  /** Sets the wall clock ahead, or back if negative; elapsed time stays as it is. */
  jumpWall(ms: number): void {
    this.#wallMs += ms;
    if (ms > 0) this.#unexplainedMs += ms;
  }

  /** The same clock for a store. */
  forStore(): StoreClock {
    return { nowMs: () => this.#elapsedMs, wallMs: () => this.#wallMs };
  }

  /** Time never goes back: a timer may call `stall`, and calls of `advance` may overlap. */
  #goTo(elapsedMs: number): void {
    const passedMs = Math.max(0, elapsedMs - this.#elapsedMs);
    this.#wallMs += passedMs;
    this.#elapsedMs += passedMs;
  }

  #next(untilMs: number): Pending | undefined {
    let next: Pending | undefined;
    for (const one of this.#pending) {
      if (one.atMs <= untilMs && (next === undefined || one.atMs < next.atMs)) next = one;
    }
    return next;
  }
}

function checkForward(ms: number): number {
  if (ms >= 0) return ms;
  throw new RangeError(
    `${ms} ms can't pass: elapsed time never goes back; jumpWall sets the wall clock`,
  );
}

/** After one turn of the event loop, all promise callbacks that were ready have run. */
function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
