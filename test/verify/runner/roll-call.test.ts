import { expect, test } from "vitest";
import type { Member } from "../../../src/verify/runner/crew.js";
import type { Plan } from "../../../src/verify/runner/plan.js";
import { callTheRoll, slowHandovers } from "../../../src/verify/runner/roll-call.js";
import { machineMs, TimeLine } from "../../../src/verify/traffic/time-line.js";
import { asked, granted, releasing } from "../check/story.js";

const PLAN = {
  seed: 7,
  names: [
    { name: "a", permits: 0 },
    { name: "permits", permits: 3 },
    { name: "once", permits: 0, onceEveryMs: 100 },
  ],
  workers: [{ client: "w1" }, { client: "w2" }],
} as unknown as Plan;

const OPTIONS = { pace: 0.01, ttlMs: 100, timeLine: new TimeLine() };

/** A worker of the roll call, with its replies. */
function member(
  client: string,
  answers: { acquire?: () => Promise<unknown>; look?: boolean },
  names: string[] = [],
): Member {
  const worker = {
    acquire: async (name: string) => {
      names.push(`${client} ${name}`);
      await answers.acquire?.();
      return { op: name };
    },
    look: async () => answers.look ?? true,
    release: async () => "released",
  };
  return { client, isRunning: true, worker } as unknown as Member;
}

test("at the end of a run every worker acquires every lock and a name of its own; semaphores and once are left out", async () => {
  const names: string[] = [];
  const members = [member("w1", {}, names), member("w2", {}, names)];
  const call = await callTheRoll(members, PLAN, OPTIONS);
  expect(call).toEqual({ asked: 4, failures: [], outages: 0 });
  expect(names.sort()).toEqual(["w1 a", "w1 own-w1", "w2 a", "w2 own-w2"]);
});

test("a lease that was not kept and an acquire that fails are reported; outages are counted", async () => {
  const down = Object.assign(new Error("it is down"), { code: "STORE_UNAVAILABLE" });
  const members = [
    member("w1", { look: false }),
    member("w2", { acquire: () => Promise.reject(down) }),
  ];
  const { failures, outages } = await callTheRoll(members, PLAN, OPTIONS);
  expect(failures.join("\n")).toMatch(
    /w1 could not use "own-w1": its lease was lost 3 times in a row/,
  );
  expect(failures.join("\n")).toMatch(/w2 could not use "a": it is down/);
  expect(outages).toBe(2);
});

test("a lease that is lost while its worker stands still is no failure; each of three losses without that is one", async () => {
  const timeLine = new TimeLine();
  let looks = 0;
  const stalling = (stallMs: number): Member => {
    const one = member("w1", { look: false });
    one.worker.look = async () => {
      looks++;
      const nowMs = machineMs();
      timeLine.add({ kind: "paused", client: "w1", stalled: true, atMs: nowMs - stallMs });
      timeLine.add({ kind: "resumed", client: "w1", stalled: true, atMs: nowMs });
      return false;
    };
    return one;
  };
  const plan = { ...PLAN, names: [] };
  const options = { ...OPTIONS, pace: 1, timeLine };
  expect(await callTheRoll([stalling(50)], plan, options)).toMatchObject({
    asked: 0,
    failures: [],
  });
  expect(looks).toBe(8);
  const { failures } = await callTheRoll([stalling(5)], plan, options);
  expect(failures).toHaveLength(1);
  expect(looks).toBe(11);
});

test("a handover that takes too long is reported", () => {
  const name = { name: "a" };
  const history = (secondAtMs: number) => [
    asked(0, "7.call.w1.a", name),
    asked(1, "7.call.w2.a", name),
    granted(10, "7.call.w1.a", 1, 9_000),
    releasing(20, "7.call.w1.a"),
    granted(secondAtMs, "7.call.w2.a", 2, 9_000),
  ];
  expect(slowHandovers(history(500), PLAN, { pace: 1, slackMs: 0 })).toEqual([]);
  expect(slowHandovers(history(1_900), PLAN, { pace: 1, slackMs: 0 })).toHaveLength(1);
  expect(slowHandovers(history(1_900), PLAN, { pace: 1, slackMs: 300 })).toEqual([]);
});
