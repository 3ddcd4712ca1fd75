import type { Clock, StoreClock, Timer } from "../core/clock.js";

interface Pending {
  readonly atMs: number;
  readonly run: () => void;
}

/** Time that stands still until told to go on: deadlines are tested exactly, and in no time. */
export class VirtualClock implements Clock {
  #elapsedMs = 1_000;
  #wallMs: number;
  #suspicions = 0;
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

  suspicions(): number {
    return this.#suspicions;
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

  /** Lets time pass: every timer due fires at its own moment, and what follows from it happens first. */
  async advance(ms: number): Promise<void> {
    const untilMs = this.#elapsedMs + ms;
    await settle();
    for (;;) {
      const next = this.#next(untilMs);
      if (next === undefined) break;
      this.#goTo(Math.max(this.#elapsedMs, next.atMs));
      this.#pending = this.#pending.filter((one) => one !== next);
      next.run();
      await settle();
    }
    this.#goTo(untilMs);
    await settle();
  }

  /** Time passes and no timer runs: the event loop is stalled, or the process stopped. */
  stall(ms: number): void {
    this.#goTo(this.#elapsedMs + ms);
  }

  /** The wall clock is set; elapsed time knows nothing of it. */
  jumpWall(ms: number): void {
    this.#wallMs += ms;
    if (ms > 0) this.#suspicions++;
  }

  /** For a store that lives by the same clock. */
  forStore(): StoreClock {
    return { nowMs: () => this.#elapsedMs, wallMs: () => this.#wallMs };
  }

  #goTo(elapsedMs: number): void {
    this.#wallMs += elapsedMs - this.#elapsedMs;
    this.#elapsedMs = elapsedMs;
  }

  #next(untilMs: number): Pending | undefined {
    let next: Pending | undefined;
    for (const one of this.#pending) {
      if (one.atMs <= untilMs && (next === undefined || one.atMs < next.atMs)) next = one;
    }
    return next;
  }
}

/** All promise callbacks that are ready have run after one turn of the event loop. */
function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
