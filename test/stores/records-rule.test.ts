import { expect, test } from "vitest";
import { type MeterTake, MOST_METER_PRODUCT } from "../../src/core/records.js";
import { type Meter, taken } from "../../src/stores/records-rule.js";
import { seededRandom } from "../../src/testing.js";
import { ruleRuns } from "../support/chance.js";

/** A meter in exact arithmetic: what was taken, in units × period, falls by `limit` in each µs. */
class ExactMeter {
  #takenTimesPeriod = 0n;
  #lastUs = 0;

  take({ units, limit, perUs, burst }: MeterTake, nowUs: number) {
    const [wanted, rate, per, most] = [units, limit, perUs, burst].map(BigInt) as [
      bigint,
      bigint,
      bigint,
      bigint,
    ];
    this.#takenTimesPeriod = atLeastZero(
      this.#takenTimesPeriod - BigInt(nowUs - this.#lastUs) * rate,
    );
    this.#lastUs = nowUs;
    const ceil = (a: bigint): number => Number((atLeastZero(a) + rate - 1n) / rate);
    const retryAfterUs = ceil(this.#takenTimesPeriod + (wanted - most) * per);
    if (retryAfterUs === 0) this.#takenTimesPeriod += wanted * per;
    return {
      allowed: retryAfterUs === 0,
      remaining: Number((most * per - this.#takenTimesPeriod) / per),
      retryAfterUs,
      fullInUs: ceil(this.#takenTimesPeriod),
    };
  }
}

const atLeastZero = (a: bigint): bigint => (a < 0n ? 0n : a);

test("a meter counts exactly, up to the largest numbers and for any number of takes", () => {
  const { runs, seed } = ruleRuns(100);
  let refused = 0;
  for (let run = 0; run < runs; run++) {
    const { unit } = seededRandom(seed + run);
    /** A whole number from 1 to `most`, of any size. */
    const draw = (most: number): number => Math.max(1, Math.floor(most ** unit()));
    const perUs = draw(2 ** 52);
    const limit = draw(MOST_METER_PRODUCT / perUs / 2);
    const burst = draw(MOST_METER_PRODUCT / perUs - limit);
    const exact = new ExactMeter();
    let meter: Meter | null = null;
    let nowUs = 1.9e15;
    for (let i = 0; i < 60; i++) {
      const units = unit() < 0.1 ? 0 : draw(burst);
      const take = { key: "key", units, limit, perUs, burst };
      const next = taken(meter, take, nowUs);
      const where = `seed ${seed + run}, step ${i}`;
      expect(next.answer, where).toEqual(exact.take(take, nowUs));
      const fullAtUs = Math.min(nowUs + next.answer.fullInUs, Number.MAX_SAFE_INTEGER);
      expect(next.meter?.fullAtUs ?? nowUs, where).toBe(fullAtUs);
      meter = next.meter;
      if (!next.answer.allowed) refused++;
      // Often just when it can succeed, or a moment before.
      const { retryAfterUs, fullInUs } = next.answer;
      const waitUs = [0, retryAfterUs, retryAfterUs - 1, fullInUs, draw(perUs)][
        Math.floor(unit() * 5)
      ]!;
      nowUs = Math.min(nowUs + Math.max(0, waitUs), 2 ** 53 - 1);
      if (nowUs > 2 ** 52) break;
    }
  }
  expect(refused).toBeGreaterThan(runs);
});

test("other numbers never make a meter emptier than empty, and never count beyond 2^53", () => {
  const { unit } = seededRandom(7);
  let meter: Meter | null = null;
  let nowUs = 1.9e15;
  for (let i = 0; i < 3_000; i++) {
    const perUs = Math.max(1, Math.floor((2 ** 50) ** unit()));
    const most = Math.floor(MOST_METER_PRODUCT / perUs);
    const limit = Math.max(1, Math.floor(unit() * (most - 1)));
    const burst = Math.max(1, most - limit);
    const units = Math.floor(unit() * (burst + 1));
    const { answer, meter: next } = taken(meter, { key: "", units, limit, perUs, burst }, nowUs);
    expect(answer.remaining).toBeGreaterThanOrEqual(0);
    expect(answer.remaining).toBeLessThanOrEqual(burst);
    expect(answer.fullInUs).toBeLessThanOrEqual(Math.ceil((burst * perUs) / limit));
    expect(answer.retryAfterUs).toBeLessThanOrEqual(Math.ceil((units * perUs) / limit));
    if (units === 0) expect(answer.allowed).toBe(true);
    expect(Object.values(next ?? {}).every(Number.isSafeInteger)).toBe(true);
    meter = next;
    // Now and then the clock is set back.
    nowUs += Math.floor((unit() - 0.3) * 2 ** (unit() * 30));
  }
});
