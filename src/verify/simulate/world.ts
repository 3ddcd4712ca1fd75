import type { Random } from "../../core/random.js";
import { seededRandom } from "../../testing/seeded-random.js";

interface Pending {
  readonly atMs: number;
  readonly run: () => void;
}

/** More events than this at one moment are an endless loop. */
const MOST_AT_ONCE = 10_000;

/**
 * The time and the randomness of a simulation: one queue of events, which run one after another,
 * the same for the same seed.
 */
export class World {
  readonly #seed: number;
  /** By time, the latest first; events of the same time run in the order of their planning. */
  readonly #queue: Pending[] = [];
  #nowMs = 0;

  constructor(seed: number) {
    this.#seed = seed;
  }

  get nowMs(): number {
    return this.#nowMs;
  }

  at(atMs: number, run: () => void): void {
    const one = { atMs: Math.max(atMs, this.#nowMs), run };
    let low = 0;
    let high = this.#queue.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#queue[middle]!.atMs > one.atMs) low = middle + 1;
      else high = middle;
    }
    this.#queue.splice(low, 0, one);
  }

  /** A random source for each purpose, so that leaving one thing out of a schedule changes little for the others. */
  chance(of: string): Random {
    let hash = 0x811c9dc5 ^ this.#seed;
    for (let i = 0; i < of.length; i++) hash = Math.imul(hash ^ of.charCodeAt(i), 0x01000193);
    return seededRandom(Math.imul(hash ^ (hash >>> 15), 0x2c1b3c6d));
  }

  /**
   * Lets time pass until `untilMs`, or until `isDone()` is true. All consequences of one event are
   * over before the next.
   */
  async run(untilMs: number, isDone: () => boolean = () => false): Promise<void> {
    await settle();
    let still = 0;
    for (;;) {
      if (isDone()) return;
      const next = this.#queue.at(-1);
      if (next === undefined || next.atMs > untilMs) break;
      this.#queue.pop();
      still = next.atMs > this.#nowMs ? 0 : still + 1;
      if (still > MOST_AT_ONCE)
        throw new Error("simulated time stands still: events repeat for ever");
      this.#nowMs = next.atMs;
      next.run();
      await settle();
    }
    this.#nowMs = Math.max(this.#nowMs, untilMs);
  }
}

/** After one turn of the event loop, all promise callbacks that were ready have run. */
function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
