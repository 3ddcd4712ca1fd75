import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { runs } from "../support/chance.js";
import { load } from "./load.js";

interface Spread {
  median: number;
  low: number;
  high: number;
}

const { quantile, median, spread, ratios, jain } = await load<{
  quantile(values: readonly number[], share: number): number;
  median(values: readonly number[]): number;
  spread(values: readonly number[]): Spread;
  ratios(values: readonly number[], yardstick: readonly number[] | undefined): Spread | undefined;
  jain(shares: readonly number[]): number;
}>("lib/statistics.mjs");

const values = fc.array(fc.double({ min: -1e6, max: 1e6, noNaN: true }), { minLength: 1 });
const shares = fc.array(fc.nat(1_000), { minLength: 1 });

describe("quantiles", () => {
  test("agree with values calculated by hand", () => {
    expect(median([3, 1, 2])).toBe(2);
    expect(median([4, 1, 3, 2])).toBe(2.5);
    expect(quantile([10, 20, 30, 40, 50], 0.25)).toBe(20);
    expect(quantile([10, 20], 0.99)).toBeCloseTo(19.9);
    expect(quantile([7], 0.99)).toBe(7);
    // Sorted as numbers, not as text.
    expect(median([9, 10, 100])).toBe(10);
    expect(median([])).toBeNaN();
  });

  test("rise with the share, within the values, whatever their order, and leave them unchanged", () => {
    fc.assert(
      fc.property(values, fc.double({ min: 0, max: 1, noNaN: true }), (all, share) => {
        const before = [...all];
        const q = quantile(all, share);
        expect(all).toEqual(before);
        expect(q).toBeGreaterThanOrEqual(Math.min(...all));
        expect(q).toBeLessThanOrEqual(Math.max(...all));
        expect(quantile([...all].reverse(), share)).toBe(q);
        expect(quantile(all, share / 2)).toBeLessThanOrEqual(q);
      }),
      runs(),
    );
  });

  test("give a spread as the median between the smallest and the largest", () => {
    expect(spread([5, 1, 9])).toEqual({ median: 5, low: 1, high: 9 });
  });

  test("give ratios within a round", () => {
    // Twice as slow in each round, though conditions changed tenfold.
    expect(ratios([2, 20], [1, 10])).toEqual({ median: 2, low: 2, high: 2 });
    expect(ratios([2, 20], undefined)).toBeUndefined();
  });
});

describe("Jain's index", () => {
  test("agrees with values calculated by hand", () => {
    expect(jain([5, 5, 5, 5])).toBe(1);
    expect(jain([12, 0, 0, 0])).toBe(0.25);
    expect(jain([1, 2, 3])).toBeCloseTo(36 / 42);
    expect(jain([0, 0])).toBe(0);
  });

  test("lies between 1/n and 1, and does not change with the scale", () => {
    fc.assert(
      fc.property(shares, fc.integer({ min: 1, max: 100 }), (all, factor) => {
        fc.pre(all.some((share) => share > 0));
        const index = jain(all);
        expect(index).toBeGreaterThan(1 / all.length - 1e-9);
        expect(index).toBeLessThan(1 + 1e-9);
        expect(jain(all.map((share) => share * factor))).toBeCloseTo(index, 9);
      }),
      runs(),
    );
  });
});
