import type { Clock } from "../../core/clock.js";
import type { Member } from "./member.js";

/** A number is ahead of all clocks by this, in µs, so that every node can record it. */
const AHEAD_MICROS = 1_000;
/** A node whose clock is further from the median than this part of maxTtl is left out. */
const SPREAD_PER_MAX_TTL = 1 / 8;

/** The numbers that a client proposes to the nodes: by their clocks, each higher than the one before. */
export class ProposedNumbers {
  readonly #members: readonly Member[];
  readonly #clock: Clock;
  readonly #spreadMicros: number;
  #last = 0;

  constructor(members: readonly Member[], clock: Clock, maxTtlMs: number) {
    this.#members = members;
    this.#clock = clock;
    this.#spreadMicros = maxTtlMs * 1_000 * SPREAD_PER_MAX_TTL;
  }

  /** 0 if no clock is known: the nodes then choose their own numbers, which costs another round. */
  next(): number {
    const ahead: number[] = [];
    for (const { aheadMicros } of this.#members) {
      if (aheadMicros !== null) ahead.push(aheadMicros);
    }
    ahead.sort((a, b) => a - b);
    const median = ahead[Math.floor(ahead.length / 2)];
    if (median === undefined) return 0;
    const highest = ahead.findLast((one) => one - median <= this.#spreadMicros)!;
    const number = Math.floor(this.#clock.elapsedMs() * 1_000 + highest) + AHEAD_MICROS;
    this.#last = Math.max(number, this.#last + 1);
    return this.#last;
  }
}
