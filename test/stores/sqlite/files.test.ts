import { spawnSync } from "node:child_process";
import {
  chmodSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { monitorEventLoopDelay } from "node:perf_hooks";
import { setTimeout as pause } from "node:timers/promises";
import { expect, onTestFinished, test } from "vitest";
import { sqliteFence } from "../../../src/fence/sqlite.js";
import { connect, createLocks } from "../../../src/index.js";
import { fileAt } from "../../../src/stores/sqlite/file.js";
import { type SqliteDatabase, sqliteStore } from "../../../src/stores/sqlite/index.js";
import { fileSystemTypes, refuseSharedFileSystem } from "../../../src/stores/sqlite/unsafe-file.js";
import { Writer } from "../../../src/stores/sqlite/writer.js";
import { MAIN } from "../../cli/helpers.js";
import { canMountFuse, runOnFuse } from "../../support/fuse.js";
import { skipUnless } from "../../support/needs.js";
import { freshFile, freshFolder, open, rawConnection } from "../../support/sqlite.js";
import { asOrdinaryUser } from "../../support/user.js";
import { until } from "../../support/worker.js";

test("a new file is readable by its owner alone", async () => {
  const file = freshFile();
  await (await open(file)).acquire("name");
  expect(statSync(file).mode & 0o777).toBe(0o600);
});

test("a damaged file, a file that is not a database, a missing folder: refused with the reason", async () => {
  const folder = freshFolder();
  const damaged = join(folder, "damaged.db");
  writeFileSync(damaged, "this is no database ".repeat(1_000));
  await expect(connect(`sqlite:${damaged}`)).rejects.toMatchObject({
    code: "STORE_UNAVAILABLE",
    retryable: false,
    message: expect.stringContaining("is not an SQLite database"),
  });
  const nowhere = join(folder, "missing", "locks.db");
  await expect(connect(`sqlite:${nowhere}`)).rejects.toMatchObject({
    code: "STORE_UNAVAILABLE",
    message: expect.stringContaining("does its folder exist"),
  });
  await expect(connect(`sqlite:${folder}`)).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
  await expect(connect("sqlite:")).rejects.toMatchObject({ code: "INVALID_ARGUMENT" });
  await expect(connect("sqlite::memory:")).rejects.toMatchObject({ code: "INVALID_ARGUMENT" });
});

test("damaged pages are an error that says so, not a grant", async () => {
  const file = freshFile();
  await (await open(file)).acquire("name");
  // To read the file itself in this process would drop SQLite's locks on it.
  (await rawConnection(file)).exec(`VACUUM INTO '${file}.copy'`);
  const bytes = readFileSync(`${file}.copy`);
  const damaged = `${file}.damaged`;
  writeFileSync(
    damaged,
    Buffer.concat([bytes.subarray(0, 4_096), Buffer.alloc(bytes.length - 4_096, 7)]),
  );
  await expect(connect(`sqlite:${damaged}`)).rejects.toMatchObject({
    code: "STORE_UNAVAILABLE",
    retryable: false,
    message: expect.stringContaining("is damaged"),
  });
});

test("a file that this user may only read: refused with the reason", async () => {
  const folder = freshFolder();
  const file = join(folder, "locks.db");
  await (await open(file)).close();
  chmodSync(file, 0o444);
  chmodSync(folder, 0o555);
  onTestFinished(() => chmodSync(folder, 0o755));
  await asOrdinaryUser(() =>
    expect(connect(`sqlite:${file}`)).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
      retryable: false,
      message: expect.stringMatching(/read-only|may this user write/),
    }),
  );
});

test("a folder that this user may not search: refused with the reason", async () => {
  const folder = freshFolder();
  const file = join(folder, "locks.db");
  await (await open(file)).close();
  chmodSync(folder, 0);
  onTestFinished(() => chmodSync(folder, 0o755));
  await asOrdinaryUser(() =>
    expect(connect(`sqlite:${file}`)).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
      retryable: false,
      message: expect.stringContaining("may this user write there?"),
    }),
  );
});

test("a file whose table holdfast_meta was emptied is refused with the reason", async () => {
  const file = freshFile();
  await (await (await open(file)).acquire("name")).release();
  (await rawConnection(file)).exec("DELETE FROM holdfast_meta");
  await expect(connect(`sqlite:${file}`)).rejects.toMatchObject({
    code: "UNSUPPORTED",
    message: expect.stringContaining("has lost the row of its table holdfast_meta"),
  });
});

test("a file that can't have a write-ahead log is refused", async () => {
  const db = await rawConnection(freshFile());
  const without: SqliteDatabase = {
    exec: (sql) => db.exec(sql),
    prepare: (sql) =>
      db.prepare(sql.includes("journal_mode") ? "SELECT 'delete' AS journal_mode" : sql),
    close: () => db.close(),
  };
  expect(() => sqliteStore(without)).toThrow(/write-ahead log/);
});

test("a full disk is an error of the store, and the name is free afterwards", async () => {
  const db = await rawConnection(freshFile());
  const store = sqliteStore(db);
  const locks = createLocks(store, { retry: { pause: 10 } });
  onTestFinished(() => locks.close());
  const { page_count } = db.prepare("PRAGMA page_count").get() as { page_count: number };
  db.exec(`PRAGMA max_page_count = ${page_count}`);
  const leases = [];
  const error = await (async () => {
    for (let i = 0; i < 500; i++) leases.push(await locks.acquire(`name ${i}`, { wait: 0 }));
    return null;
  })().catch((thrown: unknown) => thrown);
  expect(error).toMatchObject({
    code: "STORE_UNAVAILABLE",
    message: expect.stringContaining("the disk is full"),
  });
  expect(await locks.inspect(`name ${leases.length}`)).toBeNull();
  db.exec("PRAGMA max_page_count = 100000");
  await (await locks.acquire(`name ${leases.length}`)).release();
});

test("a disk that SQLite's log has filled stops nobody while the log can be emptied", async (context) => {
  const folder = freshFolder();
  const mounted = spawnSync("mount", ["-t", "tmpfs", "-o", "size=256k", "tmpfs", folder]);
  skipUnless(context, mounted.status === 0, "only root can mount a small disk");
  onTestFinished(() => void spawnSync("umount", ["-l", folder]));
  const file = join(folder, "locks.db");
  const locks = await open(file, { wait: 0 });
  // The database already has its pages, as one that has been in use for a while.
  (await rawConnection(file)).exec("PRAGMA wal_checkpoint(TRUNCATE)");
  for (let i = 0; i < 100; i++) {
    const leases = await Promise.all(["a", "b"].map((name) => locks.acquire(name)));
    await Promise.all(leases.map((lease) => lease.release()));
    await (await locks.acquire("a")).release();
  }
});

test("a file that is deleted or replaced under a running process is noticed at the next step", async () => {
  const file = freshFile();
  const locks = await open(file, { ttl: 500 });
  const lease = await locks.acquire("name");
  renameSync(file, `${file}.old`);
  await expect(locks.acquire("other", { wait: 0 })).rejects.toMatchObject({
    code: "STORE_UNAVAILABLE",
    message: expect.stringContaining("deleted or replaced"),
  });
  await until("the lease is lost", () => lease.state === "lost", 2_500);
});

test("network file systems are refused", () => {
  expect(() => refuseSharedFileSystem(0x6969, "/mnt/locks.db")).toThrow(/lies on NFS/);
  for (const type of [0x01161970, 0x786f4256, 0x19830326, 0xbacbacbc, 0x73757245, 0x20030528]) {
    expect(() => refuseSharedFileSystem(type, "/mnt/locks.db")).toThrow(/not safe there/);
  }
  expect(() => refuseSharedFileSystem(0xef53, "/mnt/locks.db")).not.toThrow();
});

test("a symbolic link to a network file system is refused, also to a file that is missing there", async (context) => {
  skipUnless(context, canMountFuse(), "needs the right to mount FUSE (CAP_SYS_ADMIN, /dev/fuse)");
  const folder = freshFolder();
  const mounted = join(folder, "mounted");
  mkdirSync(mounted);
  const link = join(folder, "locks.db");
  symlinkSync(join(mounted, "locks.db"), link);
  const store = `sqlite:${link}`;
  const args = [MAIN, "run", "--store", store, "name", "--", "true"];
  expect(await runOnFuse(mounted, args)).toContain("lies on FUSE");
  expect(readdirSync(folder).sort()).toEqual(["locks.db", "mounted"]);
});

test("the file system is that of the file itself, not that of a link to it", async () => {
  const link = join(freshFolder(), "locks.db");
  // procfs has a magic number that no other file system has.
  symlinkSync("/proc/self/status", link);
  expect(fileSystemTypes(fileAt(link))).toEqual([0x9fa0, 0x9fa0]);
});

test("a newer format is refused, when opening and under a running process", async () => {
  const file = freshFile();
  const running = await open(file);
  await (await running.acquire("name")).release();
  (await rawConnection(file)).exec("UPDATE holdfast_meta SET format = 99");
  await expect(connect(`sqlite:${file}`)).rejects.toMatchObject({
    code: "UNSUPPORTED",
    message: expect.stringContaining("format 99"),
  });
  await expect(running.acquire("name")).rejects.toMatchObject({ code: "UNSUPPORTED" });
});

test("while another process locks the file the event loop goes on, and the claim comes through", async () => {
  const file = freshFile();
  const locks = await open(file);
  const other = await rawConnection(file);
  other.exec("BEGIN EXCLUSIVE");
  const delay = monitorEventLoopDelay({ resolution: 1 });
  delay.enable();
  const claiming = locks.acquire("name");
  await pause(700);
  delay.disable();
  other.exec("COMMIT");
  expect((await claiming).state).toBe("held");
  expect(delay.max / 1e6).toBeLessThan(200);
});

test("a file that stays locked is store unavailable, never held by another", async () => {
  const file = freshFile();
  const locks = await open(file, { commandTimeout: 300 });
  (await rawConnection(file)).exec("BEGIN EXCLUSIVE");
  await expect(locks.acquire("name", { wait: 0 })).rejects.toMatchObject({
    code: "STORE_UNAVAILABLE",
    retryable: true,
  });
  await expect(locks.acquire("name", { wait: 600 })).rejects.toMatchObject({
    code: "STORE_UNAVAILABLE",
  });
});

test("every token is on disk before its holder receives it: grants and handovers commit with synchronous = FULL", async () => {
  const db = await rawConnection(freshFile());
  const log: string[] = [];
  const spied: SqliteDatabase = {
    exec: (sql) => {
      const level = /synchronous = (\w+)/.exec(sql)?.[1];
      if (level) log.push(level);
      return db.exec(sql);
    },
    prepare: (sql) => {
      const statement = db.prepare(sql);
      const note = sql.startsWith("UPDATE holdfast_meta") ? "token" : sql === "COMMIT" ? sql : "";
      const wrap =
        <A extends unknown[], R>(call: (...args: A) => R) =>
        (...args: A): R => {
          if (note) log.push(note);
          return call(...args);
        };
      return {
        run: wrap(statement.run.bind(statement)),
        get: wrap(statement.get.bind(statement)),
        all: wrap(statement.all.bind(statement)),
      };
    },
    close: () => db.close(),
  };
  const locks = createLocks(sqliteStore(spied));
  const lease = await locks.acquire("name");
  const waiting = locks.acquire("name");
  await until("it waits", async () => (await locks.inspect("name"))!.waiters.length === 1);
  await lease.release();
  await (await waiting).release();
  await locks.close();
  let level = "";
  let tokens = 0;
  for (const entry of log) {
    if (entry === "FULL" || entry === "NORMAL") level = entry;
    if (entry !== "token") continue;
    tokens++;
    expect(level).toBe("FULL");
  }
  expect(tokens).toBe(2);
  expect(log).toContain("NORMAL");
});

test("expired claims on names that nobody claims again are removed", async () => {
  const file = freshFile();
  const first = await open(file);
  for (let i = 0; i < 20; i++) await first.acquire(`name ${i}`, { ttl: 50, renew: false });
  await pause(80);
  await (await open(file)).acquire("another");
  const db = await rawConnection(file);
  expect(db.prepare("SELECT name FROM holdfast_claims").all()).toEqual([
    { name: "default:another" },
  ]);
});

test("a lease from before a restart of the machine, whose clock started anew, is over", async () => {
  const file = freshFile();
  const locks = await open(file);
  const before = await locks.acquire("name");
  (await rawConnection(file)).exec("UPDATE holdfast_claims SET expires_ms = expires_ms + 1e9");
  const after = await locks.acquire("name", { wait: 0 });
  expect(after.token).toBeGreaterThan(before.token);
});

test("atLeast outlives a restart of the machine", async () => {
  const file = freshFile();
  const locks = await open(file);
  const lease = await locks.acquire("name", { atLeast: "1h" });
  const db = await rawConnection(file);
  db.exec("UPDATE holdfast_claims SET expires_ms = expires_ms + 1e9");
  expect(await locks.tryAcquire("name")).toBeNull();
  expect((await locks.inspect("name"))?.holders[0]).toMatchObject({ closed: true });
  db.exec("UPDATE holdfast_claims SET closed_until_ms = 1");
  expect((await locks.acquire("name", { wait: 0 })).token).toBeGreaterThan(lease.token);
});

test("a connection in the middle of a transaction, or to memory, is refused", async () => {
  const db = await rawConnection(freshFile());
  const locks = createLocks(sqliteStore(db));
  db.exec("BEGIN");
  await expect(locks.acquire("name", { wait: 0 })).rejects.toMatchObject({
    code: "STORE_UNAVAILABLE",
    message: expect.stringContaining("inside a transaction"),
  });
  db.exec("ROLLBACK");
  await locks.close();
  const own = await rawConnection(freshFile());
  own.exec("PRAGMA journal_mode = WAL; CREATE TABLE mine (n); BEGIN; INSERT INTO mine VALUES (1)");
  expect(() => sqliteStore(own)).toThrow(/within a transaction/);
  own.exec("COMMIT");
  expect(own.prepare("SELECT n FROM mine").all()).toEqual([{ n: 1 }]);
  const memory = await rawConnection(":memory:");
  expect(() => sqliteStore(memory)).toThrow(/memoryStore/);
});

test("if one of several jobs in a transaction fails, only that one is rejected", async () => {
  const db = await rawConnection(freshFile());
  db.exec("CREATE TABLE t (n INTEGER)");
  const insert = db.prepare("INSERT INTO t VALUES (?)");
  let late: Promise<unknown> | undefined;
  const writer = new Writer(db, "t.db", {
    begun: () => {},
    committed: () => {
      late ??= writer.run(() => insert.run(4));
    },
    rolledBack: () => {},
  });
  const outcomes = await Promise.allSettled([
    writer.run(() => insert.run(1)),
    writer.run(() => {
      insert.run(2);
      throw new Error("mine");
    }),
    writer.run(() => insert.run(3), { durable: true }),
  ]);
  await late;
  expect(outcomes.map((one) => one.status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
  expect(db.prepare("SELECT n FROM t ORDER BY n").all()).toEqual([{ n: 1 }, { n: 3 }, { n: 4 }]);
});

test("the fence waits for other writers when it enters by itself, and says what is wrong if it can't", async () => {
  const file = freshFile();
  const [db, other] = [await rawConnection(file), await rawConnection(file)];
  db.exec("PRAGMA journal_mode = WAL; PRAGMA busy_timeout = 0");
  const fence = sqliteFence(db);
  other.exec("BEGIN IMMEDIATE");
  const entering = fence.enter(undefined, "r", { token: 2n, floor: 2n });
  await expect(fence.enter(db, "r", { token: 2n, floor: 2n })).rejects.toMatchObject({
    code: "STORE_UNAVAILABLE",
    message: expect.stringContaining("locked by another"),
  });
  await pause(50);
  other.exec("COMMIT");
  await entering;
  expect(await fence.highest(undefined, "r")).toBe(2n);
});
