import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import type { EventOf } from "../../../src/verify/check/history.js";
import { Member, type MemberOptions } from "../../../src/verify/runner/crew.js";
import { machineMs, TimeLine } from "../../../src/verify/traffic/time-line.js";
import { skipUnless } from "../../support/needs.js";
import { freshFolder } from "../../support/sqlite.js";
import { until } from "../../support/worker.js";
import { plant } from "./planted.js";

const TTL_MS = 1_000;

const PROGRAM = {
  seed: 1,
  lane: "1.w1.1",
  via: 0,
  names: [{ name: "a", permits: 0 }],
  ttlsMs: [TTL_MS],
  waitMs: 500,
  pauseMs: 5,
};

function enlist(more: Partial<MemberOptions> = {}): {
  member: Member;
  timeLine: TimeLine;
  url: string;
} {
  const folder = freshFolder();
  const timeLine = new TimeLine();
  const url = `sqlite:${join(folder, "locks.db")}`;
  const member = new Member({
    client: "w1",
    way: { url, proxies: [], close: async () => {} },
    timeLine,
    locks: {},
    connections: [{ locks: 1 }],
    programs: [PROGRAM],
    resourceFile: join(folder, "resources.db"),
    ...more,
  });
  onTestFinished(() => member.kill());
  return { member, timeLine, url };
}

const opsOf = (timeLine: TimeLine, client: string): readonly string[] =>
  timeLine.events
    .filter((event): event is EventOf<"asked"> => event.kind === "asked")
    .filter((event) => event.client === client)
    .map(({ op }) => op);

test("a worker that two faults have killed is started once, and its operations all have different names", async () => {
  const { member, timeLine } = enlist();
  await member.start();
  member.begin(machineMs() + 60_000);
  await until("it works", () => opsOf(timeLine, "w1").length > 3);
  await Promise.all([member.kill(), member.kill()]);
  const before = opsOf(timeLine, "w1").length;
  await Promise.all([member.start(), member.start()]);
  const { pid } = member.worker;
  await member.start();
  expect(member.worker.pid).toBe(pid);
  await until("it works again", () => opsOf(timeLine, "w1").length > before + 5);
  const ops = opsOf(timeLine, "w1");
  expect(new Set(ops).size).toBe(ops.length);
});

/** A worker whose `Locks.close()` rejects, and whose programs do nothing but open another one and close the old one. */
const REJECTING_CLOSE = [
  ["locks.js", 'await requests.run("close", (store) => store.close());', 'throw new Error("no");'],
] as const;
const HANGING_CLOSE = [
  ["locks.js", "(store) => store.close());", "() => new Promise(() => {}));"],
] as const;
const ALWAYS_REOPENS = [
  ["verify/traffic/program.js", "if (chance(0.01))\n        return", "if (true)\n        return"],
] as const;

test("a close() that rejects at the end is a fault of the worker, or an outage of the store", async () => {
  const { module, remove } = plant(REJECTING_CLOSE);
  onTestFinished(remove);
  const { member } = enlist({ module });
  await member.start();
  expect(await member.close(20_000)).toBe(true);
  expect([member.faults, member.outage]).toEqual([["close(): w1: no"], null]);
  expect(member.isRunning).toBe(false);
  const hung = plant(HANGING_CLOSE);
  onTestFinished(hung.remove);
  const { member: other } = enlist({ module: hung.module, locks: { commandTimeout: 200 } });
  await other.start();
  expect(await other.close(20_000)).toBe(true);
  expect([other.faults, other.outage]).toEqual([
    [],
    expect.stringContaining("no reply to the request to close"),
  ]);
});

test("a close() that rejects in the middle of a program is a fault of the worker", async () => {
  const { module, remove } = plant([...REJECTING_CLOSE, ...ALWAYS_REOPENS]);
  onTestFinished(remove);
  const { member } = enlist({ module });
  await member.start();
  member.begin(machineMs() + 60_000);
  await until("it is noticed", () => member.faults.length > 0);
  expect(member.faults).toEqual(["w1: no"]);
});

test("a store that does not reply to close() in the middle of a program ends no program", async () => {
  const { module, remove } = plant([...HANGING_CLOSE, ...ALWAYS_REOPENS]);
  onTestFinished(remove);
  const { member } = enlist({ module, locks: { commandTimeout: 50 } });
  await member.start();
  const { worker } = member;
  expect(await worker.program({ ...PROGRAM, untilMs: machineMs() + 1_000 })).toBeGreaterThan(1);
});

test("a twin works beside its worker under another name, and ends alone", async () => {
  const { member, timeLine, url } = enlist();
  await member.start();
  member.begin(machineMs() + 60_000);
  const end = await member.startTwin({ url });
  await until("the twin works", () => opsOf(timeLine, "w1-twin1").length > 3);
  await end();
  const count = opsOf(timeLine, "w1-twin1").length;
  const before = opsOf(timeLine, "w1").length;
  await until("the worker goes on", () => opsOf(timeLine, "w1").length > before + 3);
  expect(opsOf(timeLine, "w1-twin1")).toHaveLength(count);
  expect(member.faults).toEqual([]);
});

test("a twin that the store refuses is not counted against the store; another failure of it is", async (context) => {
  skipUnless(context, process.getuid?.() === 0, "only root can act as several users");
  const { member, url } = enlist();
  await member.start();
  await (await member.startTwin({ url, uid: 20_002 }))();
  expect(member.faults).toEqual([]);
  await (await member.startTwin({ url: "nothing:" }))();
  expect(member.faults).toHaveLength(1);
});
