import { expect, onTestFinished, test } from "vitest";
import { Lab } from "../../../src/verify/lab/lab.js";
import { newNamespace } from "../../../src/verify/runner/run.js";
import type { Target } from "../../../src/verify/runner/target.js";
import { verify } from "../../../src/verify/runner/verify.js";
import { limited } from "../../../src/verify/targets/open.js";
import { sqliteTarget } from "../../../src/verify/targets/sqlite.js";
import { kindOf } from "./fakes.js";
import { plant } from "./planted.js";

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
  expect(asked.size).toBeGreaterThan(0);
  for (const name of asked) expect(name).toMatch(/^verify-1-[\da-f]{12}:[\w-]+$/);
});

test("two runs of one seed never share a namespace: in containers, process ids are the same, too", () => {
  expect(newNamespace(7)).not.toBe(newNamespace(7));
});

const SHORT = { seed: 1, runMs: 1_000, workers: 2, command: "holdfast verify" };

test("a store that is down when a later run begins ends the verification, whose result so far counts", {
  timeout: 120_000,
}, async () => {
  await using lab = await Lab.open();
  await using target = await sqliteTarget(lab, false);
  let opened = 0;
  const outages = Object.assign(Object.create(target) as Target, {
    kinds: [],
    openWay: (client: string) =>
      opened++ < 2 ? target.openWay(client) : Promise.reject(new Error("it is down")),
  });
  const { result, troubles, failure } = await verify(outages, { ...SHORT, runs: 3 });
  expect([result.runs.length, failure]).toEqual([1, null]);
  expect(result.outcome).not.toBe("violated");
  expect(result.grants).toBeGreaterThan(0);
  expect(troubles).toEqual([expect.stringMatching(/^a run could not be made.*: it is down$/)]);
});

test("a close() that gets no reply from a store without faults is a broken promise if every worker has it", {
  timeout: 120_000,
}, async () => {
  const { module, remove } = plant([
    ["locks.js", "(store) => store.close());", "() => new Promise(() => {}));"],
  ]);
  onTestFinished(remove);
  await using lab = await Lab.open();
  await using target = await sqliteTarget(lab, false);
  const { result } = await verify({ ...target, kinds: [] }, { ...SHORT, runs: 1, module });
  const p1 = result.checks.find(({ id }) => id === "P1");
  expect(p1).toMatchObject({
    verdict: "violated",
    why: expect.stringMatching(/^close\(\): w1: .*no reply to the request to close/),
  });
});

test("a store that is down when the first run begins is an error, and what was opened is closed", async () => {
  await using lab = await Lab.open();
  await using target = await sqliteTarget(lab, false);
  const open = new Set<string>();
  const outage = Object.assign(Object.create(target) as Target, {
    kinds: [],
    openWay: async (client: string) => {
      if (open.size > 0) throw new Error("it is down");
      open.add(client);
      return { ...(await target.openWay(client)), close: async () => void open.delete(client) };
    },
  });
  await expect(verify(outage, { ...SHORT, runs: 3 })).rejects.toThrow("it is down");
  expect([...open]).toEqual([]);
});

test("there is no verdict if none of the chosen faults struck", { timeout: 120_000 }, async () => {
  await using lab = await Lab.open();
  await using target = await sqliteTarget(lab, false);
  const never = { ...target, kinds: [kindOf("never", { make: () => null })] };
  const options = { ...SHORT, runMs: 3_000, runs: 1 };
  const { result } = await verify(limited(never, ["never"]), options);
  expect([result.outcome, result.faults]).toEqual(["unknown", 0]);
  const checked = result.checks.find(({ id }) => id === "S1")!.checked;
  expect(checked, "enough for a verdict otherwise").toBeGreaterThanOrEqual(10);
});
