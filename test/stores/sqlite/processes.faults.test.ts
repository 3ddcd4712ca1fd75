import { spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync, utimesSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { connect } from "../../../src/index.js";
import type { Locks } from "../../../src/locks.js";
import { freshFile } from "../../support/sqlite.js";
import { expectKept, startWorkers, until } from "../../support/worker.js";

const TTL_MS = 1_500;

const freshUrl = (): string => `sqlite:${freshFile()}`;

async function observer(url: string): Promise<Locks> {
  const locks = await connect(url);
  onTestFinished(() => locks.close());
  return locks;
}

const waiters = async (locks: Locks, name: string): Promise<number> =>
  (await locks.inspect(name))?.waiters.length ?? 0;

test("processes that open a new file together contend without loss: tokens unique, one holder at a time", async () => {
  const url = freshUrl();
  const { workers, timeLine } = await startWorkers(6, url, { wait: "30s" });
  const granted = await Promise.all(
    workers.map((one) => one.loop({ name: "name", forMs: 1_000, holdMs: 0 })),
  );
  expect(Math.min(...granted)).toBeGreaterThan(0);
  expect(await (await observer(url)).list()).toEqual([]);
  expectKept(timeLine, ["S1", "S2", "S7"]);
});

test("a killed holder's name passes on within its ttl", async () => {
  const url = freshUrl();
  const { workers, timeLine } = await startWorkers(2, url, { ttl: TTL_MS });
  const [holder, waiter] = workers;
  const held = await holder!.acquire("name");
  const waiting = waiter!.acquire("name", { wait: "30s" });
  const locks = await observer(url);
  await until("it waits", async () => (await waiters(locks, "name")) === 1);
  await holder!.kill();
  expect((await waiting).token).toBeGreaterThan(held.token);
  expectKept(timeLine, ["S1", "S2", "L1"], { freeMs: 2_000 });
});

test("a paused holder finds its lease lost, and its release touches nobody", async () => {
  const url = freshUrl();
  const { workers, timeLine } = await startWorkers(2, url, { ttl: TTL_MS });
  const [paused, next] = workers;
  const held = await paused!.acquire("name");
  paused!.pause();
  const granted = await next!.acquire("name", { wait: "30s" });
  paused!.resume();
  expect(await paused!.look(held.op)).toBe(false);
  expect(await paused!.release(held.op)).toBe("lost");
  expect(await next!.look(granted.op)).toBe(true);
  const info = await (await observer(url)).inspect("name");
  expect(info?.holders.map((one) => one.token)).toEqual([granted.token]);
  expectKept(timeLine, ["S1", "S2", "S4", "S6", "S7"], { wakeMs: 2_000 });
});

test("a waiter that was killed is skipped at once, not after its ticket's ttl", async () => {
  const url = freshUrl();
  const { workers } = await startWorkers(3, url, { ttl: 60_000 });
  const [holder, dead, living] = workers;
  const locks = await observer(url);
  const held = await holder!.acquire("name");
  dead!.acquire("name", { wait: "5m" }).catch(() => {});
  await until("the first waits", async () => (await waiters(locks, "name")) === 1);
  const waiting = living!.acquire("name", { wait: "5m" });
  await until("the second waits", async () => (await waiters(locks, "name")) === 2);
  await dead!.kill();
  await holder!.release(held.op);
  const releasedMs = performance.now();
  await waiting;
  expect(performance.now() - releasedMs).toBeLessThan(5_000);
});

test("a waiter that was paused when its turn came holds nothing afterwards", async () => {
  const url = freshUrl();
  const { workers, timeLine } = await startWorkers(3, url, { ttl: TTL_MS });
  const [holder, paused, third] = workers;
  const locks = await observer(url);
  const held = await holder!.acquire("name");
  const late = paused!.acquire("name", { wait: "30s" });
  await until("it waits", async () => (await waiters(locks, "name")) === 1);
  paused!.pause();
  await holder!.release(held.op);
  const granted = await third!.acquire("name", { wait: "30s" });
  paused!.resume();
  await until("it waits again", async () => (await waiters(locks, "name")) === 1);
  expect(await third!.look(granted.op)).toBe(true);
  await third!.release(granted.op);
  expect((await late).token).toBeGreaterThan(granted.token);
  expectKept(timeLine, ["S1", "S2", "S7"]);
});

test.each([
  ["release", "await lease.release()"],
  ["forceRelease", 'await locks.forceRelease("name", { why: "a test" })'],
])("a process that exits right after its %s has notified the next waiter", async (_what, code) => {
  const url = freshUrl();
  const { workers } = await startWorkers(1, url, { ttl: 60_000 });
  const locks = await observer(url);
  const script = `
    const { connect } = await import(${JSON.stringify(new URL("../../../dist/index.js", import.meta.url).href)});
    const locks = await connect(${JSON.stringify(url)});
    const lease = await locks.acquire("name");
    process.stdout.write("held");
    await new Promise((resolve) => process.stdin.once("data", resolve));
    ${code};
    process.exit(0);`;
  const holder = spawn(process.execPath, ["--input-type=module", "-e", script], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  onTestFinished(() => void holder.kill("SIGKILL"));
  await once(holder.stdout!, "data");
  const waiting = workers[0]!.acquire("name", { wait: "5m" });
  await until("it waits", async () => (await waiters(locks, "name")) === 1);
  holder.stdin!.write("go on");
  const releasedMs = performance.now();
  await waiting;
  expect(performance.now() - releasedMs).toBeLessThan(5_000);
});

test("sockets of killed waiters are swept", async () => {
  const url = freshUrl();
  const folder = `${url.slice("sqlite:".length)}-wake`;
  const locks = await observer(url);
  const lease = await locks.acquire("name");
  const {
    workers: [killed, next],
  } = await startWorkers(2, url, { ttl: 300 });
  killed!.acquire("name").catch(() => {});
  await until("it waits", async () => (await waiters(locks, "name")) === 1);
  await killed!.kill();
  await until("its ticket is over", async () => (await waiters(locks, "name")) === 0);
  const [left] = readdirSync(folder);
  const longAgo = new Date(Date.now() - 3_600_000);
  utimesSync(join(folder, left!), longAgo, longAgo);
  const waiting = next!.acquire("name");
  await until("only the living socket is left", () => {
    const [only, ...more] = readdirSync(folder);
    return only !== undefined && only !== left && more.length === 0;
  });
  await lease.release();
  await waiting;
});

test("a worker of a cluster listens by itself, not by way of the primary process", async () => {
  const file = freshFile();
  const dist = new URL("../../../dist/index.js", import.meta.url).href;
  const script = join(file, "../cluster.mjs");
  writeFileSync(
    script,
    `import cluster from "node:cluster";
    if (cluster.isPrimary) cluster.fork().once("exit", (code) => process.exit(code));
    else {
      const { connect } = await import(${JSON.stringify(dist)});
      const locks = await connect(${JSON.stringify(`sqlite:${file}`)}, { ttl: "5m" });
      await (await locks.acquire("name", { wait: "1m" })).release();
      await locks.close();
      process.exit(0);
    }`,
  );
  const locks = await observer(`sqlite:${file}`);
  const lease = await locks.acquire("name");
  const cluster = spawn(process.execPath, [script], { stdio: "inherit" });
  onTestFinished(() => void cluster.kill("SIGKILL"));
  const exited = once(cluster, "exit");
  await until("it waits", async () => (await waiters(locks, "name")) === 1);
  expect(readdirSync(`${file}-wake`).length).toBe(1);
  await lease.release();
  expect(await exited).toEqual([0, null]);
});
