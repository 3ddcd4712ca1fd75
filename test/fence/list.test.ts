import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { Redis } from "ioredis";
import { describe, expect, onTestFinished, test } from "vitest";
import { openFileFence } from "../../src/fence/file.js";
import { fenceRefusals } from "../../src/fence/index.js";
import { memoryFence } from "../../src/fence/memory.js";
import { redisFence } from "../../src/fence/redis.js";
import { sqliteFence } from "../../src/fence/sqlite.js";
import { listFences } from "../../src/fences.js";
import { STORE_KINDS } from "../../src/stores/registry.js";
import { openSqlite, type SqliteDatabase } from "../../src/stores/sqlite/driver.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { needs } from "../support/needs.js";
import { expectListed } from "./suite.js";

const CLI = new URL("../../dist/cli/main.js", import.meta.url).pathname;
const exclusive = (token: bigint) => ({ token, floor: token });

function newFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-list-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

async function openDatabase(file: string): Promise<SqliteDatabase> {
  const db = await openSqlite(file);
  onTestFinished(() => void db.close());
  return db;
}

const holdfast = (...args: string[]) => promisify(execFile)(process.execPath, [CLI, ...args]);

describe("the list of a fence", () => {
  test("in memory", () => expectListed(memoryFence() as never, { tellsTime: true }));

  test("in SQLite", async () => {
    const db = await openDatabase(join(newFolder(), "data.db"));
    await expectListed(sqliteFence(db) as never, { tellsTime: true });
  });

  test("of files", async () => {
    const fence = await openFileFence(newFolder());
    onTestFinished(() => fence.close());
    await expectListed(fence, { tellsTime: true });
  });

  test("in Redis, without keys that are no fence's", async (context) => {
    needs(context, "redis");
    const lab = await Lab.open();
    onTestFinished(() => lab.close());
    const { url } = await lab.redis();
    const client = new Redis(url);
    onTestFinished(() => client.disconnect());
    await client.mset("holdfast:fence:", "x", "holdfast:fence:plain", "x", "other", "x");
    await expectListed(redisFence(client) as never, { tellsTime: false });
    expect(await listFences(url, { prefix: "b" })).toMatchObject([{ resource: "b" }]);
  });

  test("in SQLite has the time of the last raise, not of the last guard", async () => {
    const db = await openDatabase(join(newFolder(), "data.db"));
    const fence = sqliteFence(db);
    await fence.enter(undefined, "a", exclusive(5n));
    db.exec("UPDATE holdfast_fence SET entered_at = 1");
    await fence.guard(undefined, "a", exclusive(5n));
    expect(await fence.list()).toEqual([{ resource: "a", highest: 5n, enteredAtMs: 1 }]);
    await fence.enter(undefined, "a", exclusive(6n));
    expect((await fence.list())[0]!.enteredAtMs).toBeGreaterThan(1);
  });

  test("in SQLite works on a table of the first version, which had no time", async () => {
    const file = join(newFolder(), "data.db");
    const db = await openDatabase(file);
    db.exec(
      "CREATE TABLE holdfast_fence (resource TEXT PRIMARY KEY, highest INTEGER NOT NULL) WITHOUT ROWID",
    );
    db.exec("INSERT INTO holdfast_fence VALUES ('a', 7)");
    const old = [{ resource: "a", highest: 7n, enteredAtMs: null }];
    expect(await listFences(`sqlite:${file}`)).toEqual(old);
    const fence = sqliteFence(db);
    sqliteFence(await openDatabase(file));
    expect(await fence.list()).toEqual(old);
    await expect(fence.enter(undefined, "a", exclusive(6n))).rejects.toThrow(/stale|below/i);
    await fence.enter(undefined, "a", exclusive(8n));
    expect((await fence.list())[0]!.enteredAtMs).toBeGreaterThan(0);
  });
});

test("a URL without a fence is refused with the schemes that have one, each that of a store", async () => {
  const refusal = await listFences("memory:").catch((error: Error) => error.message);
  const offered = String(refusal)
    .split("name one of ")[1]!
    .split(", ")
    .map((scheme) => scheme.replace(":", ""));
  const schemes = STORE_KINDS.map((kind) => kind.schemes[0]);
  expect(schemes).toEqual(expect.arrayContaining(offered));
  // The stores that keep no fences of their own.
  expect(schemes.filter((scheme) => !offered.includes(scheme))).toEqual(["memory", "redlock"]);
});

describe("holdfast fences", () => {
  test("prints a row for each resource, and JSON", async () => {
    const file = join(newFolder(), "shop.db");
    const db = await openDatabase(file);
    const url = `sqlite:${file}`;
    const empty = await holdfast("fences", "--store", url);
    expect(empty.stdout).toBe(`No fence was entered in ${url}.\n`);
    expect(db.prepare("SELECT name FROM sqlite_master").all(), "it changes nothing").toEqual([]);
    const fence = sqliteFence(db);
    await fence.enter(undefined, "stock:hat", exclusive(41n));
    await fence.enter(undefined, "report\u202e", exclusive(7n));
    const { stdout } = await holdfast("fences", "--store", url, "--prefix", "stock:");
    expect(stdout).toMatch(/^RESOURCE +HIGHEST TOKEN +LAST ENTERED\nstock:hat +41 +\S+ ago\n$/);
    const { stdout: json } = await holdfast("fences", "--store", url, "--json");
    expect(JSON.parse(json)).toMatchObject([
      { resource: "report\u202e", highest: "7", enteredAtMs: expect.any(Number) },
      { resource: "stock:hat", highest: "41" },
    ]);
  });

  test("refuses a file that is missing, and a store that keeps no fences", async () => {
    const missing = holdfast("fences", "--store", `sqlite:${join(newFolder(), "no.db")}`);
    await expect(missing).rejects.toMatchObject({
      code: 64,
      stderr: expect.stringMatching(/there is no file/),
    });
    const quorum = holdfast("fences", "--store", "redlock://a:1,b:1,c:1");
    await expect(quorum).rejects.toMatchObject({ stderr: expect.stringMatching(/keeps fences/) });
  });
});

test("refusals are counted, for the 100 resources that were refused last", async () => {
  const fence = memoryFence();
  const before = fenceRefusals().total;
  const refuse = async (resource: string): Promise<void> => {
    await fence.reset(undefined, resource, 9n);
    await expect(fence.guard(undefined, resource, exclusive(8n))).rejects.toThrow();
  };
  await refuse("first");
  await refuse("again");
  for (let i = 0; i < 98; i++) await refuse(`refused-${i}`);
  await refuse("again");
  await expect(fence.guard(undefined, "new", exclusive(1n), { strict: true })).rejects.toThrow();
  const { total, resources } = fenceRefusals();
  expect(total - before).toBe(102);
  expect(resources).toHaveLength(100);
  expect(resources.slice(0, 2)).toMatchObject([
    { resource: "new", count: 1 },
    { resource: "again", count: 2, lastAtMs: expect.any(Number) },
  ]);
  expect(resources.map(({ resource }) => resource)).not.toContain("first");
});
