import { setTimeout as pause } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { RedisStore } from "../../../src/stores/redis/index.js";
import { compareWithRule } from "../../../src/testing.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { ruleRuns } from "../../support/chance.js";
import { describeWith } from "../../support/needs.js";
import { byIoredis, listening } from "../../support/redis.js";

describeWith(["redis"], "the rule in Lua", () => {
  let lab: Lab;
  let store: RedisStore;
  beforeAll(async () => {
    lab = await Lab.open();
    store = await byIoredis((await lab.redis()).url);
    await listening(store);
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

  test("replies and pushes like the rule in TypeScript", { timeout: 240_000 }, async () => {
    const { pushed } = await compare("mixed", ruleRuns(100));
    expect(pushed.granted).toBeGreaterThan(15);
  });

  test("notifies the same waiters to check", { timeout: 240_000 }, async () => {
    const { pushed } = await compare("contended", ruleRuns(60));
    expect(pushed.look).toBeGreaterThan(15);
  });

  // A ticket has expired behind a living one, and is released (9117) or claimed again (7077). Two claims
  // have one id in one turn: the first is refused, and the second is queued (200725).
  test.each([9117, 7077, 200725])("replies and pushes like the rule at seed %i", async (seed) => {
    await compare("mixed", { seed, runs: 1 });
  });
});
