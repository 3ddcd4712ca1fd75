import { expect, test } from "vitest";
import { Lab } from "../../../src/verify/lab/lab.js";
import { verify } from "../../../src/verify/runner/verify.js";
import { sqliteTarget } from "../../../src/verify/targets/sqlite.js";
import { kindOf } from "./fakes.js";

test("servers that do not recover end a verification, and faults that could not be injected are no faults", {
  timeout: 120_000,
}, async () => {
  await using lab = await Lab.open();
  await using target = await sqliteTarget(lab, false);
  const refused = {
    make: () => ({
      name: "refused",
      inject: () => Promise.reject(new Error("no right to it")),
      heal: async () => {},
    }),
  };
  const stuck = {
    ...target,
    kinds: [kindOf("refused", refused)],
    recover: () => Promise.reject(new Error("nobody serves slot 7")),
  };
  const { result, troubles } = await verify(stuck, {
    seed: 3,
    runs: 3,
    runMs: 2_000,
    workers: 2,
    command: "holdfast verify",
  });
  expect(result.runs).toHaveLength(1);
  expect(result.operations).toBeGreaterThan(0);
  expect(result.faults).toBe(0);
  expect(result.failedFaults).toBeGreaterThan(0);
  expect(troubles[0]).toContain("refused: no right to it");
  expect(troubles.at(-1)).toContain("did not recover");
  expect(troubles.at(-1)).toContain("nobody serves slot 7");
});

test("a claim that only a client of the server sees is left in the store", {
  timeout: 120_000,
}, async () => {
  await using lab = await Lab.open();
  await using target = await sqliteTarget(lab, false);
  const asked = new Set<string>();
  const leftOf = async (names: readonly string[]) => {
    for (const name of names) asked.add(name);
    return ["row 7"];
  };
  const options = { seed: 1, runs: 1, runMs: 1_000, workers: 2, command: "holdfast verify" };
  const { result } = await verify({ ...target, kinds: [], leftOf }, options);
  const p3 = result.checks.find(({ id }) => id === "P3");
  expect(p3).toMatchObject({ verdict: "violated", why: expect.stringContaining("row 7") });
  expect([...asked].filter((name) => /^verify-[\d-]+:(a|w1|.*w1.*)$/.test(name))).not.toEqual([]);
});
