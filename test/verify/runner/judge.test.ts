import { describe, expect, test } from "vitest";
import type { Excuse } from "../../../src/verify/check/check.js";
import type { History } from "../../../src/verify/check/history.js";
import { type Conduct, countRegisters, judge, merge } from "../../../src/verify/runner/judge.js";
import type { CheckId, CheckResult } from "../../../src/verify/runner/result.js";
import { asked, granted, releasing, TIGHT } from "../check/story.js";
import { checkOf } from "./fakes.js";

const GOOD: Conduct = {
  crashes: [],
  hung: [],
  left: [],
  roll: { asked: 3, failures: [], outages: 0 },
  commands: 10,
  workers: 3,
  isOurs: true,
};
const AROUND = { limits: TIGHT, excuses: [], lastedMs: 1_000, startMs: 0 };

/** Two holders at once from 20 to 50, and again from 200 to 250. */
const TWICE_BROKEN: History = [
  asked(0, "a"),
  granted(10, "a", 1, 100),
  asked(15, "b"),
  granted(20, "b", 2, 110),
  releasing(50, "a"),
  releasing(60, "b"),
  asked(150, "c"),
  granted(160, "c", 3, 300),
  asked(190, "d"),
  granted(200, "d", 4, 300),
  releasing(250, "c"),
  releasing(260, "d"),
];

const find = (checks: readonly CheckResult[], id: CheckId): CheckResult =>
  checks.find((one) => one.id === id)!;

const judged = (history: History, excuses: readonly Excuse[] = []): readonly CheckResult[] =>
  judge(history, GOOD, { ...AROUND, excuses });

describe("a violation", () => {
  test("without an excuse is reported with its evidence", () => {
    const s1 = find(judged(TWICE_BROKEN), "S1");
    expect(s1).toMatchObject({ verdict: "violated", expected: 0 });
    expect(s1.evidence).toEqual(expect.arrayContaining([TWICE_BROKEN[1], TWICE_BROKEN[3]]));
    expect(s1.promise).toMatch(/nobody else does/);
  });

  test("that lies within an excuse is expected, and counted", () => {
    const excuses: Excuse[] = [{ rules: ["S1"], fromMs: 0, toMs: 1_000 }];
    const s1 = find(judged(TWICE_BROKEN, excuses), "S1");
    expect(s1).toMatchObject({ verdict: "expected", expected: 2 });
    expect(s1.evidence).toEqual(expect.arrayContaining([TWICE_BROKEN[1], TWICE_BROKEN[3]]));
  });

  test("outside the excuse stays a violation; the excused one is counted beside it", () => {
    const excuses: Excuse[] = [{ rules: ["S1"], fromMs: 0, toMs: 100 }];
    const s1 = find(judged(TWICE_BROKEN, excuses), "S1");
    expect(s1).toMatchObject({ verdict: "violated", expected: 1 });
    expect(s1.evidence).toEqual(expect.arrayContaining([TWICE_BROKEN[7], TWICE_BROKEN[9]]));
  });

  test.each([
    [{ name: "name" }, { name: "other" }],
    [{ client: "b" }, { client: "e" }],
  ])("is excused for its own name or client alone: %o, not %o", (own, other) => {
    const excuse: Excuse = { rules: ["S1"], fromMs: 0, toMs: 100 };
    const s1 = (excuse: Excuse): CheckResult => find(judged(TWICE_BROKEN, [excuse]), "S1");
    expect(s1({ ...excuse, ...own })).toMatchObject({ verdict: "violated", expected: 1 });
    expect(s1({ ...excuse, ...other })).toMatchObject({ verdict: "violated", expected: 0 });
  });

  test("is not excused by an excuse for another rule", () => {
    const excuses: Excuse[] = [{ rules: ["S2", "L4"], fromMs: 0, toMs: 1_000 }];
    expect(find(judged(TWICE_BROKEN, excuses), "S1")).toMatchObject({
      verdict: "violated",
      expected: 0,
    });
  });
});

test("a rule with nothing to compare is unknown, and one that held says so", () => {
  const history = [asked(0, "a"), granted(10, "a", 1, 100), releasing(50, "a")];
  const checks = judged(history);
  expect(find(checks, "S3").verdict).toBe("unknown");
  expect(find(checks, "S7").verdict).not.toBe("violated");
  expect(find(checks, "P1")).toMatchObject({ verdict: "held", checked: 3 });
});

test("rules that need a quiet machine or a known number of waiters are left out", () => {
  const ids = judged(TWICE_BROKEN).map(({ id }) => id);
  expect(ids).not.toContain("L5");
  expect(ids).not.toContain("L6");
  expect(ids.slice(-5)).toEqual(["P1", "P2", "P3", "P4", "P5"]);
});

describe("the rules about a run's processes (P1 to P5)", () => {
  const conducted = (more: Partial<Conduct>, history: History = []): readonly CheckResult[] =>
    judge(history, { ...GOOD, ...more }, AROUND);

  test("hold when nothing of the kind was seen", () => {
    for (const id of ["P1", "P2", "P3", "P4", "P5"] as const) {
      expect(find(conducted({}), id).verdict).toBe("held");
    }
  });

  test.each([
    ["P1", { crashes: ["w1 ended by code 1", "w2 printed: no"] }, "w1 ended by code 1"],
    ["P2", { hung: ["w2's close()"] }, "w2's close() did not end in time"],
    ["P3", { left: ["a: 1 holders, 0 waiters"] }, "a: 1 holders, 0 waiters"],
    // 3 workers in a second, and no operation.
    ["P4", { commands: 301 }, "301 commands for 0 operations in 1000 ms"],
    ["P5", { roll: { asked: 3, failures: ["w1 could not"], outages: 0 } }, "w1 could not"],
  ] as const)("%s is violated by %j", (id, more, why) => {
    const checks = conducted(more);
    expect(find(checks, id)).toMatchObject({ verdict: "violated", why });
    const others = checks.filter((one) => one.id.startsWith("P") && one.id !== id);
    expect(others.map(({ verdict }) => verdict)).toEqual(["held", "held", "held", "held"]);
  });

  test("P3 and P5 are unknown where a store that is not ours could not be reached", () => {
    const roll = { asked: 3, failures: ["it is down"], outages: 1 };
    const checks = conducted({ left: null, roll, isOurs: false });
    expect(find(checks, "P3").verdict).toBe("unknown");
    expect(find(checks, "P5")).toMatchObject({ verdict: "unknown", why: "it is down" });
    expect(find(conducted({ roll }), "P5").verdict).toBe("violated");
    const none = { asked: 0, failures: [], outages: 0 };
    expect(find(conducted({ roll: none }), "P5").verdict).toBe("unknown");
  });

  test("P4 allows commands by operations and by time, and is unknown if nobody counts", () => {
    expect(find(conducted({ commands: 300 }), "P4").verdict).toBe("held");
    const history = [asked(0, "a"), asked(1, "b")];
    expect(find(conducted({ commands: 380 }, history), "P4").verdict).toBe("held");
    expect(find(conducted({ commands: 381 }, history), "P4").verdict).toBe("violated");
    expect(find(conducted({ commands: null }), "P4").verdict).toBe("unknown");
  });
});

describe("the checks of several runs", () => {
  test("are merged: a violation counts more than an expected one, and that more than held", () => {
    const held = checkOf("S1", { checked: 5 });
    const expected = checkOf("S1", { verdict: "expected", expected: 2, checked: 3, why: "fault" });
    const violated = checkOf("S1", { verdict: "violated", checked: 4, why: "first" });
    const later = checkOf("S1", { verdict: "violated", checked: 1, why: "second" });
    const merged = (...all: CheckResult[]): CheckResult =>
      find(merge(all.map((one) => [one])), "S1");
    expect(merged(held, expected, violated, later)).toMatchObject({
      verdict: "violated",
      checked: 13,
      expected: 2,
      why: "first",
    });
    expect(merged(held, expected)).toMatchObject({ verdict: "expected", checked: 8, why: "fault" });
    const unknown = checkOf("S1", { verdict: "unknown", checked: 0, why: "nothing seen" });
    expect(merged(unknown, held, held)).toMatchObject({
      verdict: "held",
      checked: 10,
      why: "held, compared 10 times",
    });
    expect(merged(unknown)).toMatchObject({ verdict: "unknown", why: "nothing seen" });
  });

  test("list every promise in order, also without a run", () => {
    const none = merge([]);
    expect(none.map(({ id }) => id)).toEqual(judged(TWICE_BROKEN).map(({ id }) => id));
    expect(new Set(none.map(({ verdict }) => verdict))).toEqual(new Set(["unknown"]));
    expect(none.every(({ promise }) => promise.length > 10)).toBe(true);
  });
});

describe("the counters that a run's workers write", () => {
  const at = { resource: "r", token: 1n, floor: 1n, accepted: true, atMs: 0 };
  const wrote = (step: number, read: number, more = {}) =>
    ({ kind: "wrote", op: `o${step}`, ...at, step, read, value: read + 1, ...more }) as const;
  const entered = (step: number, more = {}) =>
    ({ kind: "entered", op: `o${step}`, ...at, step, ...more }) as const;
  const unfenced = (read: number, found: number) =>
    ({
      kind: "wrote-unfenced",
      op: "o",
      atMs: 0,
      resource: "r",
      read,
      found,
      value: read + 1,
    }) as const;

  test("count writes, and those that did not know of the one before", () => {
    const history = [entered(1), wrote(2, 0), entered(3), wrote(4, 1), wrote(5, 1)];
    expect(countRegisters(history).fenced).toEqual({ writes: 3, lost: 1, refused: 0 });
  });

  test("are read in the order of the resource, each resource on its own", () => {
    const other = { resource: "other" };
    const history = [wrote(2, 1), wrote(1, 0), wrote(2, 4, other), wrote(1, 3, other)];
    expect(countRegisters(history).fenced).toEqual({ writes: 4, lost: 0, refused: 0 });
  });

  test("count nothing as lost when a missing step may be a write of a killed process", () => {
    expect(countRegisters([wrote(1, 0), wrote(3, 7)]).fenced.lost).toBe(0);
    expect(countRegisters([wrote(1, 0), entered(3), wrote(4, 7)]).fenced.lost).toBe(0);
    expect(countRegisters([wrote(1, 0), wrote(3, 7), wrote(4, 7)]).fenced.lost).toBe(1);
  });

  test("count a refusal of the fence, which changes nothing", () => {
    const no = { accepted: false };
    const history = [wrote(1, 0), wrote(2, 0, no), entered(3, no), wrote(4, 1)];
    expect(countRegisters(history).fenced).toEqual({ writes: 2, lost: 0, refused: 2 });
  });

  test("count, without a fence, writes that replaced a value that they had not read", () => {
    const history = [unfenced(0, 0), unfenced(1, 1), unfenced(1, 2)];
    expect(countRegisters(history)).toEqual({
      fenced: { writes: 0, lost: 0, refused: 0 },
      unfenced: { writes: 3, lost: 1, refused: 0 },
    });
  });
});
