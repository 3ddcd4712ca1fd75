import { setTimeout as pause } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { PostgresStore } from "../../../src/stores/postgres/index.js";
import { compareWithRule } from "../../../src/testing.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { ruleRuns } from "../../support/chance.js";
import { describeWith } from "../../support/needs.js";
import { byPool } from "../../support/postgres.js";
import { claimOf } from "../../support/redis.js";

describeWith(["postgres"], "the rule in PL/pgSQL", () => {
  let lab: Lab;
  let store: PostgresStore;
  beforeAll(async () => {
    lab = await Lab.open();
    store = await byPool((await lab.postgres()).url);
    // Somebody waits all the time: a claim that has to open the subscription first replies later than the rule.
    for (const queue of [false, true]) {
      const claim = claimOf("listening", { queue, ttlMs: 3_600_000 });
      await store.claim(claim, () => {});
    }
  });
  afterAll(async () => {
    await store?.close();
    await lab.close();
  });

  const compare = (
    workload: "mixed" | "contended",
    drawn: { readonly seed: number; readonly runs: number },
  ) =>
    compareWithRule({
      clients: [store],
      workload,
      ...drawn,
      atOnce: workload === "mixed" ? 3 : 1,
      pass: (ms) => pause(ms),
      // The store may count tickets that have ended since.
      ignore: ["ahead"],
    });

  test("answers and pushes like the rule in TypeScript", { timeout: 240_000 }, async () => {
    const { pushed } = await compare("mixed", ruleRuns(20, 0, 60));
    expect(pushed.granted).toBeGreaterThan(5);
  });

  test("tells the same waiters to look", { timeout: 240_000 }, async () => {
    const { pushed } = await compare("contended", ruleRuns(15, 0, 40));
    expect(pushed.look).toBeGreaterThan(5);
  });

  test("a claim without a ticket is told that nobody is ahead when the only ticket has expired (seed 500011)", async () => {
    await compare("mixed", { seed: 500_011, runs: 1 });
  });

  test("a push to a claim that is released and made again in the same turn may arrive late (seed 4589)", async () => {
    await compare("mixed", { seed: 4_589, runs: 1 });
  });
});
