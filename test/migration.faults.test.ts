import { execFile } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Locks } from "../src/index.js";
import { Lab } from "../src/verify/lab/lab.js";
import type { RedisServer } from "../src/verify/lab/redis.js";
import { rejection } from "./core/helpers.js";
import { describeWith } from "./support/needs.js";
import { until } from "./support/worker.js";

const root = fileURLToPath(new URL("..", import.meta.url));
const text = (path: string): string => readFileSync(join(root, path), "utf8");

const page = text("docs/migration.md");
const [, program, printed] =
  /^<!-- run by test\/migration\.faults\.test\.ts -->\n```js\n(.*?)^```\n\n```\n(.*?)^```/ms.exec(
    page,
  )!;

test("the page and the benchmarks name the versions of redlock and redis-semaphore that run here", () => {
  const installed = JSON.parse(text("package.json")).devDependencies;
  const measured = JSON.parse(text("bench/package.json")).dependencies;
  for (const name of ["redis-semaphore", "redlock"]) {
    expect(page).toContain(`${name}@${installed[name]}`);
    expect(text("README.md")).toContain(`${name} ${installed[name]}`);
    expect(measured[name]).toBe(installed[name]);
  }
});

// Inside the project, so that "holdfast" is this package by its own exports.
const folder = join(root, ".examples-migration");

describeWith(["redis"], "a server that answers nobody", () => {
  let lab: Lab;
  beforeAll(async () => {
    lab = await Lab.open();
  });
  afterAll(async () => {
    rmSync(folder, { recursive: true, force: true });
    await lab?.close();
  });

  test("Holdfast's lease of 2 s is lost, redis-semaphore and redlock report theirs as held after 10 s", async () => {
    const { address, port } = await lab.redis();
    mkdirSync(folder, { recursive: true });
    const file = join(folder, "difference.mjs");
    writeFileSync(file, program!.replaceAll("127.0.0.1:6379", `${address}:${port}`));
    const { stdout } = await promisify(execFile)(process.execPath, [file], { timeout: 100_000 });
    const lines = stdout.trim().split("\n");
    expect(lines).toHaveLength(10);
    for (const line of lines) expect(line).toMatch(/^\d+ (held|jeopardy|lost) true true$/);
    // A second that ends later than its number says is no earlier: the lease is over by then.
    for (const second of [2, 3, 10]) {
      const line = `${second} lost true true`;
      expect(lines[second - 1]).toBe(line);
      expect(printed).toContain(line);
    }
  });
});

interface OldLock {
  release(): Promise<unknown>;
}

/** The program of the page that takes both locks, with redlock as its comment says, on a real server. */
interface BothLocks {
  readonly locks: Locks;
  readonly redlock: {
    acquire(names: string[], ttlMs: number, options?: { retryCount: number }): Promise<OldLock>;
    quit(): Promise<void>;
  };
  withBothLocks<T>(name: string, work: (signal: AbortSignal) => Promise<T>): Promise<T>;
}

describeWith(["redis"], "a process that takes both locks", () => {
  let lab: Lab;
  let both: BothLocks;
  let server: RedisServer;

  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis();
    const [recipe] = /^import \{ connect.*?^async function withBothLocks.*?^\}$/ms.exec(
      page.slice(page.indexOf("## Move a running system")),
    )!;
    const [, body] = /the body is: (return .*?)\. \*\//.exec(recipe!)!;
    const stub = "return work(new AbortController().signal);";
    expect(recipe).toContain(stub);
    mkdirSync(folder, { recursive: true });
    const file = join(folder, "both.ts");
    const code = `import { Redis } from "ioredis";
      import Redlock from "redlock";
      export const redlock = new Redlock([new Redis("${server.url}")]);
      ${recipe!.replace('"memory:"', `"${server.url}"`).replace(stub, `${body};`)}
      export { locks, withBothLocks };`;
    writeFileSync(file, code);
    both = (await import(file)) as BothLocks;
  });
  afterAll(async () => {
    await both?.locks.close();
    await both?.redlock.quit();
    rmSync(folder, { recursive: true, force: true });
    await lab?.close();
  });

  test("excludes processes with the old lock, and processes with Holdfast", async () => {
    const { locks, redlock, withBothLocks } = both;
    const name = "excludes";
    await withBothLocks(name, async () => {
      await expect(redlock.acquire([name], 1_000, { retryCount: 0 })).rejects.toThrow();
      expect(await locks.tryAcquire(name)).toBeNull();
    });
    await (await redlock.acquire([name], 1_000, { retryCount: 0 })).release();
    await (await locks.tryAcquire(name))!.release();
  });

  test("waits for an old process, with Holdfast's lock in its hands", async () => {
    const { locks, redlock, withBothLocks } = both;
    const name = "waits";
    const old = await redlock.acquire([name], 30_000);
    const happened: string[] = [];
    const working = withBothLocks(name, async () => happened.push("work"));
    const holders = async () => (await locks.inspect(name))?.holders.length;
    await until("it holds Holdfast's lock", async () => (await holders()) === 1);
    happened.push("released");
    await old.release();
    await working;
    expect(happened).toEqual(["released", "work"]);
  });

  test.concurrent.each([
    ["the old lock", (name: string) => server.cli("del", name)],
    ["Holdfast's lock", (name: string) => both.locks.forceRelease(name, { why: "a test" })],
  ])("its work is aborted when %s is lost", { timeout: 60_000 }, async (which, lose) => {
    const name = `lost: ${which}`;
    let wasAborted = false;
    const working = both.withBothLocks(name, async (signal) => {
      await lose(name);
      // Each library learns of it when it next renews.
      await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
      wasAborted = true;
    });
    await rejection(working);
    expect(wasAborted).toBe(true);
  });
});
