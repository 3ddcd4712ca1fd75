import type { Clock, StoreClock, Timer } from "../core/clock.js";

interface Pending {
  readonly atMs: number;
  readonly run: () => void;
}

/** Time that stands still until told to go on: deadlines are tested exactly, and in no time. */
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

  /** Timers that would still fire. */
  get timers(): number {
    return this.#pending.length;
  }

  /**
   * Lets time pass: every timer due fires at its own moment, and what follows from it happens first.
   * Counts from the call, so that of two which overlap, the longer one decides.
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

  /** Time passes and no timer runs: the event loop is stalled, or the process stopped. */
  stall(ms: number): void {
    this.#goTo(this.#elapsedMs + checkForward(ms));
  }

  /** The wall clock is set; elapsed time knows nothing of it. */
  jumpWall(ms: number): void {
    this.#wallMs += ms;
    if (ms > 0) this.#unexplainedMs += ms;
  }

  /** For a store that lives by the same clock. */
  forStore(): StoreClock {
    return { nowMs: () => this.#elapsedMs, wallMs: () => this.#wallMs };
  }

  /** Unless it is later already: a timer may stall, and advances may overlap. */
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

/** All promise callbacks that are ready have run after one turn of the event loop. */
function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
