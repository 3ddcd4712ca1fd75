import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, it } from "vitest";
import { type SqliteFence, sqliteFence } from "../../src/fence/sqlite.js";
import { openSqlite, type SqliteDatabase } from "../../src/stores/sqlite/driver.js";

const OLD = { token: 1n, floor: 1n };
const NEW = { token: 2n, floor: 2n };

const cleanups: (() => void)[] = [];
afterEach(() => {
  for (const cleanup of cleanups.splice(0).reverse()) cleanup();
});

async function counter(): Promise<{ db: SqliteDatabase; fence: SqliteFence }> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-fence-test-"));
  cleanups.push(() => rmSync(folder, { recursive: true, force: true }));
  const db = await openSqlite(join(folder, "data.db"));
  cleanups.push(() => db.close());
  db.exec("CREATE TABLE counter (value INTEGER); INSERT INTO counter VALUES (0)");
  return { db, fence: sqliteFence(db) };
}

const countOf = (db: SqliteDatabase): number =>
  (db.prepare("SELECT value FROM counter").get() as { value: number }).value;

it("the SQLite fence lets nobody enter by the same connection between a guard and the write after it", async () => {
  const { db, fence } = await counter();
  await fence.enter(undefined, "counter", OLD);
  db.exec("BEGIN IMMEDIATE");
  await fence.guard(db, "counter", OLD);
  const next = fence.enter(undefined, "counter", NEW).then(() => countOf(db));
  await new Promise((resolve) => setTimeout(resolve, 30));
  db.prepare("UPDATE counter SET value = 1").run();
  db.exec("COMMIT");
  expect(await next).toBe(1);
  await expect(fence.guard(undefined, "counter", OLD)).rejects.toMatchObject({
    code: "STALE_TOKEN",
  });
});

it("the SQLite fence gives no parameter a number, which node:sqlite can't bind before Node 22.20", async () => {
  const { db } = await counter();
  const prepared: string[] = [];
  const prepare = (sql: string) => {
    prepared.push(sql);
    return db.prepare(sql);
  };
  const fence = sqliteFence({ exec: (sql) => db.exec(sql), prepare, close: () => db.close() });
  await fence.enter(undefined, "counter", OLD);
  await fence.reset(undefined, "counter", 3n);
  expect(await fence.list({ prefix: "count" })).toMatchObject([{ highest: 3n }]);
  expect(prepared.length).toBeGreaterThan(4);
  expect(prepared.filter((sql) => /\?\d/.test(sql))).toEqual([]);
});

it("the SQLite fence refuses a guard on a connection without a transaction", async () => {
  const { db, fence } = await counter();
  const refusal = { code: "INVALID_ARGUMENT", message: expect.stringContaining("BEGIN IMMEDIATE") };
  await expect(fence.guard(db, "counter", OLD)).rejects.toMatchObject(refusal);
  const ofBetterSqlite = { exec: db.exec, prepare: db.prepare, inTransaction: false };
  await expect(fence.guard(ofBetterSqlite as never, "counter", OLD)).rejects.toMatchObject(refusal);
  expect(await fence.highest(undefined, "counter")).toBe(0n);
  db.exec("SAVEPOINT mine");
  await fence.guard(db, "counter", OLD);
  db.exec("RELEASE mine");
  expect(await fence.highest(undefined, "counter")).toBe(1n);
});

it("the SQLite fence keeps an entry although the transaction that was open is rolled back", async () => {
  const { db, fence } = await counter();
  db.exec("BEGIN IMMEDIATE");
  const entered = fence.enter(undefined, "counter", NEW);
  const reset = fence.reset(undefined, "other", 7n);
  await new Promise((resolve) => setTimeout(resolve, 30));
  db.exec("ROLLBACK");
  await Promise.all([entered, reset]);
  expect(await fence.highest(undefined, "counter")).toBe(2n);
  expect(await fence.highest(undefined, "other")).toBe(7n);
});

it("the SQLite fence refuses a stale holder at once, whatever words the name of the resource has", async () => {
  const { fence } = await counter();
  const resource = "stock within a transaction";
  await fence.enter(undefined, resource, NEW);
  await expect(fence.enter(undefined, resource, OLD)).rejects.toMatchObject({
    code: "STALE_TOKEN",
  });
});

it("the SQLite fence says what to do when the open transaction does not end", async () => {
  const { db, fence } = await counter();
  db.exec("BEGIN IMMEDIATE");
  await expect(fence.enter(undefined, "counter", NEW)).rejects.toMatchObject({
    code: "STORE_UNAVAILABLE",
    message: expect.stringContaining("pass it as tx"),
  });
  await fence.enter(db, "counter", NEW);
  db.exec("COMMIT");
  expect(await fence.highest(undefined, "counter")).toBe(2n);
}, 20_000);

it("the SQLite fence runs a guard without a tx outside a transaction that is open on its connection", async () => {
  const { db, fence } = await counter();
  await fence.enter(undefined, "counter", OLD);
  db.exec("BEGIN IMMEDIATE");
  await fence.guard(db, "counter", OLD);
  // A guarded request of the next holder, by the same connection: it enters, and reads.
  const next = fence.guard(undefined, "counter", NEW).then(() => countOf(db));
  await new Promise((resolve) => setTimeout(resolve, 30));
  db.prepare("UPDATE counter SET value = 1").run();
  db.exec("COMMIT");
  expect(await next).toBe(1);
  db.exec("BEGIN IMMEDIATE");
  const later = fence.guard(undefined, "counter", { token: 3n, floor: 3n });
  await new Promise((resolve) => setTimeout(resolve, 30));
  db.exec("ROLLBACK");
  await later;
  expect(await fence.highest(undefined, "counter")).toBe(3n);
});

/** A connection to a file without the fence's table, and one that has locked that file for all others. */
async function lockedFile(): Promise<{ db: SqliteDatabase; other: SqliteDatabase }> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-fence-test-"));
  cleanups.push(() => rmSync(folder, { recursive: true, force: true }));
  const [db, other] = [
    await openSqlite(join(folder, "data.db")),
    await openSqlite(join(folder, "data.db")),
  ];
  cleanups.push(
    () => db.close(),
    () => other.close(),
  );
  db.exec("PRAGMA busy_timeout = 0");
  other.exec("BEGIN EXCLUSIVE");
  return { db, other };
}

it("the SQLite fence of a file that another process has locked waits for it, and makes its table", async () => {
  const { db, other } = await lockedFile();
  const fence = sqliteFence(db);
  const read = Promise.all([fence.highest(undefined, "counter"), fence.list()]);
  expect(() => fence.highestSync(undefined, "counter")).toThrow(
    expect.objectContaining({ code: "STORE_UNAVAILABLE", retryable: true }),
  );
  await new Promise((resolve) => setTimeout(resolve, 30));
  other.exec("COMMIT");
  expect(await read).toEqual([0n, []]);
  other.exec("BEGIN EXCLUSIVE");
  const entered = fence.enter(undefined, "counter", NEW);
  await new Promise((resolve) => setTimeout(resolve, 30));
  other.exec("COMMIT");
  await entered;
  expect(await fence.highest(undefined, "counter")).toBe(2n);
});

it("the SQLite fence that was made in a transaction works although that is rolled back", async () => {
  const { db, other } = await lockedFile();
  other.exec("COMMIT");
  db.exec("BEGIN");
  const fence = sqliteFence(db);
  db.exec("ROLLBACK");
  expect(await fence.highest(undefined, "counter")).toBe(0n);
  await fence.enter(undefined, "counter", NEW);
  expect(await fence.highest(undefined, "counter")).toBe(2n);
});

it("the SQLite fence makes its table again after somebody has dropped it", async () => {
  const { db, fence } = await counter();
  await fence.enter(undefined, "counter", OLD);
  db.exec("DROP TABLE holdfast_fence");
  expect(await fence.highest(undefined, "counter")).toBe(0n);
  // A write says so once, because the highest token is gone.
  await expect(fence.enter(undefined, "counter", NEW)).rejects.toMatchObject({
    code: "STORE_UNAVAILABLE",
    retryable: true,
    message: expect.stringContaining("no such table"),
  });
  await fence.enter(undefined, "counter", NEW);
  expect(await fence.highest(undefined, "counter")).toBe(2n);
});

it("the SQLite fence lists times as numbers where the driver reads integers as bigint", async () => {
  const { db } = await counter();
  const asBigInts = (row: unknown): unknown =>
    Object.fromEntries(
      Object.entries(row as object).map(([name, value]) => [
        name,
        typeof value === "number" ? BigInt(value) : value,
      ]),
    );
  const fence = sqliteFence({
    exec: (sql) => db.exec(sql),
    close: () => db.close(),
    prepare(sql) {
      const statement = db.prepare(sql);
      return {
        get: (...values) => statement.get(...values),
        run: (...values) => statement.run(...values),
        all: (...values) => statement.all(...values).map(asBigInts),
      };
    },
  });
  await fence.enter(undefined, "counter", NEW);
  const [entered] = await fence.list();
  expect(entered!.enteredAtMs).toBeTypeOf("number");
});

it("the SQLite fence makes its table again if it was made in a transaction that was rolled back", async () => {
  const { db, other } = await lockedFile();
  const fence = sqliteFence(db);
  other.exec("COMMIT");
  for (const end of ["ROLLBACK", "COMMIT"]) {
    db.exec("BEGIN IMMEDIATE");
    await fence.guard(db, "counter", NEW);
    db.exec(end);
    const highest = end === "COMMIT" ? 2n : 0n;
    expect(await fence.highest(undefined, "counter")).toBe(highest);
  }
});

it("the SQLite fence says that a file is read-only", async () => {
  const { db, other } = await lockedFile();
  other.exec("COMMIT");
  db.exec("PRAGMA query_only = 1");
  expect(() => sqliteFence(db)).toThrow(
    expect.objectContaining({
      code: "STORE_UNAVAILABLE",
      retryable: false,
      message: expect.stringContaining("read-only"),
    }),
  );
  sqliteFence(other);
  other.exec("PRAGMA query_only = 1");
  await expect(sqliteFence(other).enter(undefined, "counter", NEW)).rejects.toMatchObject({
    code: "STORE_UNAVAILABLE",
    retryable: false,
  });
});
