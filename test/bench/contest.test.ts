import { describe, expect, test } from "vitest";
import { load } from "./load.js";

interface Named {
  readonly name: string;
}

const { contest, interleave } = await load<{
  contest<C extends Named, T>(
    contestants: readonly C[],
    options: {
      rounds: number;
      turn(contestant: C, round: number): Promise<T>;
      progress?(text: string): void;
    },
  ): Promise<{ turns: Map<string, T[]>; failures: Map<string, Error> }>;
  interleave<C extends Named>(
    contestants: readonly C[],
    options: { ms: number; sliceMs: number; operate(c: C): Promise<void>; nowMs(): number },
  ): Promise<Map<string, number[]>>;
}>("lib/contest.mjs");
const { sortOut } = await load<{
  sortOut(
    contestants: readonly (Named & { peer?: boolean; needs?: string[]; slow?: boolean })[],
    options: { isQuick?: boolean; isAlone?: boolean; has(name: string): boolean },
  ): { present: Named[]; leftOut: { name: string; why: string }[] };
}>("lib/contestant.mjs");
const { tally } = await load<{
  tally(
    records: readonly { grants: Float64Array; waiting: number[]; failed: number }[],
    options: { contenders: number; startMs: number; ms: number; commands: number },
  ): Record<string, number>;
}>("kinds/contention.mjs");

const three = [{ name: "a" }, { name: "b" }, { name: "c" }];

describe("a benchmark contest", () => {
  test("gives each contestant a turn in every round, and another one the first turn", async () => {
    const order: string[] = [];
    const said: string[] = [];
    const { turns } = await contest(three, {
      rounds: 4,
      turn: async ({ name }, round) => order.push(`${name}${round}`),
      progress: (text) => said.push(text),
    });
    expect(order.join(" ")).toBe("a0 b0 c0 b1 c1 a1 c2 a2 b2 a3 b3 c3");
    expect(turns.get("b")).toEqual([2, 4, 9, 11]);
    expect(said).toEqual(["round 1 of 4", "round 2 of 4", "round 3 of 4", "round 4 of 4"]);
  });

  test("goes on without a contestant that fails, and says why", async () => {
    const { turns, failures } = await contest(three, {
      rounds: 3,
      turn: async ({ name }, round) => {
        if (name === "b" && round === 1) throw new Error("out of breath");
        return round;
      },
    });
    expect([...turns.keys()]).toEqual(["a", "c"]);
    expect(turns.get("c")).toEqual([0, 1, 2]);
    expect(failures.get("b")?.message).toBe("out of breath");
  });
});

describe("interleaved operations", () => {
  async function run(takesMs: Record<string, number>, ms: number, sliceMs: number) {
    const order: string[] = [];
    let timeMs = 0;
    const samples = await interleave(
      Object.keys(takesMs).map((name) => ({ name })),
      {
        ms,
        sliceMs,
        nowMs: () => timeMs,
        operate: async ({ name }) => {
          order.push(name);
          timeMs += takesMs[name]!;
        },
      },
    );
    return { order: order.join(""), samples };
  }

  test("alternate one by one where each takes a whole slice of time", async () => {
    const { order, samples } = await run({ a: 2, b: 2 }, 6, 1);
    expect(order).toBe("abbaab");
    expect(samples.get("a")).toEqual([2, 2, 2]);
  });

  test("come in slices where they are short, and each contestant has its time", async () => {
    const { order, samples } = await run({ a: 1, b: 4 }, 8, 4);
    expect(order).toBe("aaaabbaaaa");
    expect(samples.get("b")).toEqual([4, 4]);
  });
});

test("contestants that miss a package, or take too long for a quick run, are left out by name", () => {
  const contestants = [
    { name: "own" },
    { name: "peer", needs: ["here", "gone"] },
    { name: "slow", slow: true },
  ];
  const has = (name: string): boolean => name === "here";
  expect(sortOut(contestants, { has })).toEqual({
    present: [contestants[0], contestants[2]],
    leftOut: [{ name: "peer", why: "needs the package gone" }],
  });
  expect(sortOut(contestants, { has, isQuick: true }).leftOut.map(({ name }) => name)).toEqual([
    "peer",
    "slow",
  ]);
});

test("--alone leaves out the other libraries, and keeps a store whose client library is a package", () => {
  const contestants = [
    { name: "Holdfast", needs: ["client"] },
    { name: "peer", peer: true, needs: ["client"] },
  ];
  expect(sortOut(contestants, { has: () => true, isAlone: true })).toEqual({
    present: [contestants[0]],
    leftOut: [{ name: "peer", why: "--alone measures no other library" }],
  });
});

describe("the record of contenders for one lock", () => {
  const record = (grants: number[][], waiting: number[] = []) => ({
    grants: Float64Array.from(grants.flat()),
    waiting,
    failed: 0,
  });
  const options = { contenders: 3, startMs: 100, ms: 1_000, commands: 8 };

  test("counts only handovers to another contender, over all processes in the order of their grants", () => {
    // id, asked, granted, released
    const one = record([
      [0, 100, 101, 110],
      [0, 110, 111, 120],
      [0, 140, 150, 160],
    ]);
    const other = record([[1, 100, 121, 130]], [100]);
    expect(tally([one, other], options)).toEqual({
      handoversPerSecond: 2,
      commandsPerHandover: 4,
      fairness: 16 / (3 * 10),
      // The third waited in vain, from the start to the end.
      longestWaitMs: 1_000,
      starved: 1,
      failed: 0,
      heldTwice: 0,
    });
  });

  test("reports a grant before the release of the one before it", () => {
    const records = [record([[0, 100, 101, 110]]), record([[1, 100, 105, 108]])];
    expect(tally(records, options)["heldTwice"]).toBe(1);
  });

  test("does not count a grant after the end", () => {
    expect(tally([record([[0, 100, 1_101, 1_102]])], options)["starved"]).toBe(3);
  });
});
