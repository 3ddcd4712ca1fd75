import { expect, test } from "vitest";
import { drawQuorumSchedule } from "../../../src/verify/simulate/quorum/schedule.js";
import { simulate } from "../../../src/verify/simulate/run.js";
import { search } from "../../../src/verify/simulate/search.js";

const RUNS = 150;

test("the real quorum store over simulated nodes breaks no promise", async () => {
  const { runs, checked, failure } = await search({
    seed: 1,
    runs: RUNS,
    draw: drawQuorumSchedule,
  });
  expect(failure).toBeNull();
  expect(runs).toBe(RUNS);
  const seen = [...checked].filter(([, count]) => count > 0).map(([rule]) => rule);
  expect(seen.join(" ")).toBe("S1 S2 S3 S4 S5 S6 S7 S9 L1 L2 L3 L6");
});

test("the same seed gives the same run with a quorum", async () => {
  const [one, again] = [
    await simulate(drawQuorumSchedule(7)),
    await simulate(drawQuorumSchedule(7)),
  ];
  expect(again).toEqual(one);
});

test("every kind of fault is drawn", () => {
  const drawn = Array.from({ length: 100 }, (_, seed) => drawQuorumSchedule(seed));
  const kinds = new Set(drawn.flatMap(({ troubles }) => troubles.map(({ kind }) => kind)));
  for (const kind of [
    "node hangs",
    "node restarts",
    "node is flushed",
    "node forgets a record",
    "node's clock jumps",
    "messages arrive twice",
    "killed",
    "forces a release",
    "wall clock jumps",
  ]) {
    expect(kinds, kind).toContain(kind);
  }
  expect(drawn.some(({ nodes }) => nodes?.areNew)).toBe(true);
  expect(new Set(drawn.map(({ nodes }) => nodes?.clocks.length))).toEqual(new Set([3, 5]));
  for (const schedule of drawn) expect(JSON.parse(JSON.stringify(schedule))).toEqual(schedule);
});
