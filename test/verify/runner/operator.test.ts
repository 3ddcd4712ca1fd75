import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { Locks } from "../../../src/index.js";
import { Operator } from "../../../src/verify/runner/operator.js";
import type { Intervention } from "../../../src/verify/runner/plan.js";
import { TimeLine } from "../../../src/verify/traffic/time-line.js";
import { asked, granted } from "../check/story.js";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

const release = (atMs: number, name = "name"): Intervention => ({
  does: "force a release",
  atMs,
  name,
});

/** Locks whose releases by force find these holders, and whose semaphores can be resized. */
function locksOf(
  holders: readonly { holder: string; token: bigint }[],
  done: string[] = [],
): Locks {
  return {
    forceRelease: async (name: string) => {
      done.push(`released ${name}`);
      return holders;
    },
    semaphore: (name: string) => ({
      resize: async (limit: number) => void done.push(`resized ${name} to ${limit}`),
    }),
  } as unknown as Locks;
}

async function carryOut(
  locks: Locks,
  interventions: readonly Intervention[],
  timeLine = new TimeLine(),
  mayAct = () => true,
): Promise<Operator> {
  const operator = new Operator(locks, timeLine);
  operator.start(interventions, mayAct);
  await vi.advanceTimersByTimeAsync(1_000);
  await operator.end();
  return operator;
}

const revoked = ({ events }: TimeLine) => events.filter(({ kind }) => kind === "revoked");

test("a release by force is recorded for the operation that held the token", async () => {
  const timeLine = new TimeLine();
  for (const event of [asked(0, "x"), granted(1, "x", 7, 100), asked(0, "y")]) timeLine.add(event);
  await carryOut(locksOf([{ holder: "w1 (x)", token: 7n }]), [release(10)], timeLine);
  expect(revoked(timeLine)).toMatchObject([{ op: "x", token: 7n }]);
});

test("a holder that never received its grant is found by its label, also as one of several names", async () => {
  const timeLine = new TimeLine();
  timeLine.add(asked(0, "x"));
  timeLine.add(asked(0, "multi.other", { name: "other", together: "multi" }));
  const holders = [
    { holder: "w1 (x)", token: 8n },
    { holder: "w1", token: 9n },
  ];
  await carryOut(locksOf(holders), [release(10)], timeLine);
  expect(revoked(timeLine)).toMatchObject([{ op: "x", token: 8n }]);
  const multi = locksOf([{ holder: "w2 (multi)", token: 3n }]);
  await carryOut(multi, [release(10, "other")], timeLine);
  expect(revoked(timeLine)).toMatchObject([{ op: "x" }, { op: "multi.other", token: 3n }]);
});

test("a resize is in the history from before it is sent until it is done", async () => {
  const timeLine = new TimeLine();
  const done: string[] = [];
  const resize: Intervention = { does: "resize", atMs: 10, name: "permits", limit: 4 };
  await carryOut(locksOf([], done), [resize], timeLine);
  expect(done).toEqual(["resized permits to 4"]);
  const about = { kind: "resized", name: "permits", limit: 4 };
  expect(timeLine.events).toMatchObject([about, about]);
});

test("the operator does nothing while a fault hits the store, or after the end", async () => {
  const done: string[] = [];
  await carryOut(locksOf([], done), [release(10)], undefined, () => false);
  const operator = new Operator(locksOf([], done), new TimeLine());
  operator.start([release(100)], () => true);
  await operator.end();
  await vi.advanceTimersByTimeAsync(1_000);
  expect(done).toEqual([]);
});

test("an intervention that fails may have taken effect: it is an excuse for some time", async () => {
  const locks = {
    forceRelease: () => Promise.reject(new Error("no answer")),
  } as unknown as Locks;
  const timeLine = new TimeLine();
  const { excuses } = await carryOut(locks, [release(10)], timeLine);
  expect(excuses).toHaveLength(1);
  // A holder that lost its name this way is unknown to the store, as after a fault of the store.
  const [injected, healed] = timeLine.events;
  expect([injected, healed]).toMatchObject([
    { kind: "injected", name: "name" },
    { kind: "healed" },
  ]);
  expect(excuses[0]!.name).toBe("name");
  expect(healed!.atMs).toBe(excuses[0]!.toMs);
  const { fromMs, toMs } = excuses[0]!;
  expect(toMs - fromMs).toBeGreaterThanOrEqual(10_000);
  expect(toMs - fromMs).toBeLessThan(30_000);
  expect(excuses[0]!.rules).toEqual(expect.arrayContaining(["S1", "S6", "L1"]));
  // Tokens, fences and deadlines hold all the same.
  for (const rule of ["S2", "S3", "S5", "S7"] as const) {
    expect(excuses[0]!.rules).not.toContain(rule);
  }
});

test("a release by force that a fault hit on its way may have done more than it reports", async () => {
  let isStruck = false;
  const locks = {
    forceRelease: async () => {
      isStruck = true;
      return [];
    },
  } as unknown as Locks;
  const { excuses } = await carryOut(locks, [release(10)], new TimeLine(), () => !isStruck);
  expect(excuses).toHaveLength(1);
});
