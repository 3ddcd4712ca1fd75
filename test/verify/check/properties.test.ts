import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { checkHistory, RULES, type RuleId } from "../../../src/verify/check/check.js";
import { decodeHistory, encodeHistory } from "../../../src/verify/check/encode.js";
import type { Event, EventOf, History } from "../../../src/verify/check/history.js";
import { runs } from "../../support/chance.js";
import { type Action, plans, runModel } from "./model.js";
import {
  asked,
  counted,
  entered,
  expectShortest,
  granted,
  healed,
  injected,
  judge,
  killed,
  later,
  left,
  looked,
  notGranted,
  queued,
  released,
  releasing,
  SHARED,
  seen,
  TIGHT,
} from "./story.js";

const RUNS = runs(150);
const LIMITS = { ...TIGHT, healMs: 100, freeMs: 20, complete: true };
const ALL = Object.keys(RULES) as RuleId[];

const kinds = (history: History): readonly string[] =>
  checkHistory(history, LIMITS).map(({ rule, verdict }) => `${rule} ${verdict}`);

/** A reader waits, and pauses before it receives its grant; the next reader is granted beside it. */
const UNHEARD: readonly (readonly [number, Action])[] = [
  [0, { do: "ask", client: 0, name: 1, shared: false, waitMs: 0 }],
  [0, { do: "ask", client: 3, name: 1, shared: true, waitMs: Number.POSITIVE_INFINITY }],
  [1, { do: "pause", client: 3 }],
  [0, { do: "release", client: 0 }],
  [1, { do: "ask", client: 0, name: 1, shared: true, waitMs: 0 }],
];

describe("a correct lock, as a model plays it", () => {
  it.each<[string, readonly [number, Action]]>([
    ["is revoked", [3, { do: "revoke", name: 1 }]],
    ["runs out", [60, { do: "see" }]],
  ])("is not accused when a grant that its client did not receive %s", (_, end) => {
    const history = runModel([...UNHEARD, end]);
    const grants = history.flatMap((event) => (event.kind === "granted" ? [event.op] : []));
    expect(grants).toEqual(["op-1", "op-3", "op-2"]);
    expect(judge("L4", history, LIMITS).verdict).toBe("ok");
  });

  it("is never accused", () => {
    fc.assert(
      fc.property(plans, (plan) => {
        const verdicts = checkHistory(runModel(plan), LIMITS);
        expect(verdicts.filter(({ verdict }) => verdict === "violated")).toEqual([]);
      }),
      runs(400),
    );
  });

  it("is judged by every rule that the model has events for", () => {
    const judged = new Set<string>();
    for (const plan of fc.sample(plans, { numRuns: 100, seed: 1 })) {
      for (const kind of kinds(runModel(plan))) judged.add(kind);
    }
    const silent = ALL.filter((rule) => !judged.has(`${rule} ok`));
    // The model counts no commands, releases nothing after a deadline, and closes nothing.
    expect(silent).toEqual(["S4", "S9", "L5"]);
  });
});

/** For each rule, events that break it after everything else is over, at a name of the model's. */
const PLANTS: Record<RuleId, (atMs: number, token: number) => readonly Event[]> = {
  S1: (at, token) => [
    planted(at, "x"),
    granted(at + 1, "x", token, at + 90),
    planted(at + 2, "y"),
    granted(at + 89, "y", token + 1, at + 180),
  ],
  S2: (at, token) => [
    planted(at, "x"),
    granted(at + 1, "x", token, at + 90),
    releasing(at + 2, "x"),
    planted(at + 3, "y"),
    granted(at + 4, "y", token, at + 90),
  ],
  S3: (at, token) => [
    entered(10_001, "x", token + 1, { resource: "one", atMs: at }),
    entered(10_002, "y", token, { resource: "one", atMs: at }),
  ],
  S4: (at, token) => [
    planted(at, "x"),
    granted(at + 1, "x", token, at + 90),
    planted(at + 2, "y"),
    granted(at + 100, "y", token + 1, at + 190),
    releasing(at + 110, "x"),
    released(at + 111, "x"),
  ],
  S5: (at) => [
    planted(at, "x"),
    notGranted(at + 50, "x", "unknown"),
    { ...seen(at + 500, { holders: ["x"] }), name: "one" } as Event,
  ],
  S6: (at, token) => [planted(at, "x"), granted(at + 1, "x", token, at + 90), later(at + 500)],
  S7: (at, token) => [planted(at, "x"), granted(at + 1, "x", token, at + 90), looked(at + 91, "x")],
  S8: (at, token) => [
    planted(at, "x", SHARED),
    granted(at + 1, "x", token, at + 90),
    planted(at + 2, "y"),
    granted(at + 3, "y", token + 1, at + 90),
  ],
  S9: (at, token) => [
    planted(at, "x", { atLeastMs: 500 }),
    granted(at + 1, "x", token, at + 90),
    releasing(at + 2, "x"),
    planted(at + 3, "y"),
    granted(at + 499, "y", token + 1, at + 590),
  ],
  L1: (at, token) => [
    planted(at, "x"),
    granted(at + 1, "x", token, at + 90),
    planted(at + 2, "y"),
    killed(at + 3, "x"),
    later(at + 200),
  ],
  L2: (at) => [injected(at), planted(at + 1, "y"), healed(at + 2), later(at + 200)],
  L3: (at) => [left(at, 1)],
  L4: (at, token) => [
    planted(at, "x"),
    queued(at + 1, "x"),
    planted(at + 2, "y"),
    granted(at + 3, "y", token, at + 90),
    releasing(at + 4, "y"),
    granted(at + 5, "x", token + 1, at + 90),
  ],
  L5: (at) => [counted(at, 1, 10, 20), counted(at + 1, 100, 10, 2_000)],
  L6: (at, token) => [
    planted(at + 2_000, "x"),
    granted(at + 2_001, "x", token, at + 2_090),
    looked(at + 2_002, "x", false),
  ],
};

const planted = (atMs: number, op: string, more = {}): Event =>
  asked(atMs, op, { name: "one", ...more });

const lastMs = (history: History): number => history.at(-1)!.atMs;
const highest = (history: History): number =>
  Math.max(100, ...history.map((event) => ("token" in event ? Number(event.token) : 0)));

describe("a fault that is planted in a history", () => {
  it.each(ALL)(
    "is found, whatever else happened, and the evidence is that fault alone: %s",
    (rule) => {
      fc.assert(
        fc.property(plans, (plan) => {
          const history = runModel(plan);
          const plant = PLANTS[rule](lastMs(history) + 1_000, highest(history) + 1);
          const verdict = judge(rule, [...history, ...plant], LIMITS);
          expect(verdict.verdict).toBe("violated");
          expect(verdict.evidence.filter((event) => !plant.includes(event))).toEqual([]);
          expectShortest(verdict, LIMITS);
        }),
        runs(25),
      );
    },
  );

  it("is found in the middle: a second holder beside each that holds alone", () => {
    fc.assert(
      fc.property(plans, fc.nat(), (plan, which) => {
        const history = runModel(plan);
        const alone = history.filter(
          (event): event is EventOf<"granted"> =>
            event.kind === "granted" && askOf(history, event.op).permits > 1,
        );
        if (alone.length === 0) return;
        const holder = alone[which % alone.length]!;
        const place = history.indexOf(holder) + 1;
        const next = history.slice(place).find((event) => isOfLease(history, event, holder));
        // A lease that is released in the moment of its grant leaves no time for a second holder.
        if (next === undefined || next.atMs === holder.atMs) return;
        const { name } = askOf(history, holder.op);
        const atMs = holder.atMs + 0.5;
        // It may have been revoked by then: nobody can tell.
        const isDoubtful = history.some(
          (event) => event.kind === "revoked" && event.op === holder.op && event.sinceMs <= atMs,
        );
        if (isDoubtful) return;
        const second = [
          asked(atMs, "second", { name }),
          granted(atMs, "second", highest(history) + 1, atMs + 100),
        ];
        const verdict = judge("S1", [...history, ...second], LIMITS);
        expect(verdict.verdict).toBe("violated");
        expectShortest(verdict, LIMITS);
      }),
      RUNS,
    );
  });

  it("is found in the middle: a token that is given again", () => {
    fc.assert(
      fc.property(plans, fc.nat(), (plan, which) => {
        const history = runModel(plan);
        const grants = history.filter((event) => event.kind === "granted");
        const byName = groupBy(grants, ({ op }) => askOf(history, op).name);
        const pairs = [...byName.values()].flatMap((all) =>
          all.slice(1).map((b, i) => [all[i]!, b]),
        );
        if (pairs.length === 0) return;
        const [first, second] = pairs[which % pairs.length]! as [
          EventOf<"granted">,
          EventOf<"granted">,
        ];
        const broken = history.with(history.indexOf(second), { ...second, token: first.token });
        const verdict = judge("S2", broken, LIMITS);
        expect(verdict.verdict).toBe("violated");
        expectShortest(verdict, LIMITS);
      }),
      RUNS,
    );
  });

  it("is found in the middle: a loss of which nobody is notified", () => {
    fc.assert(
      fc.property(plans, fc.nat(), (plan, which) => {
        const history = runModel(plan);
        // A client that dies soon after need not be notified.
        const mortal = new Set(
          history.flatMap((event) => (event.kind === "killed" ? [event.client] : [])),
        );
        const losses = history.filter(
          (event): event is EventOf<"lost"> =>
            event.kind === "lost" && !mortal.has(askOf(history, event.op).client),
        );
        if (losses.length === 0) return;
        const silent = losses[which % losses.length]!;
        const verdict = judge(
          "S6",
          history.filter((event) => event !== silent),
          LIMITS,
        );
        expect(verdict.verdict).toBe("violated");
        expectShortest(verdict, LIMITS);
      }),
      RUNS,
    );
  });

  it("is found in the middle: a write by a holder that was fenced out", () => {
    fc.assert(
      fc.property(plans, fc.nat(), (plan, which) => {
        const history = runModel(plan);
        const refused = history.filter((event) => event.kind === "entered" && !event.accepted);
        if (refused.length === 0) return;
        const one = refused[which % refused.length]! as EventOf<"entered">;
        const verdict = judge(
          "S3",
          history.with(history.indexOf(one), { ...one, accepted: true }),
          LIMITS,
        );
        expect(verdict.verdict).toBe("violated");
        expectShortest(verdict, LIMITS);
      }),
      RUNS,
    );
  });
});

describe("the verdicts on a history", () => {
  it("do not depend on the order of what different clients did in one moment", () => {
    fc.assert(
      fc.property(plans, fc.infiniteStream(fc.nat()), (plan, chance) => {
        const history = runModel(plan);
        expect(kinds(shuffleMoments(history, chance))).toEqual(kinds(history));
      }),
      RUNS,
    );
  });

  it("do not depend on the order in which reports arrived", () => {
    fc.assert(
      fc.property(plans, (plan) => {
        const history = runModel(plan);
        const streams = groupBy(history, (event) => streamOf(history, event));
        expect(kinds([...streams.values()].flat())).toEqual(kinds(history));
      }),
      RUNS,
    );
  });

  it("are the same after the history was written to a file and read", () => {
    fc.assert(
      fc.property(plans, (plan) => {
        const history = runModel(plan);
        expect(decodeHistory(encodeHistory(history))).toEqual(history);
      }),
      RUNS,
    );
  });

  it("take less than a second for 100,000 events", () => {
    const part = runModel(fc.sample(plans, { numRuns: 400, seed: 3 }).flat());
    const spanMs = lastMs(part) + 1;
    const history: Event[] = [];
    for (let i = 0; history.length < 100_000; i++) {
      history.push(...part.map((event) => moved(event, i, spanMs)));
    }
    // The machine may be busy, so the processor time of this process is measured.
    const tookMs = [1, 2, 3].map(() => {
      const before = process.cpuUsage();
      const verdicts = checkHistory(history, LIMITS);
      expect(verdicts.filter(({ verdict }) => verdict === "violated")).toEqual([]);
      return process.cpuUsage(before).user / 1_000;
    });
    expect(Math.min(...tookMs)).toBeLessThan(1_000);
  });
});

function groupBy<T, K>(items: readonly T[], keyOf: (item: T) => K): Map<K, T[]> {
  const groups = new Map<K, T[]>();
  for (const item of items) groups.set(keyOf(item), [...(groups.get(keyOf(item)) ?? []), item]);
  return groups;
}

const askOf = (history: History, op: string): EventOf<"asked"> =>
  history.find((event): event is EventOf<"asked"> => event.kind === "asked" && event.op === op)!;

function isOfLease(history: History, event: Event, { op }: EventOf<"granted">): boolean {
  if ("op" in event) return event.op === op;
  return event.kind === "killed" && event.client === askOf(history, op).client;
}

function streamOf(history: History, event: Event): string {
  if ("client" in event) return event.client.replace("-again", "");
  if ("op" in event) return askOf(history, event.op).client.replace("-again", "");
  return event.kind === "seen" ? "store" : "faults";
}

/** Reorders events of one moment; those of one client stay in their order. */
function shuffleMoments(history: History, chance: Iterator<number>): History {
  const moments = groupBy(history, ({ atMs }) => atMs);
  return [...moments.values()].flatMap((events) => {
    const streams = [...groupBy(events, (event) => streamOf(history, event)).values()];
    const mixed: Event[] = [];
    while (streams.length > 0) {
      const i = chance.next().value % streams.length;
      mixed.push(streams[i]!.shift()!);
      if (streams[i]!.length === 0) streams.splice(i, 1);
    }
    return mixed;
  });
}

/** The same events again, later, by other clients. */
function moved(event: Event, times: number, spanMs: number): Event {
  const by = times * spanMs;
  const copy: Record<string, unknown> = { ...event, atMs: event.atMs + by };
  for (const field of ["op", "client", "within"]) {
    if (typeof copy[field] === "string") copy[field] = `${copy[field]}/${times}`;
  }
  for (const field of ["untilMs", "sinceMs"]) {
    if (typeof copy[field] === "number") copy[field] = copy[field] + by;
  }
  for (const field of ["token", "floor"]) {
    if (typeof copy[field] === "bigint") copy[field] = copy[field] + BigInt(times) * 1_000_000n;
  }
  for (const field of ["step", "read", "value"]) {
    if (typeof copy[field] === "number") copy[field] = copy[field] + times * 1_000_000;
  }
  if (event.kind === "seen") {
    copy["holders"] = event.holders.map(({ op, token }) => ({
      op: `${op}/${times}`,
      token: token + BigInt(times) * 1_000_000n,
    }));
    copy["waiters"] = event.waiters.map((op) => `${op}/${times}`);
  }
  return copy as unknown as Event;
}
