import type { Clock, Timer } from "./clock.js";

/** How long work may go on while its `Locks` closes. */
export class Grace {
  readonly isOver: Promise<void>;
  readonly #clock: Clock;
  #endsAtMs = Number.POSITIVE_INFINITY;
  #timer: Timer | null = null;
  #end!: () => void;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.isOver = new Promise((resolve) => {
      this.#end = resolve;
    });
  }

  get remainingMs(): number {
    return Math.max(0, this.#endsAtMs - this.#clock.elapsedMs());
  }

  /** Shortens the grace; never lengthens it. */
  endWithin(ms: number): void {
    const endsAtMs = this.#clock.elapsedMs() + ms;
    // After the machine slept, the end may have passed though its timer has yet to fire: 0 cancels it too.
    if (endsAtMs >= this.#endsAtMs && ms > 0) return;
    this.#endsAtMs = Math.min(endsAtMs, this.#endsAtMs);
    this.#timer?.cancel();
    if (ms === 0) this.#end();
    else {
      this.#timer = this.#clock.after(ms, this.#end);
      this.#timer.keepAlive(true);
    }
  }
}
