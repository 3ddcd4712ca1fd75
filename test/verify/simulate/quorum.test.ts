import { describe, expect, test } from "vitest";
import type { QuorumStore } from "../../../src/stores/quorum/store.js";
import type { RuleId } from "../../../src/verify/check/check.js";
import { GrantedBallots } from "../../../src/verify/simulate/quorum/grants.js";
import type { QuorumMutant } from "../../../src/verify/simulate/quorum/mutant.js";
import {
  QUORUM_MUTANTS,
  type QuorumMutantName,
} from "../../../src/verify/simulate/quorum/mutants.js";
import { drawQuorumSchedule } from "../../../src/verify/simulate/quorum/schedule.js";
import { simulate } from "../../../src/verify/simulate/run.js";
import { search } from "../../../src/verify/simulate/search.js";
import { claimBy, ignorePush, SimulatedQuorum, TTL_MS } from "../../support/simulated-quorum.js";

const RUNS = 150;

test("the real quorum store over simulated nodes breaks no promise", {
  timeout: 120_000,
}, async () => {
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

const MENDED: readonly (readonly [what: string, seed: number])[] = [
  ["close() ends a request, which begins another", 8_000_448],
  ["a node is asked to raise a number before it has the claim", 8_100_350],
  ["a claim reaches a node after its release", 8_202_019],
  ["close() while a claim that was given up takes back its records", 8_308_944],
  ["close() in the middle of a forced release", 8_402_034],
  ["close() waits twice for a node that is late", 8_501_946],
  ["a release after close()", 8_621_174],
  ["the first claim overtakes nodes that are about to join", 8_609_376],
  ["requests to join are lost, and the next claim waits for them", 8_704_944],
  ["all nodes have joined by late answers", 8_900_604],
  ["a claim is answered after its lease is over, again and again", 14_192],
  ["close() is held up by a stop of the process", 9_100_195],
  ["a claim arrives twice, the second time after its release", 35_077],
];
test.each(MENDED)("a schedule that broke a promise: %s", async (_what, seed) => {
  const { failure } = await search({ seed, runs: 1, draw: drawQuorumSchedule });
  expect(failure).toBeNull();
});

test("a claim that later requests overtake does not outlive its release", async () => {
  const drawn = drawQuorumSchedule(35_077);
  const late = (node: number, fromMs: number, toMs: number) =>
    ({ kind: "messages are late", client: 0, node, fromMs, toMs }) as const;
  const draw = () => ({
    ...drawn,
    tasks: drawn.tasks.filter(({ client, atMs }) => client === 0 && atMs === 6_020),
    troubles: [late(0, 5_625, 6_336), late(2, 5_903, 6_650), late(1, 6_770, 7_048)],
  });
  const { failure } = await search({ seed: 0, runs: 1, draw });
  expect(failure).toBeNull();
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

/** Found by a directed run: it does harm only on a node that has lost its counters, and then S4 is not promised. */
const AT_ONCE = "a fill-in that is a vote at once";

/** For each other mutant: a seed that finds it, at most so many runs from there, and the rule that it breaks. */
const FOUND: Record<
  Exclude<QuorumMutantName, typeof AT_ONCE>,
  { seed: number; rules: readonly RuleId[] }
> = {
  "a counter that expires": { seed: 38, rules: ["S2"] },
  "a claim that takes a number below the highest": { seed: 64, rules: ["S2"] },
  "a claim that raises no counter": { seed: 67, rules: ["S2", "S4"] },
  "a claim that raises only the maximum": { seed: 67, rules: ["S4"] },
  "a raise without holding the name": { seed: 80, rules: ["S1", "S2", "S4"] },
  "a raise that raises no counter": { seed: 153, rules: ["S2"] },
  "a raise that raises only the maximum": { seed: 2_912, rules: ["S4"] },
  "a raise to a lower number": { seed: 682, rules: ["S1", "S2"] },
  "a renewal whatever the base": { seed: 6_777, rules: ["S4"] },
  "a fill-in after a later ballot": { seed: 7, rules: ["S4", "S6"] },
  "a fill-in after the release": { seed: 29, rules: ["S5"] },
  "a release of another's record": { seed: 0, rules: ["S1", "S4"] },
  "a node that votes without its data": { seed: 805, rules: ["S1"] },
  "one id for all ballots of a claim": { seed: 975, rules: ["S1", "S2"] },
  "a majority of different numbers": { seed: 64, rules: ["S2", "S4"] },
};
const MUTANT_RUNS = 5;

describe("the simulator finds in a quorum", () => {
  for (const [name, { seed, rules }] of Object.entries(FOUND)) {
    test(name, { timeout: 120_000 }, async () => {
      const quorum = QUORUM_MUTANTS[name as QuorumMutantName];
      const found = { seed, runs: MUTANT_RUNS, draw: drawQuorumSchedule, mutant: { quorum } };
      const { failure } = await search(found);
      expect(failure).not.toBeNull();
      expect(rules).toContain(failure!.verdict.rule);
    });
  }
});

describe("a lease that two of three nodes fill in, and have forgotten a later grant", () => {
  /** Grants A on nodes 0 and 1, after its end B on nodes 1 and 2; node 2 loses its data, and A renews. */
  async function run(mutant: QuorumMutant = {}) {
    const quorum = new SimulatedQuorum();
    const ballots = new GrantedBallots();
    const grant = async (client: string, store: QuorumStore): Promise<void> => {
      const askedMs = quorum.world.nowMs;
      const answer = await quorum.until(store.claim(claimBy(client), ignorePush));
      if (answer.kind !== "granted") throw new Error(`${client}: ${answer.kind}`);
      const { token } = answer.grants[0]!;
      const decidedMs = quorum.world.nowMs;
      ballots.add({ name: "name", id: client, token, client, askedMs, decidedMs });
    };
    const [a, b] = [await quorum.open("A", mutant), await quorum.open("B", mutant)];
    quorum.away.set("A", 2).set("B", 0);
    await grant("A", a);
    await quorum.pass(TTL_MS);
    await grant("B", b);
    quorum.servers[2]!.flush();
    quorum.away.clear();
    await quorum.pass(1);
    const sentMs = quorum.world.nowMs;
    const renewal = { name: "name", grantId: "A", seq: 2, ttlMs: TTL_MS };
    const [answer] = await quorum.until(a.renew([renewal]));
    if (answer?.kind === "granted") {
      const { token } = answer.grant;
      ballots.addRenewal({ name: "name", token, client: "A", sentMs });
    }
    return { answer, verdict: ballots.renewals() };
  }

  test("is not renewed by their answers", async () => {
    const { answer } = await run();
    expect(answer).toMatchObject({ kind: "unknown" });
    expect(String((answer as { cause: unknown }).cause)).toContain("2 had lost the lease");
  });

  test(`is renewed by ${AT_ONCE}`, async () => {
    const { answer, verdict } = await run(QUORUM_MUTANTS[AT_ONCE]);
    expect(answer?.kind).toBe("granted");
    expect(verdict).toMatchObject({ rule: "S4", verdict: "violated" });
  });
});
