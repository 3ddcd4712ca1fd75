import { execFileSync, spawnSync } from "node:child_process";
import { once } from "node:events";
import {
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { Worker as Thread } from "node:worker_threads";
import { expect, onTestFinished, test } from "vitest";
import { connect, createLocks, type Locks } from "../../../src/index.js";
import { type SqliteDatabase, sqliteStore } from "../../../src/stores/sqlite/index.js";
import { MAIN } from "../../cli/helpers.js";
import { skipUnless } from "../../support/needs.js";
import { freshFile, freshFolder, open, rawConnection } from "../../support/sqlite.js";
import { startWorkers, until } from "../../support/worker.js";

const LIBRARY = new URL("../../../dist/index.js", import.meta.url).href;
const STORE = new URL("../../../dist/stores/sqlite/index.js", import.meta.url).href;

/** The lock by which SQLite tells other processes that this one uses the file. */
function hasLock(file: string): boolean {
  const { ino } = statSync(file);
  const lock = new RegExp(` ${process.pid} [0-9a-f]+:[0-9a-f]+:${ino} `);
  return readFileSync("/proc/locks", "utf8")
    .split("\n")
    .some((line) => lock.test(line));
}

function inProcess(script: string): string {
  const load = `const { openSqlite } = await import(${JSON.stringify(STORE)});`;
  const args = ["--input-type=module", "-e", `${load}${script}`];
  return execFileSync(process.execPath, args, { encoding: "utf8" });
}

/** In this process, another descriptor of the file would drop SQLite's locks when it is closed. */
const copy = (from: string, to: string): void => {
  execFileSync("cp", [from, to]);
};

async function expectRefused(locks: Locks, message: RegExp): Promise<void> {
  await expect(locks.acquire("other", { wait: 0 })).rejects.toMatchObject({
    code: "STORE_UNAVAILABLE",
    retryable: false,
    message: expect.stringMatching(message),
  });
}

test("a second connection of one process does not drop SQLite's locks on the file", async (context) => {
  skipUnless(context, process.platform === "linux", "needs /proc/locks");
  const file = freshFile();
  const one = await open(file);
  await one.acquire("name");
  expect(hasLock(file)).toBe(true);
  const two = await open(file);
  expect(hasLock(file)).toBe(true);
  await (await two.acquire("other")).release();
  await two.close();
  expect(hasLock(file)).toBe(true);
});

test("threads of one process that make the file together keep SQLite's locks on it", async (context) => {
  skipUnless(context, process.platform === "linux", "needs /proc/locks");
  const folder = freshFolder();
  const script = `
    const { parentPort, workerData } = require("node:worker_threads");
    import(${JSON.stringify(LIBRARY)}).then(({ connect }) => {
      parentPort.on("message", async (file) => {
        if (file === null) return parentPort.close();
        try {
          const locks = await connect("sqlite:" + file);
          await (await locks.acquire("name", { wait: 20_000 })).release();
          parentPort.postMessage("done");
        } catch (error) {
          parentPort.postMessage(String(error));
        }
      });
      parentPort.postMessage("ready");
    });`;
  const threads = Array.from({ length: 4 }, () => new Thread(script, { eval: true }));
  onTestFinished(async () => {
    await Promise.all(threads.map((one) => one.terminate()));
  });
  await Promise.all(threads.map((one) => once(one, "message")));
  for (let round = 0; round < 5; round++) {
    const file = join(folder, `${round}.db`);
    // Two threads create the file together, and two open it later.
    for (const some of [threads.slice(0, 2), threads.slice(2)]) {
      const done = some.map((one) => once(one, "message"));
      for (const one of some) one.postMessage(file);
      expect((await Promise.all(done)).flat()).toEqual(["done", "done"]);
    }
    expect(hasLock(file)).toBe(true);
    expect(statSync(file)).toMatchObject({ nlink: 1, mode: 0o100600 });
  }
  expect(readdirSync(folder).filter((name) => !/^\d\.db(-wal|-shm|-wake)?$/.test(name))).toEqual(
    [],
  );
});

test("a symbolic link to a file that is missing: the file is made where the link points", async () => {
  const folder = freshFolder();
  mkdirSync(join(folder, "real"));
  symlinkSync("real/locks.db", join(folder, "link.db"));
  const one = await open(join(folder, "link.db"));
  await one.acquire("name");
  const two = await open(join(folder, "real", "locks.db"));
  expect(await two.tryAcquire("name")).toBeNull();
  expect(lstatSync(join(folder, "real", "locks.db")).mode & 0o777).toBe(0o600);
});

test.each(["-wal", "-shm"])("removing %s in use is noticed, and stays noticed", async (suffix) => {
  const file = freshFile();
  const locks = await open(file, { ttl: 500 });
  const lease = await locks.acquire("name");
  renameSync(`${file}${suffix}`, `${file}.kept`);
  await expectRefused(locks, /was deleted or replaced while in use.*[Ss]top .*connect again/);
  await expect(locks.inspect("name")).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
  await until("the lease is lost", () => lease.state === "lost");
  renameSync(`${file}.kept`, `${file}${suffix}`);
  await expectRefused(locks, /deleted or replaced/);
  await locks.close();
  await (await (await open(file)).acquire("name")).release();
});

test("a process that goes on with a deleted log can't connect again beside one that has a new log", async (context) => {
  skipUnless(
    context,
    process.platform === "linux",
    "only Linux tells which files a process has open",
  );
  const file = freshFile();
  const [one, other] = [await open(file), await open(file)];
  await one.acquire("name");
  rmSync(`${file}-shm`);
  await expectRefused(one, /was deleted or replaced while in use/);
  await one.close();
  const { workers } = await startWorkers(1, `sqlite:${file}`);
  await workers[0]!.acquire("other name", { wait: 0 });
  // The connection of `other` is still open.
  await expect(connect(`sqlite:${file}`)).rejects.toMatchObject({
    code: "STORE_UNAVAILABLE",
    retryable: false,
    message: expect.stringMatching(/-shm was deleted or replaced.*[Ss]top .*connect again/),
  });
  await expectRefused(other, /deleted or replaced/);
});

test("a backup that is restored in place, over the same file, is noticed by the processes that use it", async () => {
  const file = freshFile();
  const locks = await open(file, { ttl: "1m" });
  await (await locks.acquire("early")).release();
  const backup = `${file}.backup`;
  const admin = await rawConnection(file);
  admin.exec("PRAGMA wal_checkpoint(TRUNCATE)");
  copy(file, backup);
  for (let i = 0; i < 5; i++) await (await locks.acquire("name")).release();
  await locks.acquire("name");
  admin.exec("PRAGMA wal_checkpoint(TRUNCATE)");
  copy(backup, file);
  // A process that opens the file now can't know: it sees what the backup has.
  const { workers } = await startWorkers(1, `sqlite:${file}`);
  await workers[0]!.acquire("name", { wait: 0 });
  await expectRefused(locks, /went back.*[Ss]top .*connect again/);
});

test("a file of this version's format without the count of grants gets it, and nobody is refused", async () => {
  const file = freshFile();
  const first = await open(file);
  const { token } = await first.acquire("name");
  await first.close();
  const db = await rawConnection(file);
  db.exec("ALTER TABLE holdfast_meta DROP COLUMN grants");
  db.close();
  const again = await open(file);
  expect((await again.acquire("other")).token).toBeGreaterThan(token);
  await again.acquire("third");
});

test("a file with a second hard link is refused: each path would have a log of its own", async () => {
  const file = freshFile();
  const other = join(freshFolder(), "other.db");
  const locks = await open(file);
  await locks.acquire("name");
  linkSync(file, other);
  await expect(connect(`sqlite:${other}`)).rejects.toMatchObject({
    code: "UNSUPPORTED",
    message: expect.stringMatching(/hard link.*[Rr]emove/),
  });
  expect(existsSync(`${other}-wal`)).toBe(false);
  const own = await rawConnection(other);
  expect(() => sqliteStore(own)).toThrow(/hard link/);
  own.close();
  const doctor = spawnSync(process.execPath, [MAIN, "doctor", "--store", `sqlite:${other}`]);
  expect(String(doctor.stdout)).toMatch(/danger +path .*hard link/);
  expect(doctor.status).toBe(1);
  // Processes that use the file by its own path go on, and others can open it when the link is gone.
  await (await locks.acquire("another")).release();
  rmSync(other);
  expect(await (await open(file)).tryAcquire("name")).toBeNull();
});

test("the temporary link of a process that was killed while it made the file is removed", async () => {
  const file = freshFile();
  writeFileSync(`${file}-new-0123456789ab`, "", { mode: 0o600 });
  linkSync(`${file}-new-0123456789ab`, file);
  await (await (await open(file)).acquire("name")).release();
  expect(statSync(file).nlink).toBe(1);
  expect(existsSync(`${file}-new-0123456789ab`)).toBe(false);
});

test("a file that is itself mounted is refused: its log would lie in another folder", async (context) => {
  const file = freshFile();
  const locks = await open(file);
  await locks.acquire("name");
  const folder = join(freshFolder(), "with space");
  mkdirSync(folder);
  const mounted = join(folder, "locks.db");
  writeFileSync(mounted, "");
  const inside = (...argv: string[]) =>
    spawnSync(
      "unshare",
      [
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        'mount --bind "$1" "$2" && shift 2 && "$@"',
      ]
        .concat(["sh", file, mounted])
        .concat(argv),
      { encoding: "utf8" },
    );
  skipUnless(context, inside("true").status === 0, "needs the right to mount (CAP_SYS_ADMIN)");
  const run = inside(
    process.execPath,
    MAIN,
    "run",
    "--store",
    `sqlite:${mounted}`,
    "--wait",
    "0",
    "default-name",
    "--",
    "true",
  );
  expect(run.stderr).toMatch(/mount point.*mount (its|the) folder/i);
  expect(run.status).not.toBe(0);
  const doctor = inside(process.execPath, MAIN, "doctor", "--store", `sqlite:${mounted}`);
  expect(doctor.stdout).toMatch(/danger +path .*mount point/);
  expect(readdirSync(folder)).toEqual(["locks.db"]);
});

test("inspect reads one snapshot: a handover in between never shows two holders", async () => {
  const file = freshFile();
  const db = await rawConnection(file);
  const other = await rawConnection(file);
  let between: (() => void) | null = null;
  const slow: SqliteDatabase = {
    exec: (sql) => db.exec(sql),
    prepare: (sql) => {
      const statement = db.prepare(sql);
      const get: typeof statement.get = (...params) => {
        const row = statement.get(...params);
        if (sql.includes("place > ?")) {
          between?.();
          between = null;
        }
        return row;
      };
      return { get, run: statement.run.bind(statement), all: statement.all.bind(statement) };
    },
    close: () => db.close(),
  };
  const locks = createLocks(sqliteStore(slow));
  onTestFinished(() => locks.close());
  const lease = await locks.acquire("name");
  // Until the Locks are closed.
  locks.acquire("name", { wait: "1m" }).catch(() => {});
  await until("it waits", async () => (await locks.inspect("name"))!.waiters.length === 1);
  const handOver = (): void => {
    other.exec(
      `BEGIN IMMEDIATE; UPDATE holdfast_claims SET token = ${lease.token + 1n} WHERE token = 0;
       DELETE FROM holdfast_claims WHERE token = ${lease.token}; COMMIT`,
    );
  };
  between = handOver;
  const seen = await locks.inspect("name");
  expect([seen!.holders.length, seen!.waiters.length]).toEqual([1, 1]);
  expect(seen!.holders[0]!.token).toBe(lease.token);
  expect((await locks.inspect("name"))!.holders[0]!.token).toBe(lease.token + 1n);
});

test("another process can't change the journal mode while the file is in use; on the store's own connection it is noticed", async () => {
  const file = freshFile();
  const db = await rawConnection(file);
  const locks = createLocks(sqliteStore(db));
  onTestFinished(() => locks.close());
  await (await locks.acquire("name")).release();
  const change = `
    const db = await openSqlite(${JSON.stringify(file)});
    try {
      console.log(db.prepare("PRAGMA journal_mode = DELETE").get().journal_mode);
    } catch (error) {
      console.log(error.message);
    }`;
  expect(inProcess(change)).toMatch(/locked/);
  await (await locks.acquire("name")).release();
  db.exec("PRAGMA journal_mode = DELETE");
  await expectRefused(locks, /deleted or replaced/);
});

test("two copies of SQLite in one process may not use one file: they drop each other's locks", async () => {
  const file = freshFile();
  const locks = await open(file);
  const db = await rawConnection(file);
  const otherCopy: SqliteDatabase = {
    exec: (sql) => db.exec(sql),
    prepare: (sql) => db.prepare(sql.replace("sqlite_source_id()", "'another build'")),
    close: () => db.close(),
  };
  expect(() => sqliteStore(otherCopy)).toThrow(/another copy of the SQLite library/);
  await (await locks.acquire("name")).release();
  await locks.close();
  const own = createLocks(sqliteStore(otherCopy));
  await (await own.acquire("name")).release();
  await own.close();
  // The other copy was closed, and is no longer in the way.
  db.close();
  await (await (await open(file)).acquire("name")).release();
});

test("tokens rise after the clock is set back, an idle time, a restart and a restored backup", async () => {
  const file = freshFile();
  let wallMs = Date.now();
  let nowMs = 1_000_000;
  const clock = { nowMs: () => nowMs, wallMs: () => wallMs };
  const stores = async (at = file): Promise<Locks> =>
    createLocks(sqliteStore(await rawConnection(at), { clock, closeDatabase: true }));
  const draw = async (locks: Locks): Promise<bigint> => {
    const lease = await locks.acquire("name");
    await lease.release();
    return lease.token;
  };
  let locks = await stores();
  const tokens = [await draw(locks)];
  wallMs -= 3_600_000;
  tokens.push(await draw(locks));
  // Idle for a minute: everything that has expired is swept when the file is opened again.
  nowMs += 60_000;
  wallMs += 60_000;
  tokens.push(await draw(locks));
  await locks.close();
  nowMs = 5_000;
  locks = await stores();
  tokens.push(await draw(locks));
  const backup = `${file}.backup`;
  (await rawConnection(file)).exec(`VACUUM INTO '${backup}'`);
  wallMs += 3_600_000;
  tokens.push(await draw(locks));
  await locks.close();
  wallMs += 1;
  const restored = await stores(backup);
  tokens.push(await draw(restored));
  await restored.close();
  expect(tokens).toEqual([...tokens].sort((a, b) => (a < b ? -1 : 1)));
  expect(new Set(tokens).size).toBe(tokens.length);
});
