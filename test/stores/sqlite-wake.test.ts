import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { connect as connectSocket } from "node:net";
import { join } from "node:path";
import { expect, test } from "vitest";
import { freshFile, freshFolder, open } from "../support/sqlite.js";
import { until } from "../support/worker.js";

test("where no socket can be had, waiters look for themselves", async () => {
  const file = freshFile();
  writeFileSync(`${file}-wake`, "a file where the folder should be");
  const [one, two] = [await open(file), await open(file)];
  const lease = await one.acquire("name");
  const waiting = two.acquire("name");
  await until("it waits", async () => (await one.inspect("name"))!.waiters.length === 1);
  await lease.release();
  const releasedMs = performance.now();
  await (await waiting).release();
  expect(performance.now() - releasedMs).toBeLessThan(2_000);
});

test("a path too long for a socket beside it still wakes its waiters", async () => {
  const folder = join(freshFolder(), "long".repeat(30));
  mkdirSync(folder);
  const file = join(folder, "locks.db");
  const [one, two] = [await open(file), await open(file)];
  const lease = await one.acquire("name");
  const waiting = two.acquire("name");
  await until("it waits", async () => (await one.inspect("name"))!.waiters.length === 1);
  await lease.release();
  await (await waiting).release();
  expect(existsSync(`${file}-wake`)).toBe(false);
});

test("nonsense on the wake socket is ignored, and close removes the socket", async () => {
  const file = freshFile();
  const [one, two] = [await open(file), await open(file)];
  const lease = await one.acquire("name");
  const waiting = two.acquire("name");
  await until("it waits", async () => (await one.inspect("name"))!.waiters.length === 1);
  const [socket] = readdirSync(`${file}-wake`);
  for (const nonsense of [
    "\n\n",
    "{}\nnull\n[]\n",
    '{"grantId":"x","token":"1","floor":"1","ttlMs":1000,"seq":1}\n',
    '{"grantId":1,"token":-1}\n',
    "x".repeat(3_000_000),
  ]) {
    await new Promise<void>((resolve) => {
      const client = connectSocket(join(`${file}-wake`, socket!));
      client.on("error", () => {});
      client.on("close", () => resolve());
      client.end(nonsense);
    });
  }
  expect((await one.inspect("name"))?.waiters.length).toBe(1);
  await lease.release();
  await (await waiting).release();
  await one.close();
  await two.close();
  expect(existsSync(`${file}-wake`)).toBe(false);
});

test("a waiter whose socket's file is gone is not taken for dead: it finds its grant by itself", async () => {
  const file = freshFile();
  const options = { ttl: 900 };
  const [one, two, three] = [
    await open(file, options),
    await open(file, options),
    await open(file),
  ];
  const lease = await one.acquire("name");
  const first = two.acquire("name", { wait: "20s" });
  await until("it waits", async () => (await one.inspect("name"))!.waiters.length === 1);
  const second = three.acquire("name", { wait: "20s" });
  await until("both wait", async () => (await one.inspect("name"))!.waiters.length === 2);
  for (const socket of readdirSync(`${file}-wake`)) rmSync(join(`${file}-wake`, socket));
  await lease.release();
  const granted = await first;
  expect(granted.state).toBe("held");
  expect((await one.inspect("name"))!.waiters.length).toBe(1);
  await granted.release();
  expect((await second).token).toBeGreaterThan(granted.token);
});

test("closing while the first waiter is about to listen leaves no socket", async () => {
  for (let i = 0; i < 10; i++) {
    const file = freshFile();
    const [one, two] = [await open(file), await open(file)];
    await one.acquire("name");
    const waiting = two.acquire("name").catch((error: unknown) => error);
    for (let turn = 0; turn < i; turn++) await new Promise((resolve) => setImmediate(resolve));
    await two.close();
    expect(await waiting).toMatchObject({ code: "CLOSED" });
    await one.close();
    await until("nothing is left", () => !existsSync(`${file}-wake`));
  }
});

test("whoever may use the file may wake its waiters, and nobody else", async () => {
  for (const [fileMode, folderMode] of [
    [0o600, 0o700],
    [0o660, 0o770],
  ] as const) {
    const file = freshFile();
    writeFileSync(file, "");
    chmodSync(file, fileMode);
    const [one, two] = [await open(file), await open(file)];
    const lease = await one.acquire("name");
    const waiting = two.acquire("name");
    await until("it waits", async () => (await one.inspect("name"))!.waiters.length === 1);
    expect(statSync(`${file}-wake`).mode & 0o777).toBe(folderMode);
    const [socket] = readdirSync(`${file}-wake`);
    expect(statSync(join(`${file}-wake`, socket!)).mode & 0o777).toBe(fileMode);
    await lease.release();
    await (await waiting).release();
  }
});
