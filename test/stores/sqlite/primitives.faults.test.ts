import { join } from "node:path";
import { expect, test } from "vitest";
import type { Leader } from "../../../src/index.js";
import { fold } from "../../../src/verify/check/fold.js";
import { isExclusive } from "../../../src/verify/check/operations.js";
import type { TimeLine } from "../../../src/verify/traffic/time-line.js";
import type { Worker } from "../../../src/verify/traffic/worker.js";
import { freshFolder, open } from "../../support/sqlite.js";
import {
  atWork,
  eventsOf,
  expectKept,
  happens,
  startWorkers,
  until,
} from "../../support/worker.js";

const TTL_MS = 1_200;
/** For a busy machine: order and safety are checked here, not speed. */
const LIMITS = { lossMs: 2_000, wakeMs: 2_000, freeMs: 2_000, endMs: 3_000 };

/** Processes on one new file, with a counter behind a fence beside it, and one more that inspects. */
async function start(count: number, options = {}) {
  const folder = freshFolder();
  const file = join(folder, "locks.db");
  const { workers, timeLine } = await startWorkers(
    count,
    `sqlite:${file}`,
    { ttl: TTL_MS, wait: "20s", ...options },
    { resourceFile: join(folder, "data.db") },
  );
  return { workers, timeLine, locks: await open(file) };
}

const clientOf = (op: string): string => op.split(".")[0]!;

/** The clients that the fence refused. */
const refused = (timeLine: TimeLine): string[] =>
  [...eventsOf(timeLine, "entered"), ...eventsOf(timeLine, "wrote")]
    .filter(({ accepted }) => !accepted)
    .map(({ op }) => op);

/** The most permits that were held at the same time. */
function mostShared(timeLine: TimeLine, name: string): number {
  const operations = fold(timeLine.history()).names.get(name) ?? [];
  const beliefs = operations.filter((op) => !isExclusive(op)).flatMap((op) => op.beliefs);
  const inUse = beliefs.map(({ fromMs: atMs }) =>
    beliefs
      .filter(({ fromMs, toMs }) => fromMs <= atMs && atMs < toMs)
      .reduce((sum, { op }) => sum + op.asked.permits, 0),
  );
  return Math.max(...inUse);
}

/** The moment until which the client relied on its lease, by its last event. */
const deadline = (timeLine: TimeLine, op: string): number =>
  Math.max(
    ...[...eventsOf(timeLine, "granted"), ...eventsOf(timeLine, "renewed")]
      .filter((event) => event.op === op)
      .map(({ untilMs }) => untilMs),
  );

const closeAll = (workers: readonly Worker[]) => Promise.all(workers.map((one) => one.close()));

test("readers and writers: one killed, one paused; writers get their turn, a zombie is refused, readers are not", async () => {
  const { workers, timeLine } = await start(6);
  const [killed, paused, ...others] = workers as [Worker, Worker, ...Worker[]];
  const [third, fourth, ...writers] = others;
  const reads = (holdMs: number) =>
    ({ name: "name", forMs: 3_500, holdMs, writes: true, options: { mode: "shared" } }) as const;
  const traffic = [
    paused.loop(reads(400)),
    third!.loop(reads(100)),
    fourth!.loop(reads(150)),
    ...writers.map((one) => one.loop({ name: "name", forMs: 3_500, holdMs: 10, writes: true })),
  ];
  const dead = killed.loop(reads(400)).catch(() => {});
  const killing = atWork(killed).then(() => killed.kill());
  const zombie = await atWork(paused);
  paused.pause();
  // A writer came after it: its lease has expired, and the fence has moved on.
  await happens(
    timeLine,
    "entered",
    ({ op, floor }) =>
      writers.some(({ client }) => client === clientOf(op)) && floor > zombie.token,
  );
  paused.resume();
  await Promise.all([killing, dead]);
  expect(Math.min(...(await Promise.all(traffic)))).toBeGreaterThan(1);
  await closeAll([paused, ...others]);
  expect(refused(timeLine)).toEqual([zombie.op]);
  expect(mostShared(timeLine, "name")).toBeGreaterThan(1);
  expectKept(timeLine, ["S1", "S2", "S3", "S6", "S7", "S8", "L1", "L3", "L4"], LIMITS);
});

test("permits: never more in use than there are, with holders killed and paused; a claim for many gets its turn", async () => {
  const { workers, timeLine } = await start(6);
  const permits = [1, 2, 3, 1, 2, 1];
  const [killed, paused, ...others] = workers as [Worker, Worker, ...Worker[]];
  const traffic = workers.map((one, i) =>
    one.loop({
      name: "gpu",
      forMs: 3_500,
      holdMs: one === killed || one === paused ? 400 : 30,
      writes: true,
      options: { permits: permits[i]!, limit: 4 },
    }),
  );
  const dead = traffic[0]!.catch(() => {});
  const killing = atWork(killed).then(() => killed.kill());
  const zombie = await atWork(paused);
  paused.pause();
  await happens(timeLine, "entered", ({ floor }) => floor > zombie.token);
  paused.resume();
  await Promise.all([killing, dead]);
  expect(Math.min(...(await Promise.all(traffic.slice(1))))).toBeGreaterThan(1);
  await closeAll([paused, ...others]);
  expect(refused(timeLine)).toEqual([zombie.op]);
  expect(mostShared(timeLine, "gpu")).toBe(4);
  expectKept(timeLine, ["S2", "S3", "S6", "S7", "S8", "L1", "L3", "L4"], LIMITS);
});

test("a killed holder's permits come back at its own expiry, and go to the longest waiter", async () => {
  const { workers, timeLine, locks } = await start(4);
  const [killed, holder, many, one] = workers as [Worker, Worker, Worker, Worker];
  const waiters = async () => (await locks.inspect("gpu"))?.waiters.map(({ permits }) => permits);
  const waiting = (count: number) =>
    until(`${count} wait`, async () => (await waiters())?.length === count);
  const limit = 4;
  const dead = await killed.acquire("gpu", { limit, permits: 2 });
  const held = await holder.acquire("gpu", { limit, permits: 1 });
  const three = many.acquire("gpu", { limit, permits: 3 });
  await waiting(1);
  // One permit is free, but not for a later waiter.
  const last = one.acquire("gpu", { limit });
  await waiting(2);
  await killed.kill();
  const granted = await three;
  expect(await holder.look(held.op)).toBe(true);
  expect(await waiters()).toEqual([1]);
  const { atMs } = await happens(timeLine, "granted", ({ op }) => op === granted.op);
  expect(atMs).toBeGreaterThanOrEqual(deadline(timeLine, dead.op));
  expect(atMs - eventsOf(timeLine, "killed")[0]!.atMs).toBeLessThan(TTL_MS + 2_000);
  await holder.release(held.op);
  expect((await last).token).toBeGreaterThan(granted.token);
  expectKept(timeLine, ["S2", "S8", "L1", "L4"], LIMITS);
});

const ROUNDS = 1_000;

test(`several names in opposite order, ${ROUNDS} rounds: no deadlock`, async () => {
  const { workers, timeLine } = await start(2, { ttl: "10s" });
  const [forth, back] = workers as [Worker, Worker];
  const round = { rounds: ROUNDS, holdMs: 0 };
  const granted = await Promise.all([
    forth.loop({ ...round, name: ["a", "b"] }),
    back.loop({ ...round, name: ["b", "a"] }),
  ]);
  expect(granted).toEqual([ROUNDS, ROUNDS]);
  expectKept(timeLine, ["S1", "S2", "S7", "L4"], LIMITS);
}, 60_000);

test("a process killed with one of several names in hand, waiting for the next, holds nobody up beyond its ttl", async () => {
  const { workers, timeLine, locks } = await start(3);
  const [killed, holder, next] = workers as [Worker, Worker, Worker];
  const held = await holder.acquire("b");
  killed.acquire(["a", "b"]).catch(() => {});
  await until("it holds one", async () => (await locks.inspect("b"))?.waiters.length === 1);
  const before = (await locks.inspect("a"))!.holders[0]!;
  expect(before.holder).toMatch(/^w1 /);
  const all = next.acquire(["b", "a"]);
  await until("the next waits", async () => (await locks.inspect("a"))?.waiters.length === 1);
  await killed.kill();
  await holder.release(held.op);
  const { op, tokens } = await all;
  expect(tokens.get("a")).toBeGreaterThan(before.token);
  expect(tokens.get("b")).toBeGreaterThan(held.token);
  const { atMs } = eventsOf(timeLine, "granted").at(-1)!;
  expect(atMs - eventsOf(timeLine, "killed")[0]!.atMs).toBeLessThan(TTL_MS + 2_000);
  expect(await next.release(op)).toBe("released");
  expect(await locks.list()).toEqual([]);
  expectKept(timeLine, ["S1", "S2", "S7"], LIMITS);
});

test("plain acquires in opposite order wait in a circle: deadlocks() reports it, and a release by force resolves it", async () => {
  const { workers, timeLine, locks } = await start(3, { wait: "1m" });
  const [first, second, operator] = workers as [Worker, Worker, Worker];
  const note = "transfer";
  const [a, b] = await Promise.all([first.acquire("a", { note }), second.acquire("b", { note })]);
  expect(await locks.deadlocks()).toEqual([]);
  const wanted = first.acquire("b", { note });
  const last = second.acquire("a", { note });
  await until("both wait", async () => (await locks.deadlocks()).length > 0);
  const [circle, ...more] = await locks.deadlocks();
  const labels = ["w1 (transfer)", "w2 (transfer)"];
  expect(circle).toMatchObject([
    { holder: labels[0], waitsFor: "b", blockedBy: labels[1], holds: ["a"] },
    { holder: labels[1], waitsFor: "a", blockedBy: labels[0], holds: ["b"] },
  ]);
  expect(more).toEqual([]);

  expect(await operator.forceRelease("b", "a circle")).toEqual([b.token]);
  const granted = await wanted;
  expect(granted.token).toBeGreaterThan(b.token);
  const lost = await happens(timeLine, "lost", ({ op }) => op === b.op);
  expect(lost.reason).toBe("revoked");
  await expect(second.renew(b.op, TTL_MS)).rejects.toMatchObject({
    code: "LEASE_LOST",
    message: expect.stringMatching(/released by force by w3: a circle$/),
  });
  expect(await locks.deadlocks()).toEqual([]);
  expect((await locks.inspect("b"))?.revoked).toMatchObject([
    { holder: labels[1], token: b.token, by: "w3", why: "a circle" },
  ]);
  // A late write or release touches nobody, and the fence refuses it.
  expect(await first.write(granted.op)).toBe(true);
  expect(await second.write(b.op)).toBe(false);
  expect(await second.release(b.op)).toBe("lost");
  expect(await first.look(granted.op)).toBe(true);
  await first.release(a.op);
  expect((await last).token).toBeGreaterThan(a.token);
  expectKept(timeLine, ["S1", "S2", "S3", "S4", "S7"], LIMITS);
});

test("election: the leader is killed, the next is paused; each time another leads, and the paused one knows", async () => {
  const { workers, timeLine, locks } = await start(3);
  const stop = new AbortController();
  const leaders: Leader[] = [];
  const observing = (async () => {
    const terms = locks.election("office").observe({ every: 20, signal: stop.signal });
    for await (const leader of terms) if (leader !== null) leaders.push(leader);
  })().catch((error) => {
    if (!stop.signal.aborted) throw error;
  });
  const byClient = new Map(workers.map((one) => [one.client, one]));
  const leading = new Map(
    workers.map((one) => [one, one.lead({ name: "office", pauseMs: 300 }).catch(() => 0)]),
  );
  /** Resolves once it has begun to work, and the others wait. */
  const elected = async (after: bigint) => {
    const { op, token } = await happens(
      timeLine,
      "entered",
      (event) => event.accepted && event.token > after,
    );
    const { atMs } = await happens(timeLine, "granted", (event) => event.op === op);
    return { worker: byClient.get(clientOf(op))!, op, token, atMs };
  };
  const first = await elected(0n);
  await until("the others wait", async () => (await waiting()) === 2);
  await first.worker.kill();
  const second = await elected(first.token);
  const killedMs = eventsOf(timeLine, "killed")[0]!.atMs;
  expect(second.atMs - killedMs).toBeLessThan(TTL_MS + 2_000);

  second.worker.pause();
  const third = await elected(second.token);
  expect(third.worker).not.toBe(second.worker);
  second.worker.resume();
  const lost = await happens(timeLine, "lost", ({ op }) => op === second.op);
  // The loss is noticed by its own clock, before the store is asked.
  expect(lost.reason).toBe("expired");
  await until("its write is refused", () => refused(timeLine).includes(second.op));
  await until("it campaigns again", async () => (await waiting()) === 1);

  const leadOp = third.op.slice(0, third.op.lastIndexOf("."));
  await third.worker.abort(leadOp);
  expect(await leading.get(third.worker)).toBe(1);
  const again = await elected(third.token);
  expect(again.worker).toBe(second.worker);
  await until("it is seen", () => leaders.at(-1)?.token === again.token);
  stop.abort();
  await observing;
  const terms = [first, second, third, again];
  expect(leaders.map(({ token }) => token)).toEqual(terms.map(({ token }) => token));
  expect(leaders.map(({ holder }) => holder.split(" ")[0])).toEqual(
    terms.map(({ worker }) => worker.client),
  );
  expect(refused(timeLine)).toEqual([second.op]);
  expectKept(timeLine, ["S1", "S2", "S3", "S6", "S7", "L1"], LIMITS);

  async function waiting(): Promise<number | undefined> {
    return (await locks.inspect("office"))?.waiters.length;
  }
});

test("once: of five processes that start together one runs, and after its death no other does within the period", async () => {
  const { workers, timeLine } = await start(5);
  for (let i = 0; i < 20; i++) {
    const once = { name: `job-${i}`, every: "1h", workMs: 5 } as const;
    const ran = await Promise.all(workers.map((one) => one.once(once)));
    expect(ran.filter(Boolean), once.name).toHaveLength(1);
  }
  const [killed, ...others] = workers as [Worker, ...Worker[]];
  const job = { name: "job", ttl: 400, every: 2_000, slack: 0, workMs: 60_000 };
  killed.once(job, "dead").catch(() => {});
  await happens(timeLine, "granted", ({ op }) => op === "dead");
  await killed.kill();
  await until("somebody runs it", async () => {
    const ran = await Promise.all(others.map((one) => one.once({ ...job, workMs: 0 })));
    return ran.some(Boolean);
  });
  // One process counts by the wall clock, this one by another clock.
  expectKept(timeLine, ["S1", "S2", "S7", "S9"], { ...LIMITS, recordMs: 20 });
});
