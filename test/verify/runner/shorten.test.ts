import { describe, expect, test } from "vitest";
import { drawPlan, type Plan } from "../../../src/verify/runner/plan.js";
import type { CheckId } from "../../../src/verify/runner/result.js";
import {
  brokenBy,
  checkPick,
  decodePick,
  encodePick,
  pickFrom,
  shorten,
  wholeOf,
} from "../../../src/verify/runner/shorten.js";
import { outcomeOf, paperTarget, plannedFault } from "./fakes.js";

const SOON_MS = 60_000;

/** Four workers and eight faults, two for each worker. */
const PLAN: Plan = {
  ...drawPlan(1, paperTarget(), { workers: 4, forMs: 10_000, pace: 1, pauseMs: 15 }),
  faults: Array.from({ length: 8 }, (_, i) =>
    plannedFault(`fault ${i + 1}`, { worker: i % 4, atMs: i * 500 }),
  ),
  interventions: [
    { does: "force a release", atMs: 1_000, name: "a" },
    { does: "force a release", atMs: 6_000, name: "a" },
  ],
};

const namesOf = ({ faults }: Plan): readonly string[] => faults.map(({ kind }) => kind);
const clientsOf = ({ workers }: Plan): readonly string[] => workers.map(({ client }) => client);

describe("a selection from a plan", () => {
  test("can be written as text and read back", () => {
    const pick = { workers: [0, 2], faults: [1, 5], forMs: 4_200 };
    expect(encodePick(pick)).toBe("w1,w3,f2,f6,t4200");
    expect(decodePick("w1,w3,f2,f6,t4200")).toEqual(pick);
    expect(decodePick(" w1, w3 ,t10")).toEqual({ workers: [0, 2], faults: [], forMs: 10 });
    const whole = wholeOf(PLAN);
    expect(decodePick(encodePick(whole))).toEqual(whole);
    expect(pickFrom(PLAN, whole)).toEqual(PLAN);
  });

  test.each([
    "",
    "w1",
    "t100",
    "f1,t100",
    "w1,t0",
    "w1,t",
    "w,t100",
    "w-1,t100",
    "w1.5,t100",
    "x1,w1,t100",
    "w1,,t100",
    "w1 f1 t100",
    "w1,t12345678901",
    "w0,t100",
    "w1,f0,t100",
    "w1,t100,t200",
  ])("is not read from %j", (text) => {
    expect(decodePick(text)).toBeNull();
  });

  test.each([
    ["w1,w9,t100", "w9"],
    ["w1,f3,f9,t100", "f9"],
  ])("is refused if the plan lacks a part of it: %s", (text, part) => {
    expect(() => checkPick(PLAN, decodePick(text)!)).toThrow(
      `the pick names ${part}, but the run of seed 1 has 4 workers and 8 faults here`,
    );
    checkPick(PLAN, decodePick("w4,f8,t100")!);
  });

  test("has the faults of its workers only, under the workers' new numbers", () => {
    const plan = pickFrom(PLAN, { workers: [1, 3], faults: [0, 1, 3, 5], forMs: 10_000 });
    expect(clientsOf(plan)).toEqual(["w2", "w4"]);
    expect(plan.faults.map(({ kind, worker }) => [kind, worker])).toEqual([
      ["fault 2", 0],
      ["fault 4", 1],
      ["fault 6", 0],
    ]);
  });

  test("maps workers the same way whatever their order in the text", () => {
    const plan = pickFrom(PLAN, decodePick("w4,w2,w2,f2,f4,t10000")!);
    expect(clientsOf(plan)).toEqual(["w2", "w4"]);
    for (const { kind, worker } of plan.faults) {
      const client = kind === "fault 2" ? "w2" : "w4";
      expect(plan.workers[worker]!.client, kind).toBe(client);
    }
  });

  test("ends at the same place of the plan at any pace", () => {
    const paced = (pace: number): Plan => {
      const times = { workers: 4, forMs: 10_000 * pace, pace, pauseMs: 15 };
      return drawPlan(2, paperTarget(), times);
    };
    const pick = { ...wholeOf(paced(1)), forMs: 5_000 };
    const [quiet, busy] = [1, 3].map((pace) => pickFrom(paced(pace), pick));
    expect(quiet!.faults.length).toBeGreaterThan(0);
    expect(namesOf(busy!)).toEqual(namesOf(quiet!));
    expect(busy!.forMs).toBe(3 * quiet!.forMs);
    expect(wholeOf(paced(3))).toEqual(wholeOf(paced(1)));
  });

  test("ends early: no fault and no intervention comes after its time", () => {
    const plan = pickFrom(PLAN, { ...wholeOf(PLAN), forMs: 1_200 });
    expect(plan.forMs).toBe(1_200);
    expect(namesOf(plan)).toEqual(["fault 1", "fault 2", "fault 3"]);
    expect(plan.interventions).toHaveLength(1);
  });
});

/** A run that breaks these promises whenever all these faults and workers are in it. */
function breaksWith(
  faults: readonly string[],
  workers: readonly string[] = [],
  broken: readonly CheckId[] = ["S1"],
) {
  const repeated: Plan[] = [];
  const repeat = async (plan: Plan) => {
    repeated.push(plan);
    const isBroken =
      faults.every((one) => namesOf(plan).includes(one)) &&
      workers.every((one) => clientsOf(plan).includes(one));
    return outcomeOf(plan, isBroken ? broken : []);
  };
  return { repeat, repeated };
}

const inTime = (ms = SOON_MS) => ({ untilMs: performance.now() + ms });

describe("shortening a run that broke a promise", () => {
  test.each([
    [["fault 5"]],
    [["fault 1", "fault 8"]],
    [["fault 2", "fault 3", "fault 7"]],
    [[]],
    [PLAN.faults.map(({ kind }) => kind)],
  ])("finds exactly the faults that break it: %j", async (faults) => {
    const { repeat, repeated } = breaksWith(faults);
    const { pick, outcome, tries } = await shorten(PLAN, outcomeOf(PLAN, ["S1"]), repeat, inTime());
    expect(namesOf(pickFrom(PLAN, { ...pick, workers: [0, 1, 2, 3] }))).toEqual(faults);
    expect(brokenBy(outcome)).toEqual(["S1"]);
    expect(tries).toBe(repeated.length);
    // The last run that broke the promise is reported.
    expect(outcome.record.clients).toEqual(clientsOf(pickFrom(PLAN, pick)));
  });

  test("leaves out workers that are not needed, but keeps two", async () => {
    const some = await shorten(
      PLAN,
      outcomeOf(PLAN, ["S1"]),
      breaksWith(["fault 2"], ["w2", "w3", "w4"]).repeat,
      inTime(),
    );
    expect(some.pick.workers).toEqual([1, 2, 3]);
    const none = await shorten(PLAN, outcomeOf(PLAN, ["S1"]), breaksWith([]).repeat, inTime());
    expect(none.pick.workers).toHaveLength(2);
  });

  test("ends the run soon after the event that showed the violation", async () => {
    const { repeat, repeated } = breaksWith(["fault 1"]);
    const { pick } = await shorten(PLAN, outcomeOf(PLAN, ["S1"], 2_000), repeat, inTime());
    expect(pick.forMs).toBe(3_500);
    expect(repeated.every(({ forMs }) => forMs === 3_500)).toBe(true);
  });

  test("keeps the whole time when the violation needs it", async () => {
    const repeat = async (plan: Plan) => outcomeOf(plan, plan.forMs > 5_000 ? ["S1"] : []);
    const { pick } = await shorten(PLAN, outcomeOf(PLAN, ["S1"], 2_000), repeat, inTime());
    expect(pick).toMatchObject({ faults: [], forMs: 10_000 });
  });

  test("keeps only runs that break one of the same promises", async () => {
    const { repeat } = breaksWith([], [], ["L1"]);
    const failed = outcomeOf(PLAN, ["S1"]);
    const { pick, outcome } = await shorten(PLAN, failed, repeat, inTime());
    expect(pick).toEqual(wholeOf(PLAN));
    expect(outcome).toBe(failed);
  });

  test("tries each part twice, and ends also if the run never breaks a promise again", async () => {
    const failed = outcomeOf(PLAN, ["S1"], 2_000);
    const reported: number[] = [];
    let repeated = 0;
    const repeat = async (plan: Plan) => {
      repeated++;
      return outcomeOf(plan, []);
    };
    const shortened = await shorten(PLAN, failed, repeat, {
      ...inTime(),
      onTry: (tries) => reported.push(tries),
    });
    expect(shortened.pick).toEqual(wholeOf(PLAN));
    expect(shortened.outcome).toBe(failed);
    expect(shortened.tries).toBe(repeated);
    expect(reported).toEqual(Array.from({ length: repeated }, (_, i) => i + 1));
    // The time first, then faults by fours, twos and ones, then workers.
    expect(repeated).toBe(2 * (1 + 2 + 4 + 8 + 4));
  });

  test("works also with a run that breaks only every second time", async () => {
    const { repeat } = breaksWith(["fault 3"]);
    let turn = 0;
    const moody = (plan: Plan) =>
      ++turn % 2 === 0 ? repeat(plan) : Promise.resolve(outcomeOf(plan, []));
    const { pick } = await shorten(PLAN, outcomeOf(PLAN, ["S1"]), moody, inTime());
    expect(pick.faults).toEqual([2]);
  });

  test("ends when the servers do not recover, or with Ctrl-C, whose run proves nothing", async () => {
    const { repeat, repeated } = breaksWith([]);
    const failed = outcomeOf(PLAN, ["S1"], 2_000);
    const canGoOn = () => repeated.length < 1;
    const broken = await shorten(PLAN, failed, repeat, { ...inTime(), canGoOn });
    expect(broken).toMatchObject({ tries: 1, pick: { forMs: 3_500 } });
    const stop = new AbortController();
    const stopped = (plan: Plan) => {
      stop.abort();
      return repeat(plan);
    };
    const down = await shorten(PLAN, failed, async () => null, {
      ...inTime(),
      canGoOn: () => false,
    });
    expect(down).toMatchObject({ pick: wholeOf(PLAN), outcome: failed });
    const { signal } = stop;
    const aborted = await shorten(PLAN, failed, stopped, { ...inTime(), signal });
    expect(aborted).toMatchObject({ tries: 1, pick: wholeOf(PLAN), outcome: failed });
  });

  test("ends when its time is over, with the shortest run so far", async () => {
    const { repeat, repeated } = breaksWith(["fault 8"]);
    const isOver = inTime(0);
    const failed = outcomeOf(PLAN, ["S1"], 2_000);
    expect(await shorten(PLAN, failed, repeat, isOver)).toMatchObject({ tries: 0 });
    expect(repeated).toEqual([]);
    const bound = { untilMs: performance.now() + 30 };
    const slowly = async (plan: Plan) => {
      while (performance.now() < bound.untilMs) await new Promise((soon) => setTimeout(soon, 5));
      return repeat(plan);
    };
    const { pick, tries } = await shorten(PLAN, outcomeOf(PLAN, ["S1"]), slowly, bound);
    expect(tries).toBe(1);
    expect(pick.faults).toEqual([4, 5, 6, 7]);
  });
});
