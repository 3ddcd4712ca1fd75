import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { LOCK_LIMIT } from "../../../src/core/store.js";
import { seededRandom } from "../../../src/testing.js";
import { checkHistory } from "../../../src/verify/check/check.js";
import { carryOut, fault, planFaults } from "../../../src/verify/fault.js";
import { Process } from "../../../src/verify/faults/process.js";
import { FalseClock } from "../../../src/verify/lab/clock.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { findFile } from "../../../src/verify/lab/requirements.js";
import { LOOPBACK } from "../../../src/verify/lab/server.js";
import { machineMs, TimeLine } from "../../../src/verify/traffic/time-line.js";
import { Worker, WorkerError } from "../../../src/verify/traffic/worker.js";
import { SEED } from "../../support/chance.js";
import { needs, skipUnless } from "../../support/needs.js";
import { freshFolder } from "../../support/sqlite.js";
import { eventsOf, expectKept, startWorkers, until } from "../../support/worker.js";

const freshUrl = (): string => `sqlite:${join(freshFolder(), "locks.db")}`;
const kinds = (timeLine: TimeLine): string[] => timeLine.history().map(({ kind }) => kind);

test("a worker reports what it believes and when, on a time line that all share", async () => {
  const fromMs = machineMs();
  const { workers, timeLine } = await startWorkers(1, freshUrl(), { ttl: 600 });
  const [worker] = workers;
  const { op, token } = await worker!.acquire("name");
  await until("it is renewed", () => kinds(timeLine).includes("renewed"));
  expect(await worker!.look(op)).toBe(true);
  expect(await worker!.release(op)).toBe("released");
  await worker!.close();
  const history = timeLine.history();
  expect([...new Set(kinds(timeLine))]).toEqual([
    "asked",
    "granted",
    "renewed",
    "looked",
    "releasing",
    "released",
    "left",
  ]);
  const granted = history.find(({ kind }) => kind === "granted")!;
  expect(granted).toMatchObject({ op, token, floor: token });
  expect(history[0]!.atMs).toBeGreaterThan(fromMs);
  expect(history.at(-1)).toMatchObject({ waiters: 0, timers: 0, sockets: 0 });
  expectKept(timeLine, ["S7", "L3"]);
});

test("a worker reports a claim that is not granted: timeout, abort, refusal", async () => {
  const { workers, timeLine } = await startWorkers(2, freshUrl(), { ttl: 5_000 });
  const [holder, other] = workers;
  await holder!.acquire("name");
  const timedOut = await other!.acquire("name", { wait: 50 }).catch((error) => error);
  expect(timedOut).toBeInstanceOf(WorkerError);
  expect(timedOut.code).toBe("ACQUIRE_TIMEOUT");
  const waiting = other!.acquire("name", { wait: Number.POSITIVE_INFINITY }, "aborted-op");
  await until(
    "it has claimed",
    () => kinds(timeLine).filter((kind) => kind === "asked").length === 3,
  );
  await other!.abort("aborted-op");
  await expect(waiting).rejects.toThrow();
  await expect(other!.acquire("", {})).rejects.toMatchObject({ code: "INVALID_ARGUMENT" });
  const ends = timeLine
    .history()
    .flatMap((event) => (event.kind === "not-granted" ? [event.outcome] : []));
  expect(ends).toEqual(["timeout", "aborted", "refused"]);
  expectKept(timeLine, ["S5", "L3"]);
});

test("a worker reports permits, shared leases and leadership as what they are", async () => {
  const { workers, timeLine } = await startWorkers(2, freshUrl());
  const [first, second] = workers as [Worker, Worker];
  const permits = await first.acquire("gpu", { limit: 4, permits: 3 });
  await first.acquire("file", { mode: "shared", renew: false });
  await second.acquire("file", { mode: "shared", maxHold: 500, atLeast: 100 });
  await expect(second.acquire("gpu", { limit: 5 })).rejects.toMatchObject({
    code: "INVALID_ARGUMENT",
  });
  for (const [name, options] of [
    ["gpu", { permits: 1 }],
    ["gpu", { limit: 4, elected: true }],
    [["gpu", "cpu"], { limit: 4 }],
  ] as const) {
    await expect(second.acquire(name, options)).rejects.toThrow("permits need a limit");
  }
  const office = await first.acquire("office", { elected: true });
  const next = second.acquire("office", { elected: true });
  await until("it waits", () => kinds(timeLine).includes("queued"));
  expect(await first.release(office.op)).toBe("released");
  expect((await next).token).toBeGreaterThan(office.token);
  expect(await first.release(permits.op)).toBe("released");
  const asked = eventsOf(timeLine, "asked").map(
    ({ kind, atMs, op, client, ttlMs, ...rest }) => rest,
  );
  const reader = { name: "file", permits: 1, limit: LOCK_LIMIT, waitMs: 10_000 };
  const leader = { name: "office", permits: LOCK_LIMIT, limit: LOCK_LIMIT };
  const forEver = Number.POSITIVE_INFINITY;
  expect(asked).toEqual([
    { name: "gpu", permits: 3, limit: 4, waitMs: 10_000 },
    { ...reader, renew: false },
    { ...reader, maxHoldMs: 500, atLeastMs: 100 },
    { name: "gpu", permits: 1, limit: 5, waitMs: 10_000 },
    { ...leader, waitMs: forEver },
    { ...leader, waitMs: forEver },
  ]);
});

test("several names are several operations, granted and lost together; a release by force is in the history", async () => {
  const { workers, timeLine } = await startWorkers(2, freshUrl(), { ttl: 600 });
  const [worker, operator] = workers as [Worker, Worker];
  const { op, tokens } = await worker.acquire(["b", "a", "b"], {}, "both");
  expect([...tokens.keys()]).toEqual(["a", "b"]);
  await until("it is renewed", () => kinds(timeLine).includes("renewed"));
  expect(await worker.look(op)).toBe(true);
  const [taken] = await operator.forceRelease("a", "a test");
  expect(taken).toBe(tokens.get("a"));
  expect(await operator.forceRelease("nobody's", "a test")).toEqual([]);
  await until("it is notified", () => eventsOf(timeLine, "lost").length === 2);
  expect(await worker.look(op)).toBe(false);
  expect(await worker.release(op)).toBe("lost");
  const course = (of: string) =>
    timeLine.history().flatMap((event) => ("op" in event && event.op === of ? [event.kind] : []));
  const lost = eventsOf(timeLine, "lost").map((event) => [event.op, event.reason]);
  expect(lost).toEqual([
    ["both.a", "revoked"],
    ["both.b", "together"],
  ]);
  expect(eventsOf(timeLine, "asked").map(({ together }) => together)).toEqual(["both", "both"]);
  expect(eventsOf(timeLine, "revoked")).toMatchObject([{ op: "both.a", token: taken }]);
  expect(new Set(course("both.b"))).toEqual(
    new Set(["asked", "granted", "renewed", "looked", "lost", "releasing", "released"]),
  );
  expect(new Set(course("both.a"))).toEqual(new Set([...course("both.b"), "revoked"]));
  expectKept(timeLine, ["S7"], { lossMs: 2_000 });
});

test("a leader's terms and a periodic run are operations, which end when they are released", async () => {
  const folder = freshFolder();
  const { workers, timeLine } = await startWorkers(
    2,
    `sqlite:${join(folder, "locks.db")}`,
    { ttl: 600 },
    { resourceFile: join(folder, "data.db") },
  );
  const [first, second] = workers as [Worker, Worker];
  const lead = { name: "office", pauseMs: 5 };
  const leading = first.lead(lead, "first");
  await until("it writes", () => eventsOf(timeLine, "wrote").length > 0);
  const waiting = second.lead(lead, "second");
  await until("the other waits", () => kinds(timeLine).includes("queued"));
  await second.abort("second");
  expect(await waiting).toBe(0);
  await second.forceRelease("office", "a new term");
  await until("it leads again", () =>
    eventsOf(timeLine, "wrote").some(({ op }) => op === "first.2"),
  );
  await first.abort("first");
  expect(await leading).toBe(2);
  const job = { name: "job", every: "1h", workMs: 0 } as const;
  expect(await first.once(job)).toBe(true);
  expect(await second.once(job)).toBe(false);
  await Promise.all(workers.map((one) => one.close()));
  const ends = timeLine
    .history()
    .flatMap((event) =>
      event.kind === "not-granted" || event.kind === "releasing" ? [event] : [],
    );
  expect(ends).toMatchObject([
    { op: "second.1", outcome: "aborted" },
    { op: "first.1", kind: "releasing" },
    { op: "first.2", kind: "releasing" },
    { op: "w1.1", kind: "releasing" },
    { op: "w2.1", outcome: "busy" },
  ]);
  expect(eventsOf(timeLine, "asked").at(-1)).toMatchObject({ waitMs: 0, atLeastMs: 3_540_000 });
  expectKept(timeLine, ["S1", "S2", "S3", "S7", "L3"], { lossMs: 2_000, endMs: 3_000 });
});

test("a worker that can't start says why, and so does one that has ended", async () => {
  await expect(Worker.start({ client: "w", url: "nowhere:" })).rejects.toThrow(/nowhere/);
  const { workers } = await startWorkers(1, freshUrl());
  const waiting = workers[0]!.block(60_000);
  await workers[0]!.kill();
  await expect(waiting).rejects.toThrow("worker w1 ended by SIGKILL");
  await expect(workers[0]!.look("w1.1")).rejects.toThrow("ended by SIGKILL");
});

test("no report is lost while nobody reads, and operations have different names", async () => {
  const { workers, timeLine } = await startWorkers(1, freshUrl());
  const [worker] = workers;
  const granted = () => timeLine.history().filter(({ kind }) => kind === "granted").length;
  const first = worker!.loop({ name: "name", forMs: 1_000, holdMs: 0 });
  // More than a pipe buffers.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 800);
  const inFirst = await first;
  expect(granted()).toBe(inFirst);
  const inSecond = await worker!.loop({ name: "name", forMs: 100, holdMs: 0 });
  await worker!.acquire("name");
  expect(granted()).toBe(inFirst + inSecond + 1);
  expectKept(timeLine, ["S1", "S2"]);
});

test("a worker that dies by itself is dead in the history too", async () => {
  const { workers, timeLine } = await startWorkers(1, freshUrl(), { ttl: 300 });
  const [worker] = workers;
  await worker!.acquire("name");
  process.kill(worker!.pid, "SIGKILL");
  await until("it is noticed", () => kinds(timeLine).includes("killed"));
  worker!.pause();
  expect(kinds(timeLine).filter((kind) => kind === "killed" || kind === "paused")).toEqual([
    "killed",
  ]);
});

test("a stopped worker dies with its parent", async (context) => {
  skipUnless(context, findFile("setpriv") !== null, "needs setpriv");
  const script = `
    const { Worker } = await import("holdfast/verify");
    const worker = await Worker.start({ client: "w", url: ${JSON.stringify(freshUrl())} });
    worker.pause();
    process.stdout.write(String(worker.pid));
    await new Promise(() => setInterval(() => {}, 1e6));`;
  const parent = spawn(process.execPath, ["--input-type=module", "-e", script], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  onTestFinished(() => void parent.kill("SIGKILL"));
  const [pid] = await once(parent.stdout!, "data");
  const orphan = new Process("the worker", Number(pid));
  expect(orphan.state).not.toBe("down");
  parent.kill("SIGKILL");
  await until("it is gone", () => orphan.state === "down");
});

test("a worker that prints something else is ended, and its output is reported", async () => {
  const env = { NODE_OPTIONS: "--import=data:text/javascript,console.log('hello')" };
  const options = { client: "w", url: freshUrl(), site: { ...LOOPBACK, env } };
  await expect(Worker.start(options)).rejects.toThrow(
    "worker w printed a line that is not a report: hello",
  );
});

test("a mutant that a worker can't have is refused", async () => {
  const options = { client: "w", url: freshUrl(), mutant: "barging" } as const;
  await expect(Worker.start(options)).rejects.toThrow('a worker can\'t use the mutant "barging"');
});

test("a worker with a blocked event loop notices its loss when it goes on, and the fence refuses its write", async () => {
  const folder = freshFolder();
  const { workers, timeLine } = await startWorkers(
    2,
    `sqlite:${join(folder, "locks.db")}`,
    { ttl: 600 },
    { resourceFile: join(folder, "data.db") },
  );
  const [blocked, next] = workers;
  const held = await blocked!.acquire("name");
  const late = blocked!.write(held.op, { pauseMs: 1_000 });
  await until("it has entered", () => kinds(timeLine).includes("entered"));
  const block = blocked!.block(1_500);
  const granted = await next!.acquire("name");
  expect(await next!.write(granted.op)).toBe(true);
  await block;
  expect(await blocked!.look(held.op)).toBe(false);
  expect(await late).toBe(false);
  // Nobody recorded a pause: the check reports the late notice as a violation.
  const [broken, ...others] = checkHistory(timeLine.history()).filter(
    ({ verdict }) => verdict === "violated",
  );
  expect(broken?.rule).toBe("S6");
  expect(others).toEqual([]);
});

test("random pauses and kills under traffic break no promise", async () => {
  const seed = SEED;
  const folder = freshFolder();
  const ttlMs = 700;
  const { workers, timeLine } = await startWorkers(
    4,
    `sqlite:${join(folder, "locks.db")}`,
    { ttl: ttlMs, wait: "20s" },
    { resourceFile: join(folder, "data.db") },
  );
  const [victim, ...survivors] = workers;
  const faults = workers.slice(1).map((worker) =>
    fault(
      `${worker.client} paused`,
      () => worker.pause(),
      () => worker.resume(),
    ),
  );
  const plan = planFaults(faults, seededRandom(seed), {
    forMs: 6_000,
    pause: { minMs: 20, maxMs: 300 },
    last: { minMs: 100, maxMs: 2 * ttlMs },
  });
  const loop = { name: "name", forMs: 6_000, holdMs: 20, writes: true };
  const lost = victim!.loop(loop).catch(() => {});
  const traffic = survivors.map((worker) => worker.loop(loop));
  const killing = until("it holds the name", () =>
    timeLine.history().some((event) => event.kind === "granted" && event.op.startsWith("w1.")),
  ).then(() => victim!.kill());
  await Promise.all([carryOut(plan), killing, lost]);
  const granted = await Promise.all(traffic);
  await Promise.all(survivors.map((worker) => worker.close()));
  expect(Math.min(...granted), `seed ${seed}`).toBeGreaterThan(0);
  expectKept(timeLine, ["S1", "S2", "S3", "S7", "L3"], {
    lossMs: 2_000,
    wakeMs: 2_000,
    freeMs: 2_000,
    endMs: 3_000,
    // A worker that is paused in a transaction blocks the file for all, and their tickets expire unseen.
    fair: false,
  });
});

test("a core that keeps its deadline by the wall clock is caught in a real process", async (context) => {
  needs(context, "faketime");
  const lab = await Lab.open();
  onTestFinished(() => lab.close());
  const clock = await FalseClock.open(lab);
  const url = freshUrl();
  const timeLine = new TimeLine();
  const wrong = await Worker.start({
    client: "wrong",
    url,
    locks: { ttl: 600 },
    timeLine,
    site: clock.site(),
    mutant: "deadline on the wall clock",
  });
  onTestFinished(() => wrong.kill());
  const {
    workers: [next],
  } = await startWorkers(1, url, { ttl: 600 }, { timeLine });
  const { op } = await wrong.acquire("name", { renew: false });
  wrong.pause();
  await clock.jump(-60_000).inject();
  await next!.acquire("name", { wait: "20s" });
  wrong.resume();
  expect(await wrong.look(op)).toBe(true);
  const broken = checkHistory(timeLine.history()).filter(({ verdict }) => verdict === "violated");
  expect(broken.map(({ rule }) => rule)).toContain("S7");
});
