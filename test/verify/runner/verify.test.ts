import { expect, test } from "vitest";
import { Lab } from "../../../src/verify/lab/lab.js";
import { verify } from "../../../src/verify/runner/verify.js";
import { sqliteTarget } from "../../../src/verify/targets/sqlite.js";

test("servers that do not recover end a verification, and its result is what was seen before", {
  timeout: 120_000,
}, async () => {
  await using lab = await Lab.open();
  await using target = await sqliteTarget(lab, false);
  const stuck = {
    ...target,
    recover: () => Promise.reject(new Error("nobody serves slot 7")),
  };
  const { result, troubles } = await verify(stuck, {
    seed: 3,
    runs: 3,
    runMs: 1_000,
    workers: 2,
    command: "holdfast verify",
  });
  expect(result.runs).toHaveLength(1);
  expect(result.operations).toBeGreaterThan(0);
  expect(troubles.at(-1)).toContain("did not recover");
  expect(troubles.at(-1)).toContain("nobody serves slot 7");
});
