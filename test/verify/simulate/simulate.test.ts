import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { delegate } from "../../../src/testing/delegate.js";
import { MUTANTS, type Mutant, type MutantName } from "../../../src/testing.js";
import type { RuleId } from "../../../src/verify/check/check.js";
import type { History } from "../../../src/verify/check/history.js";
import { drawSchedule } from "../../../src/verify/simulate/draw-schedule.js";
import { simulate } from "../../../src/verify/simulate/run.js";
import type { MessageFault, Place, Schedule } from "../../../src/verify/simulate/schedule.js";
import { search, shortestFailure } from "../../../src/verify/simulate/search.js";
import { shorten } from "../../../src/verify/simulate/shorten.js";
import { runs } from "../../support/chance.js";

const RUNS = 200;
/** Enough for every mutant: each was found within 350 runs. */
const MUTANT_RUNS = 400;

test("the real core over the memory store breaks no promise, and all but L5 are tested", async () => {
  const { runs, checked, failure } = await search({ seed: 1, runs: RUNS });
  expect(failure).toBeNull();
  expect(runs).toBe(RUNS);
  const seen = [...checked].filter(([, count]) => count > 0).map(([rule]) => rule);
  expect(seen.join(" ")).toBe("S1 S2 S3 S4 S5 S6 S7 S8 S9 L1 L2 L3 L4 L6");
});

/** The rules by which each mutant can be found; the seed decides which comes first. */
const BREAKS: Record<MutantName, readonly RuleId[]> = {
  "delete without compare": ["S1", "S4"],
  "release that touches the successor": ["L4", "S1"],
  "token not atomic with the grant": ["S1", "S2", "S3"],
  "token that repeats": ["S2"],
  "token counter that expires": ["S2", "S3"],
  "handover past a waiter that the call answers": ["S1"],
  "a missing answer that counts as a renewal": ["S1", "S7"],
  "a missing answer that counts as a release": ["S5"],
  "surplus answers that answer the next batch": ["S1", "S2", "S4", "L6"],
  "a repeated ask that extends only locally": ["S1"],
  "obeys a renewal that was overtaken": ["S1"],
  // A waiter that was away for a ttl keeps its place: only the conformance suite sees that.
  "an expired ticket that a claim revives": [],
  barging: ["L4", "S1", "S3", "S8"],
  "readers that pass a waiting writer": ["L4", "S1", "S3", "S8"],
  // Too rare for this search; seed 706716 below shows it.
  "a handover to a shorter lease that no waiter is told of": [],
  "a floor that shuts out who still holds": ["S3"],
  "a semaphore that trusts the caller's limit": ["S1", "S3", "S8"],
  "resize that grants beyond the new limit": ["S8"],
  "forced release that gives the token again": ["S2"],
  "forced release that drops the queue": ["L4"],
  "forced release that a renewal undoes": ["S1", "S6"],
  // The core is immune to the first; the second is unkind, but breaks no promise that is checked
  // here: the conformance suite finds both.
  "forced release that a late ask undoes": [],
  "forced release of who comes next": [],
  "an unused grant that closes the name": ["S9"],
  "a release that opens the name before its time": ["S9"],
  "some of several names": ["S5"],
  "deadline counted from the reply": ["S1", "S7"],
  "deadline on the wall clock": ["S1", "S6", "S7", "L3"],
  "pushed grant without its sequence number": ["S1"],
  "fence that is not entered before the read": ["S3"],
};

describe("the simulator finds", () => {
  for (const [name, rules] of Object.entries(BREAKS)) {
    if (rules.length === 0) continue;
    test(`${name}, and shows it by a shortened run`, async () => {
      const mutant = MUTANTS[name as MutantName];
      const { failure } = await search({ seed: 1, runs: MUTANT_RUNS, mutant });
      expect(failure).not.toBeNull();
      expect(rules).toContain(failure!.verdict.rule);
      const shortest = await shortestFailure(failure!, mutant);
      expect(shortest.verdict).toMatchObject({
        rule: failure!.verdict.rule,
        verdict: "violated",
      });
      const { tasks, troubles } = shortest.outcome.schedule;
      const before = failure!.outcome.schedule;
      expect(tasks.length + troubles.length).toBeLessThan(
        before.tasks.length + before.troubles.length,
      );
    });
  }
});

test("the same seed gives the same run, event by event; another seed gives another", async () => {
  const [one, again, other] = [
    await simulate(drawSchedule(42)),
    await simulate(drawSchedule(42)),
    await simulate(drawSchedule(43)),
  ];
  expect(again).toEqual(one);
  expect(other.history).not.toEqual(one!.history);
});

test("acquireAll never deadlocks: with enough time and no fault, all calls are granted", async () => {
  let together = 0;
  for (let seed = 2; seed < 120; seed++) {
    const drawn = drawSchedule(seed);
    if (seed % 4 === 1 || drawn.names < 2) continue;
    const names = Array.from({ length: drawn.names }, (_, name) => name);
    const tasks = drawn.tasks.slice(0, 12).map((task, i) => ({
      client: task.client,
      name: i % drawn.names,
      // In one order, and in the opposite one.
      also: (i % 2 === 0 ? names : names.toReversed()).filter((name) => name !== i % drawn.names),
      atMs: 1_000 + (i % 4),
      shared: false,
      ttlMs: 4_000,
      waitMs: 100_000,
      holdMs: 200,
    }));
    const semaphores = names.map(() => 0);
    const { history, verdicts } = await simulate({ ...drawn, semaphores, tasks, troubles: [] });
    expect(verdicts.filter(({ verdict }) => verdict === "violated")).toEqual([]);
    const asked = history.filter(({ kind }) => kind === "asked");
    expect(history.filter(({ kind }) => kind === "granted")).toHaveLength(asked.length);
    // No client loses a name to another that waits.
    expect(history.filter(({ kind }) => kind === "lost" || kind === "not-granted")).toEqual([]);
    together += tasks.length;
  }
  expect(together).toBeGreaterThan(100);
});

test("a schedule is the same after it was written as JSON and read", () => {
  for (let seed = 0; seed < 200; seed++) {
    const schedule = drawSchedule(seed);
    expect(JSON.parse(JSON.stringify(schedule))).toEqual(schedule);
  }
});

test("every part that a schedule can have is drawn, and every fourth schedule has locks only", async () => {
  const drawn = Array.from({ length: 100 }, (_, seed) => drawSchedule(seed));
  const keys = new Set(drawn.flatMap(({ tasks }) => tasks.flatMap((task) => Object.keys(task))));
  for (const key of ["also", "permits", "limit", "terms", "atLeastMs", "renew"]) {
    expect(keys, key).toContain(key);
  }
  const kinds = new Set(drawn.flatMap(({ troubles }) => troubles.map(({ kind }) => kind)));
  expect(kinds).toContain("forces a release");
  expect(kinds).toContain("resizes a semaphore");
  expect(kinds).toContain("subscription is down");
  expect(kinds).toContain("machine frozen");
  expect(kinds).toContain("answers are missing");
  expect(kinds).toContain("answers are doubled");
  expect(kinds).toContain("store opens late");
  expect(drawn.some(({ traits }) => traits?.liveness === "session")).toBe(true);
  expect(drawn.some(({ traits }) => traits?.namesAtOnce === 1)).toBe(true);
  const graces = drawn.flatMap(({ troubles }) => troubles.filter((one) => "graceMs" in one));
  expect(graces).not.toEqual([]);
  // A clock that is corrected after a minute without requests.
  const isIdle = ({ tasks, troubles }: Schedule): boolean =>
    troubles.some(
      (one) =>
        one.kind === "store's wall clock jumps" &&
        one.byMs < -60_000 &&
        !tasks.some(({ atMs }) => atMs < one.fromMs && atMs >= one.fromMs - 60_000),
    );
  expect(drawn.filter(isIdle).length).toBeGreaterThan(1);
  const places = new Set(drawn.map(({ place }) => place));
  expect([...places].sort()).toEqual(["network", "polled", "process", "skipping", "ticketless"]);
  const plain = drawn.filter((_, seed) => seed % 4 === 1).flatMap(({ tasks }) => tasks);
  expect(plain.filter((task) => "also" in task || "permits" in task || "terms" in task)).toEqual(
    [],
  );
});

test("a core that never comes to rest, or rejects where it never may, is reported with its seed", async () => {
  const restless: Mutant = {
    runtime: (runtime) => ({
      ...runtime,
      clock: { ...runtime.clock, after: (_ms, run) => runtime.clock.after(0, run) },
    }),
  };
  const { failure } = await search({ seed: 3, runs: 5, mutant: restless });
  expect(failure?.verdict.why).toMatch(/^the run did not end: simulated time stands still/);
  expect(failure?.outcome.schedule.seed).toBe(3);
  const rejecting: Mutant = {
    store: () => (store) => ({
      ...delegate(store),
      close: () => Promise.reject(new Error("can't close")),
    }),
  };
  const rejected = await search({ seed: 3, runs: 1, mutant: rejecting });
  expect(rejected.failure?.verdict.why).toMatch(/can't close/);
});

/** One acquire, without anything else that a schedule may have. */
const task = { client: 0, name: 0, atMs: 0, shared: false, ttlMs: 1_000, waitMs: 9_000, holdMs: 0 };
const calm = { ...drawSchedule(1), names: 1, semaphores: [0], abortBefore: true, troubles: [] };

test("a waiter whose subscription is down is skipped, and goes on when it is back", async () => {
  const tasks = [
    { ...task, holdMs: 2_000 },
    { ...task, client: 1, atMs: 100, ttlMs: 4_000 },
    { ...task, client: 2, atMs: 200, holdMs: 100 },
  ];
  const down = { kind: "subscription is down", client: 1, fromMs: 1_000, toMs: 2_500 } as const;
  const grantsAt = async (place: Place): Promise<readonly string[]> => {
    const schedule = { ...calm, rates: [1, 1, 1], place, tasks, troubles: [down] };
    const { history, verdicts } = await simulate(schedule);
    expect(verdicts.filter(({ verdict }) => verdict === "violated")).toEqual([]);
    return history.flatMap((event) => (event.kind === "granted" ? [event.op] : []));
  };
  expect(await grantsAt("skipping")).toEqual(["op-0", "op-2", "op-1"]);
  expect(await grantsAt("network")).toEqual(["op-0", "op-1", "op-2"]);
});

/** The history of a schedule without troubles of its own, which must break no promise. */
async function historyOf(
  place: Place,
  tasks: Schedule["tasks"],
  troubles: Schedule["troubles"] = [],
): Promise<History> {
  const schedule = { ...calm, rates: [1, 1, 1], place, tasks, troubles };
  const { history, verdicts } = await simulate(schedule);
  expect(verdicts.filter(({ verdict }) => verdict === "violated")).toEqual([]);
  return history;
}

test.each(["polled", "ticketless"] as const)("waiters of a %s store poll", async (place) => {
  // A ticket of this ttl is renewed every 3 s: only a poll finds the grant earlier.
  const waits = { ...task, ttlMs: 10_000, holdMs: 100 };
  const tasks = [
    { ...task, holdMs: 2_000 },
    { ...waits, client: 1, atMs: 100 },
    { ...waits, client: 2, atMs: 200 },
  ];
  const history = await historyOf(place, tasks);
  const grants = history.filter((event) => event.kind === "granted");
  const tickets = history.flatMap((event) => (event.kind === "queued" ? [event.op] : []));
  const order = grants.map(({ op }) => op);
  // Without tickets, chance decides who is next.
  expect(place === "polled" ? order : order.toSorted()).toEqual(["op-0", "op-1", "op-2"]);
  expect(tickets).toEqual(place === "polled" ? ["op-1", "op-2"] : []);
  expect(grants.at(-1)!.atMs).toBeLessThan(3_500);
});

test.each(["network", "process"] as const)(
  'on a store at the place "%s" that opens late, a claim is granted when it is open',
  async (place) => {
    const late = { kind: "store opens late", client: 0, fromMs: 0, toMs: 3_000 } as const;
    const history = await historyOf(place, [task], [late]);
    const granted = history.find(({ kind }) => kind === "granted")!;
    expect(granted.atMs).toBeGreaterThan(3_000);
    expect(granted.atMs).toBeLessThan(4_000);
  },
);

test.each(["network", "process"] as const)(
  'on a store at the place "%s", a lease outlives batches with missing and with doubled answers',
  async (place) => {
    const long = { ...task, holdMs: 30_000 };
    const count = async (kind: MessageFault): Promise<Record<string, number>> => {
      const history = await historyOf(
        place,
        [long],
        [{ kind, client: 0, fromMs: 0, toMs: 60_000 }],
      );
      expect(history.filter((event) => event.kind === "lost")).toEqual([]);
      const of = (kind: string): number => history.filter((event) => event.kind === kind).length;
      // One for the grant, one for the release.
      return { extended: of("kept") - 2, received: of("renewed") };
    };
    const doubled = await count("answers are doubled");
    expect(doubled["received"]).toBe(doubled["extended"]);
    const missing = await count("answers are missing");
    expect(missing["received"]).toBeLessThan(missing["extended"]!);
  },
);

test("an acquire that is in flight when its locks are closed leaves nothing behind", async () => {
  const tasks = [{ ...task, atMs: 100, ttlMs: 10_000, holdMs: 9_000 }];
  for (const place of ["network", "skipping", "polled", "ticketless"] as const) {
    // By then the claim was sent, has arrived or got its reply, as chance has it.
    for (const fromMs of [100, 101, 102, 103, 104]) {
      const history = await historyOf(place, tasks, [{ kind: "closed", client: 0, fromMs }]);
      const ends = history.filter(({ kind }) => kind === "not-granted" || kind === "lost");
      expect(ends, `${place}, ${fromMs}`).toHaveLength(1);
      expect(history.filter(({ kind }) => kind === "seen")).toEqual([]);
    }
  }
});

test.each([
  [5_884, "a lease in doubt, on a machine that was frozen before its claim, was recorded as ended"],
  [706_716, "a waiter with a long ttl was not notified that the holder before it had a short one"],
  [900_195, "the timer of a grace outlived close() on a machine that had slept"],
  [1_001_804, "the wall clock was set back within a freeze, which hid the freeze"],
  [902_668, "maxHold ended within a freeze, and the machine read its clock after it"],
])("seed %i, in which %s, breaks no promise", async (seed) => {
  const { verdicts } = await simulate(drawSchedule(seed));
  expect(verdicts.filter(({ verdict }) => verdict === "violated")).toEqual([]);
});

test("clients of one process share its pauses and its end", async () => {
  const tasks = [
    { ...task, holdMs: 500 },
    { ...task, client: 1, atMs: 100, holdMs: 5_000 },
  ];
  const schedule = { ...calm, rates: [1, 1], place: "process", tasks } as const;
  const { history } = await simulate({
    ...schedule,
    troubles: [
      { kind: "paused", client: 1, fromMs: 200, toMs: 300 },
      { kind: "killed", client: 0, fromMs: 1_000 },
    ],
  });
  for (const kind of ["paused", "resumed", "killed"] as const) {
    const struck = history.flatMap((event) => (event.kind === kind ? [event.client] : []));
    expect(struck, kind).toEqual(["client-0", "client-1"]);
  }
  const grants = history.filter(({ kind }) => kind === "granted");
  expect(grants).toHaveLength(2);
});

test("a machine that was frozen for longer than abortBefore does not rely on its lease", async () => {
  const tasks = [{ ...task, ttlMs: 4_000, holdMs: 1_600 }];
  const frozen = { kind: "machine frozen", client: 0, fromMs: 300, toMs: 900 } as const;
  const { history, verdicts } = await simulate({
    ...calm,
    rates: [1],
    place: "network",
    tasks,
    troubles: [frozen],
  });
  expect(verdicts.filter(({ verdict }) => verdict === "violated")).toEqual([]);
  const checks = history.flatMap((event) => (event.kind === "looked" ? [event.held] : []));
  expect(checks).toEqual([false, true]);
});

test("a shortened run needs every part that is left", async () => {
  const schedule = drawSchedule(7);
  const wanted = [schedule.tasks[1]!, schedule.tasks[3]!];
  let tries = 0;
  const shortest = await shorten(schedule, async ({ tasks }) => {
    tries++;
    return wanted.every(({ atMs }) => tasks.some((task) => task.atMs === atMs));
  });
  expect(shortest.tasks.map(({ atMs }) => atMs)).toEqual(wanted.map(({ atMs }) => atMs));
  expect(shortest.troubles).toEqual([]);
  expect(tries).toBeLessThan(200);
});

test("a schedule stays within its limits, whatever the seed", () => {
  fc.assert(
    fc.property(fc.nat(), (seed) => {
      const { rates, tasks, troubles, names, semaphores } = drawSchedule(seed);
      expect(semaphores).toHaveLength(names);
      for (const task of tasks) {
        expect(task.client).toBeLessThan(rates.length);
        const asked = [task.name, ...(task.also ?? [])];
        expect(new Set(asked).size).toBe(asked.length);
        for (const name of asked) expect(name).toBeLessThan(names);
        if (task.permits !== undefined) {
          expect(task.permits).toBeLessThanOrEqual(semaphores[task.name]!);
        }
      }
      for (const trouble of troubles) {
        if ("toMs" in trouble) expect(trouble.toMs).toBeGreaterThan(trouble.fromMs);
      }
      // A lease allows for a drift of one in a hundred.
      for (const rate of rates) expect(Math.abs(rate - 1)).toBeLessThan(0.01);
    }),
    runs(),
  );
});

test("seed 706716 finds a handover to a shorter lease that no waiter is told of", async () => {
  const mutant = MUTANTS["a handover to a shorter lease that no waiter is told of"];
  const { verdicts } = await simulate(drawSchedule(706_716), mutant);
  const broken = verdicts.filter(({ verdict }) => verdict === "violated");
  expect(broken.map(({ rule }) => rule)).toEqual(["L1"]);
});

describe("a waiter with a long ttl behind a holder with a short one that was killed", () => {
  const tasks = [
    { ...task, ttlMs: 10_000, holdMs: 900 },
    { ...task, client: 1, atMs: 100, ttlMs: 500, holdMs: 9_000 },
    { ...task, client: 2, atMs: 200, ttlMs: 10_000, holdMs: 100 },
  ];
  const killed = { kind: "killed", client: 1, fromMs: 1_100 } as const;
  const grantedAtMs = (history: History): number =>
    history.find((event) => event.kind === "granted" && event.op === "op-2")!.atMs;

  test.each(["network", "skipping"] as const)(
    "is granted the name in time at the place %s",
    async (place) => {
      expect(grantedAtMs(await historyOf(place, tasks, [killed]))).toBeLessThan(1_700);
    },
  );

  test("is granted the name when it renews its ticket, if its push was lost", async () => {
    const down = { kind: "subscription is down", client: 2, fromMs: 800, toMs: 1_050 } as const;
    const lost = { ...down, kind: "pushes are lost" } as const;
    expect(grantedAtMs(await historyOf("network", tasks, [down, killed]))).toBeLessThan(1_700);
    expect(grantedAtMs(await historyOf("network", tasks, [lost, killed]))).toBeLessThan(4_000);
  });
});
