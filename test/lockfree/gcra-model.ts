/**
 * The generic cell rate algorithm by its textbook definition: one number, the theoretical arrival time. Times are
 * multiplied by the limit, so that nothing is rounded. Shares no code and no formula with the stores.
 */
export class GcraModel {
  readonly #limit: bigint;
  readonly #perUs: bigint;
  readonly #toleranceUs: bigint;
  /** Theoretical arrival time in µs, × limit. */
  #arrival = 0n;

  constructor(numbers: { limit: number; perUs: number; burst: number }) {
    this.#limit = BigInt(numbers.limit);
    this.#perUs = BigInt(numbers.perUs);
    this.#toleranceUs = BigInt(numbers.burst) * this.#perUs;
  }

  take(units: number, nowUs: bigint) {
    const now = nowUs * this.#limit;
    const before = this.#arrival > now ? this.#arrival : now;
    const after = before + BigInt(units) * this.#perUs;
    const early = after - this.#toleranceUs - now;
    const allowed = early <= 0n;
    this.#arrival = allowed ? after : before;
    return {
      allowed,
      remaining: Number((now + this.#toleranceUs - this.#arrival) / this.#perUs),
      retryAfterMs: allowed ? 0 : this.#toMs(early),
      fullInMs: this.#toMs(this.#arrival - now),
    };
  }

  /** Rounded up to whole microseconds, as the stores do. */
  #toMs(scaledUs: bigint): number {
    return Number((scaledUs + this.#limit - 1n) / this.#limit) / 1_000;
  }
}
