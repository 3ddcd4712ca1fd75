import { AssertionError } from "node:assert";
import { describe, expect, test, vi } from "vitest";
import type { Push, Store } from "../../src/core/store.js";
import { MemoryStore } from "../../src/stores/memory/index.js";
import type { Rule } from "../../src/stores/rule.js";
import { delegate } from "../../src/testing/delegate.js";
import {
  compareWithRule,
  MUTANTS,
  type Mutant,
  type RuleCoverage,
  VirtualClock,
} from "../../src/testing.js";

vi.setConfig({ testTimeout: 120_000 });

/** As many runs as the tests of the stores have. */
const RUNS = 100;

/** Two clients of a store in memory, which is compared at once where nothing waits. */
function compare(
  options: {
    rule?: typeof Rule;
    wrap?: (store: Store) => Store;
    seed?: number;
    runs?: number;
  } = {},
  workload: "mixed" | "contended" = "mixed",
): Promise<RuleCoverage> {
  const clock = new VirtualClock();
  const nowMs = (): number => {
    clock.stall(0.001);
    return clock.elapsedMs();
  };
  // In whole milliseconds, as a wall clock often is: a token can't be the time alone.
  const wallMs = (): number => Math.floor(clock.wallMs());
  const memory = new MemoryStore({ nowMs, wallMs }, options.rule);
  const store = options.wrap?.(memory) ?? memory;
  return compareWithRule({
    clients: [store, store],
    seed: options.seed ?? 1,
    runs: options.runs ?? RUNS,
    atOnce: 3,
    workload,
    pass: (ms) => clock.stall(ms),
    pushTimeoutMs: 20,
    shortenMs: 500,
  });
}

describe("a store that follows the rule", () => {
  test.each(["mixed", "contended"] as const)("passes with the workload %s", async (workload) => {
    const { runs, steps, pushed } = await compare({}, workload);
    expect(runs).toBe(RUNS);
    expect(steps).toBeGreaterThan(RUNS * 5);
    expect(pushed.granted).toBeGreaterThan(RUNS / 3);
    if (workload === "contended") expect(pushed.look).toBeGreaterThan(RUNS / 3);
  });
});

/** Tokens are compared by their order; clocks that are set, and minutes that pass, have tests of their own. */
const NOT_BY_COMPARISON: readonly string[] = ["token counter that expires"];

describe("a store with a broken rule is found:", () => {
  const broken = Object.entries<Mutant>(MUTANTS).filter(
    ([name, { rule }]) => rule !== undefined && !NOT_BY_COMPARISON.includes(name),
  );
  test.each(broken)("%s", async (name, { rule }) => {
    const isAboutLooks = name === "a handover to a shorter lease that no waiter is told of";
    const comparison = compare({ rule: rule! }, isAboutLooks ? "contended" : "mixed");
    await expect(comparison).rejects.toThrow(AssertionError);
  });
});

/** Changes the pushes that waiters receive. */
const pushing =
  (change: (push: Push, deliver: (push: Push) => void) => void) =>
  (store: Store): Store => ({
    ...delegate(store),
    claim: (claim, push) => store.claim(claim, (one) => change(one, push)),
  });

describe("a store with broken pushes is found:", () => {
  let pushes = 0;
  test.each<[string, (store: Store) => Store]>([
    ["one push in five is dropped", pushing((one, push) => ++pushes % 5 > 0 && push(one))],
    [
      "pushed twice",
      pushing((one, push) => {
        push(one);
        push(one);
      }),
    ],
    [
      "the pushed grant names another request",
      pushing((one, push) =>
        push(one.kind === "granted" ? { ...one, grant: { ...one.grant, seq: 9 } } : one),
      ),
    ],
  ])("%s", async (_, wrap) => {
    await expect(compare({ wrap })).rejects.toThrow(AssertionError);
  });
});

test("a store may push to the callback of the claim that left the ticket", async () => {
  const callbacks = new Map<string, (push: Push) => void>();
  const wrap = (store: Store): Store => ({
    ...delegate(store),
    claim: (claim, push) => {
      if (claim.queue) callbacks.set(claim.grantId, push);
      return store.claim(claim, callbacks.get(claim.grantId) ?? push);
    },
  });
  // A ticket is released and claimed again in one turn, then claimed without `queue`.
  expect((await compare({ wrap, seed: 649, runs: 1 })).pushed.granted).toBeGreaterThan(0);
});

test("a request that rejects counts as a difference", async () => {
  const wrap = (store: Store): Store => ({
    ...delegate(store),
    resize: () => Promise.reject(new Error("no such command")),
  });
  await expect(compare({ wrap })).rejects.toThrow(
    /resize . to \d\n(.*\n)*.*rejected: .*no such command/,
  );
});

test("the message has the seed and the shortest program that fails", async () => {
  const { rule } = MUTANTS["a floor that shuts out who still holds"];
  const { message } = (await compare({ rule }).catch((one) => one)) as Error;
  const lines = message.split("\n");
  expect(lines.length).toBeLessThanOrEqual(6);
  expect(lines[0]).toMatch(
    /^the store differs .* after step \d \(repeat: \{ seed: \d+, runs: 1 \}\)$/,
  );
  expect(lines[1]).toMatch(/^ {2}1\. claim .+ as grant \d \(seq \d, .*\)/);
  expect(lines.at(-2)).toMatch(/^the rule: {2}.*"floor":"token 0"/);
  expect(lines.at(-1)).toMatch(/^the store: .*"floor":"token 1"/);
});

test("a store is compared only in what its traits say that it can do", async () => {
  const cannot = Object.fromEntries(
    ["shared", "permits", "many-names", "at-least", "own-ttl", "revoke"].map((one) => [one, "no"]),
  );
  const refuse = (): never => {
    throw new Error("not supported");
  };
  const wrap = (store: Store): Store => ({
    ...delegate(store),
    traits: { ...store.traits, cannot },
    revoke: refuse,
    resize: refuse,
  });
  expect((await compare({ wrap })).runs).toBe(RUNS);
});
