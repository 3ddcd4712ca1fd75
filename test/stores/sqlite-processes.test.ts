import { spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync, utimesSync } from "node:fs";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import type { Locks } from "../../src/core/locks.js";
import { connect } from "../../src/index.js";
import { freshFile } from "../support/sqlite.js";
import { until, Worker } from "../support/worker.js";

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
  const workers = await Promise.all(Array.from({ length: 6 }, () => Worker.start(url)));
  const answers = await Promise.all(
    workers.map((one) => one.ask("loop", { name: "name", times: 25 })),
  );
  const tokens = answers.flatMap((answer) => answer["tokens"] as string[]);
  expect(new Set(tokens).size).toBe(150);
  for (const answer of answers) {
    const own = (answer["tokens"] as string[]).map(BigInt);
    expect(own.every((token, i) => i === 0 || token > own[i - 1]!)).toBe(true);
  }
  expect(await (await observer(url)).list()).toEqual([]);
});

test("a killed holder's name passes on within its ttl", async () => {
  const url = freshUrl();
  const [holder, waiter] = await Promise.all([1, 2].map(() => Worker.start(url, { ttl: TTL_MS })));
  const held = await holder!.ask("acquire", { name: "name" });
  const waiting = waiter!.ask("acquire", { name: "name", options: { wait: "30s" } });
  const locks = await observer(url);
  await until("it waits", async () => (await waiters(locks, "name")) === 1);
  await holder!.kill();
  const killedMs = performance.now();
  const granted = await waiting;
  expect(BigInt(granted["token"] as string)).toBeGreaterThan(BigInt(held["token"] as string));
  expect(performance.now() - killedMs).toBeLessThan(TTL_MS + 2_000);
});

test("a paused holder finds its lease lost, and its release touches nobody", async () => {
  const url = freshUrl();
  const [paused, next] = await Promise.all([1, 2].map(() => Worker.start(url, { ttl: TTL_MS })));
  const held = await paused!.ask("acquire", { name: "name" });
  paused!.pause();
  const granted = await next!.ask("acquire", { name: "name", options: { wait: "30s" } });
  expect(BigInt(granted["token"] as string)).toBeGreaterThan(BigInt(held["token"] as string));
  paused!.resume();
  expect(await paused!.ask("state", { name: "name" })).toEqual({ state: "lost", aborted: true });
  expect(await paused!.ask("release", { name: "name" })).toMatchObject({ result: "lost" });
  expect(await next!.ask("state", { name: "name" })).toEqual({ state: "held", aborted: false });
  const info = await (await observer(url)).inspect("name");
  expect(info?.holders.map((one) => String(one.token))).toEqual([granted["token"]]);
});

test("a waiter that was killed is skipped at once, not after its ticket's ttl", async () => {
  const url = freshUrl();
  const ttl = 60_000;
  const [holder, dead, living] = await Promise.all([1, 2, 3].map(() => Worker.start(url, { ttl })));
  const locks = await observer(url);
  await holder!.ask("acquire", { name: "name" });
  dead!.ask("acquire", { name: "name", options: { wait: "5m" } }).catch(() => {});
  await until("the first waits", async () => (await waiters(locks, "name")) === 1);
  const waiting = living!.ask("acquire", { name: "name", options: { wait: "5m" } });
  await until("the second waits", async () => (await waiters(locks, "name")) === 2);
  await dead!.kill();
  await holder!.ask("release", { name: "name" });
  const releasedMs = performance.now();
  expect(await waiting).not.toHaveProperty("error");
  expect(performance.now() - releasedMs).toBeLessThan(5_000);
});

test("a waiter that was paused when its turn came holds nothing afterwards", async () => {
  const url = freshUrl();
  const [holder, paused, third] = await Promise.all(
    [1, 2, 3].map(() => Worker.start(url, { ttl: TTL_MS })),
  );
  const locks = await observer(url);
  await holder!.ask("acquire", { name: "name" });
  const late = paused!.ask("acquire", { name: "name", options: { wait: "30s" } });
  await until("it waits", async () => (await waiters(locks, "name")) === 1);
  paused!.pause();
  await holder!.ask("release", { name: "name" });
  const granted = await third!.ask("acquire", { name: "name", options: { wait: "30s" } });
  paused!.resume();
  await until("it waits again", async () => (await waiters(locks, "name")) === 1);
  expect(await third!.ask("state", { name: "name" })).toEqual({ state: "held", aborted: false });
  await third!.ask("release", { name: "name" });
  const after = await late;
  expect(BigInt(after["token"] as string)).toBeGreaterThan(BigInt(granted["token"] as string));
});

test.each([
  ["release", "await lease.release()"],
  ["forceRelease", 'await locks.forceRelease("name", { why: "a test" })'],
])("a process that exits right after its %s has told the next", async (_what, code) => {
  const url = freshUrl();
  const waiter = await Worker.start(url, { ttl: 60_000 });
  const locks = await observer(url);
  const script = `
    const { connect } = await import(${JSON.stringify(new URL("../../dist/index.js", import.meta.url).href)});
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
  const waiting = waiter.ask("acquire", { name: "name", options: { wait: "5m" } });
  await until("it waits", async () => (await waiters(locks, "name")) === 1);
  holder.stdin!.write("go on");
  const releasedMs = performance.now();
  expect(await waiting).not.toHaveProperty("error");
  expect(performance.now() - releasedMs).toBeLessThan(5_000);
});

test("sockets of killed waiters are swept", async () => {
  const url = freshUrl();
  const folder = `${url.slice("sqlite:".length)}-wake`;
  const locks = await observer(url);
  const lease = await locks.acquire("name");
  const killed = await Worker.start(url, { ttl: 300 });
  killed.ask("acquire", { name: "name" }).catch(() => {});
  await until("it waits", async () => (await waiters(locks, "name")) === 1);
  await killed.kill();
  await until("its ticket is over", async () => (await waiters(locks, "name")) === 0);
  const [left] = readdirSync(folder);
  const longAgo = new Date(Date.now() - 3_600_000);
  utimesSync(join(folder, left!), longAgo, longAgo);
  const next = await Worker.start(url);
  const waiting = next.ask("acquire", { name: "name" });
  await until("only the living socket is left", () => {
    const [only, ...more] = readdirSync(folder);
    return only !== undefined && only !== left && more.length === 0;
  });
  await lease.release();
  expect(await waiting).not.toHaveProperty("error");
});
