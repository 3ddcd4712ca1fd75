import { readSync, writeSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { connect } from "../../connect.js";
import { StaleTokenError } from "../../core/errors.js";
import type { Lease } from "../../core/lease.js";
import { type SqliteFence, sqliteFence } from "../../fence/sqlite.js";
import { openSqlite, type SqliteDatabase } from "../../stores/sqlite/driver.js";
import { inTransaction } from "../../stores/sqlite/transaction.js";
import { sqliteUrl } from "../store.js";

/** A report of a worker of the demo; each is one line of JSON. */
export type Report =
  | { kind: "asks" }
  | { kind: "holds"; token: string }
  | { kind: "read"; value: number }
  | { kind: "written"; value: number }
  | { kind: "refused"; highest: string }
  | { kind: "finds"; state: string };

export interface WorkerTask {
  readonly name: string;
  readonly locksFile: string;
  readonly dataFile: string;
  readonly ttlMs: number;
  readonly fenced: boolean;
}

const RESOURCE = "counter";
/** Long enough to see on the time line that it holds the lock. */
const LOOKS_AROUND_MS = 500;

function report(what: Report): void {
  // Synchronous: the process may be stopped right after it.
  writeSync(1, `${JSON.stringify(what)}\n`);
}

function read(db: SqliteDatabase): number {
  return (db.prepare("SELECT value FROM counter").get() as { value: number }).value;
}

function write(db: SqliteDatabase, value: number, fence: SqliteFence | null, lease: Lease): void {
  inTransaction(db, () => {
    fence?.guardSync(db, RESOURCE, lease);
    db.prepare("UPDATE counter SET value = ?").run(value);
  });
}

async function work(task: WorkerTask): Promise<void> {
  const db = await openSqlite(task.dataFile);
  db.exec("PRAGMA busy_timeout = 5000");
  const fence = task.fenced ? sqliteFence(db) : null;
  const locks = await connect(sqliteUrl(task.locksFile), {
    ttl: task.ttlMs,
    holder: `worker ${task.name}`,
  });
  report({ kind: "asks" });
  const lease = await locks.acquire(RESOURCE, { wait: "30s" });
  report({ kind: "holds", token: String(lease.token) });
  await sleep(LOOKS_AROUND_MS);
  await fence?.enter(undefined, RESOURCE, lease);
  const value = read(db);
  lease.assertHeld();
  report({ kind: "read", value });
  // Nothing else of this process runs between read and write: a check could not be any closer to the write.
  readSync(0, Buffer.alloc(1));
  try {
    write(db, value + 1, fence, lease);
    report({ kind: "written", value: value + 1 });
  } catch (error) {
    if (!(error instanceof StaleTokenError)) throw error;
    report({ kind: "refused", highest: String(error.highest) });
  }
  report({ kind: "finds", state: lease.state });
  await lease.release();
  await locks.close();
  db.close();
}

await work(JSON.parse(process.argv[2]!) as WorkerTask);
process.exit(0);
