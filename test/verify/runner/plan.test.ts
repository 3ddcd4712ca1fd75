import { expect, test } from "vitest";
import { drawPlan, type Plan } from "../../../src/verify/runner/plan.js";
import { kindOf, paperTarget } from "./fakes.js";

const SEEDS = Array.from({ length: 200 }, (_, i) => i);
const OPTIONS = { workers: 3, forMs: 10_000, pace: 1, pauseMs: 15 };
/** After this share of a run nothing is injected. */
const CALM_FROM = 0.7;

const plansOf = (target = paperTarget(), options = OPTIONS): readonly Plan[] =>
  SEEDS.map((seed) => drawPlan(seed, target, options));

test("the same seed draws the same plan, and other seeds draw others", () => {
  const plans = plansOf();
  expect(plansOf()).toEqual(plans);
  const drawn = plans.map(({ faults, workers, names }) =>
    JSON.stringify({ faults, names, programs: workers.map(({ programs }) => programs.length) }),
  );
  expect(new Set(drawn).size).toBe(SEEDS.length);
});

test("a slower pace draws the same workers, names and faults, at scaled times", () => {
  const pace = 1.5;
  const slow = plansOf(paperTarget(), { ...OPTIONS, pace, forMs: OPTIONS.forMs * pace });
  for (const [seed, plan] of plansOf().entries()) {
    const other = slow[seed]!;
    expect(other.names).toEqual(plan.names);
    expect(other.workers.map(({ connections }) => connections)).toEqual(
      plan.workers.map(({ connections }) => connections),
    );
    expect(other.workers[0]!.programs[0]!.ttlsMs).toEqual(
      plan.workers[0]!.programs[0]!.ttlsMs.map((ttlMs) => ttlMs * pace),
    );
    // Two faults at about the same time may change places when their times are rounded.
    const bySeed = new Map(other.faults.map((one) => [one.seed, one]));
    expect(bySeed.size).toBe(plan.faults.length);
    for (const { seed, kind, worker, atMs, forMs } of plan.faults) {
      const scaled = bySeed.get(seed)!;
      expect([scaled.kind, scaled.worker]).toEqual([kind, worker]);
      expect(Math.abs(scaled.atMs - atMs * pace), kind).toBeLessThan(20);
      expect(Math.abs(scaled.forMs - forMs * pace), kind).toBeLessThan(2);
    }
    expect(other.interventions.map(({ does, name }) => [does, name])).toEqual(
      plan.interventions.map(({ does, name }) => [does, name]),
    );
  }
});

test("kinds that exclude each other are never drawn together, whichever of the two says so", () => {
  const kinds = [
    kindOf("clock jumps", { excludes: ["data lost"] }),
    kindOf("data lost"),
    kindOf("file moved", { excludes: ["clock jumps"] }),
  ];
  const drawn = plansOf(paperTarget({ kinds })).map(
    ({ faults }) => new Set(faults.map(({ kind }) => kind)),
  );
  for (const names of drawn) {
    if (names.has("clock jumps")) expect([...names]).toEqual(["clock jumps"]);
  }
  const seen = drawn.map((names) => [...names].sort().join(" + "));
  expect(seen).toEqual(expect.arrayContaining(["clock jumps", "data lost + file moved"]));
});

test.each([10_000, 3_000, 500])("every fault of a run of %i ms ends before its calm", (runMs) => {
  const plans = plansOf(paperTarget(), { ...OPTIONS, forMs: runMs });
  for (const { faults } of plans) {
    expect(faults.map(({ atMs }) => atMs)).toEqual(
      faults.map(({ atMs }) => atMs).sort((a, b) => a - b),
    );
    for (const { atMs, forMs, worker, kind } of faults) {
      expect(atMs, kind).toBeGreaterThanOrEqual(0);
      expect(atMs + forMs, kind).toBeLessThanOrEqual(CALM_FROM * runMs);
      expect([0, 1, 2]).toContain(worker);
    }
  }
  expect(plans.flatMap(({ faults }) => faults).length).toBeGreaterThan(50);
});

test("a fault lasts no longer than its kind allows, and a heavier kind is drawn more often", () => {
  const kinds = [
    kindOf("short", { lasts: { min: 0.1, max: 0.2 } }),
    kindOf("often", { weight: 5, lasts: { min: 1, max: 2 } }),
  ];
  const all = plansOf(paperTarget({ kinds })).flatMap(({ faults }) => faults);
  const times = (kind: string): readonly number[] =>
    all.filter((one) => one.kind === kind).map(({ forMs }) => forMs);
  expect(Math.min(...times("short"))).toBeGreaterThanOrEqual(100);
  expect(Math.max(...times("short"))).toBeLessThanOrEqual(200);
  expect(Math.min(...times("often"))).toBeGreaterThanOrEqual(1_000);
  expect(times("often").length).toBeGreaterThan(3 * times("short").length);
});

test("a fault of connections hits one worker, or all of them together; every other fault hits one", () => {
  const all = plansOf().flatMap(({ seed, faults }) =>
    faults.map((one) => ({ plan: seed, ...one })),
  );
  const hits = (isOfConnection: boolean): ReadonlySet<string> => {
    const some = all.filter(({ kind }) => kind.startsWith("connection") === isOfConnection);
    const together = new Map<string, number[]>();
    for (const { plan, kind, atMs, forMs, worker } of some) {
      const key = `${plan} ${kind} ${atMs} ${forMs}`;
      together.set(key, [...(together.get(key) ?? []), worker]);
    }
    return new Set([...together.values()].map((workers) => workers.join()));
  };
  expect([...hits(true)].sort()).toEqual(["0", "0,1,2", "1", "2"]);
  expect([...hits(false)].sort()).toEqual(["0", "1", "2"]);
});

test("a user's own store gets no interventions; a store of the lab gets some of both", () => {
  for (const { interventions } of plansOf(paperTarget({ isOurs: false }))) {
    expect(interventions).toEqual([]);
  }
  const plans = plansOf();
  const done = new Set(plans.flatMap(({ interventions }) => interventions.map(({ does }) => does)));
  expect([...done].sort()).toEqual(["force a release", "resize"]);
  for (const { interventions, names } of plans) {
    for (const { atMs, name, does } of interventions) {
      expect(atMs).toBeLessThanOrEqual(CALM_FROM * OPTIONS.forMs);
      const { permits } = names.find((one) => one.name === name)!;
      if (does === "resize") expect(permits).toBeGreaterThan(0);
    }
  }
});

test("on a user's store the rate is bounded, however many workers there are", () => {
  const rates = (workers: number, isOurs: boolean): readonly number[] =>
    SEEDS.map((seed) => {
      const options = { workers, forMs: 10_000, pace: 1 };
      const programs = drawPlan(seed, paperTarget({ isOurs }), options).workers.flatMap(
        (worker) => worker.programs,
      );
      // Each program pauses after every operation.
      return programs.reduce((sum, { pauseMs }) => sum + 1_000 / pauseMs, 0);
    });
  const mean = (all: readonly number[]) => all.reduce((a, b) => a + b, 0) / all.length;
  for (const workers of [2, 3, 16]) {
    expect(mean(rates(workers, false)), `${workers} workers`).toBeLessThan(35);
    expect(Math.max(...rates(workers, false)), `${workers} workers`).toBeLessThan(46);
  }
  expect(mean(rates(3, true))).toBeGreaterThan(300);
});

test("programs are told what the store refuses, and no semaphore is drawn where permits are refused", () => {
  const cannot = { permits: "no", "own-ttl": "no" };
  for (const { names, workers } of plansOf(paperTarget({ cannot }))) {
    expect(names.filter(({ permits }) => permits > 0)).toEqual([]);
    for (const { programs, ttlMs } of workers) {
      for (const one of programs) expect([...one.refuses!]).toEqual(["permits", "own-ttl"]);
      for (const one of programs) expect(one.ttlsMs).toEqual([ttlMs]);
    }
  }
});

test("in every third run the programs let most of their leases expire, and have more locks", () => {
  for (const { seed, workers, names } of plansOf()) {
    const shares = workers.flatMap(({ programs }) => programs.map((one) => one.expiringShare));
    const locks = names.filter((one) => one.permits === 0 && one.onceEveryMs === undefined);
    if (seed % 3 === 0) {
      for (const share of shares) expect(share).toBeGreaterThan(0.5);
      expect(locks.length).toBe(3);
    } else {
      for (const share of shares) expect(share).toBeUndefined();
      expect(locks.length).toBeLessThan(3);
    }
  }
});

test("a store without faults gets no faults", () => {
  for (const { faults } of plansOf(paperTarget({ kinds: [] }))) expect(faults).toEqual([]);
});

test("each Locks of a worker is used by a program, and each program has its own lane", () => {
  for (const { workers } of plansOf()) {
    const lanes = workers.flatMap(({ programs }) => programs.map(({ lane }) => lane));
    expect(new Set(lanes).size).toBe(lanes.length);
    for (const { connections, programs } of workers) {
      const locks = connections.reduce((sum, one) => sum + one.locks, 0);
      const used = new Set(programs.map(({ via }) => via));
      expect([...used].sort()).toEqual(Array.from({ length: locks }, (_, i) => i));
    }
  }
});
