import fc from "fast-check";
import { expect, it } from "vitest";
import { Spans } from "../../../src/verify/check/spans.js";
import { runs } from "../../support/chance.js";

const spans = fc
  .array(fc.tuple(fc.nat(100), fc.nat(20)), { maxLength: 12 })
  .map((all) => all.map(([fromMs, forMs]) => ({ fromMs, toMs: fromMs + forMs })));

it("spans give the same replies as a check of each moment", () => {
  fc.assert(
    fc.property(spans, fc.nat(120), fc.nat(40), (all, fromMs, forMs) => {
      const merged = new Spans(all);
      const toMs = fromMs + forMs;
      const isIn = (atMs: number): boolean =>
        all.some((one) => one.fromMs <= atMs && atMs < one.toMs);
      const moments = Array.from({ length: forMs }, (_, i) => fromMs + i);
      expect(merged.coverMs(fromMs, toMs)).toBe(moments.filter(isIn).length);
      expect(merged.touches(fromMs, toMs)).toBe(
        all.some((one) => one.fromMs <= toMs && one.toMs >= fromMs),
      );
      for (const gap of merged.gaps()) {
        const middle = Math.max(-1, gap.fromMs) / 2 + Math.min(200, gap.toMs) / 2;
        expect(isIn(middle)).toBe(false);
      }
    }),
    runs(),
  );
});

it("a wait begins again after each span that touches it", () => {
  const merged = new Spans([
    { fromMs: 10, toMs: 20 },
    { fromMs: 24, toMs: 30 },
    { fromMs: 50, toMs: 60 },
  ]);
  expect(merged.graceAfter(0, 5)).toBe(5);
  expect(merged.graceAfter(5, 5)).toBe(35);
  expect(merged.graceAfter(5, 5, 1)).toBe(21);
  expect(merged.graceAfter(31, 5)).toBe(36);
  expect(new Spans([{ fromMs: 1, toMs: Number.POSITIVE_INFINITY }]).graceAfter(0, 5)).toBe(
    Number.POSITIVE_INFINITY,
  );
});
