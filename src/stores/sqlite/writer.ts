import type { SqliteDatabase, SqliteStatement } from "./driver.js";
import { explain, isBusy } from "./errors.js";
import { PATIENCE_MS } from "./patience.js";

interface Job {
  readonly run: () => unknown;
  readonly durable: boolean;
  readonly sinceMs: number;
  resolve(value: unknown): void;
  reject(error: unknown): void;
}

const RETRY_MS = { min: 1, max: 20 };
/** A transaction ends after this time, so that many jobs do not block the event loop together. */
const TURN_MS = 3;

/** Thrown by a job that turns out to need durability; the transaction is made again, durably. */
export class NeedsDurability extends Error {}

/**
 * Runs jobs in write transactions: those of one turn of the event loop share one, and so one sync to
 * the disk. SQLite's own busy timeout would block the event loop, so a busy file is retried from timers.
 */
export class Writer {
  /** Whether what the present transaction commits survives a power cut. */
  durable = false;
  readonly #db: SqliteDatabase;
  readonly #file: string;
  readonly #hooks: { begun(): void; committed(): void; rolledBack(): void };
  readonly #begin: SqliteStatement;
  readonly #beginRead: SqliteStatement;
  readonly #commit: SqliteStatement;
  readonly #rollback: SqliteStatement;
  #jobs: Job[] = [];
  #scheduled = false;
  #synchronous: "FULL" | "NORMAL" | "" = "";
  #busyTimes = 0;

  constructor(
    db: SqliteDatabase,
    file: string,
    hooks: { begun(): void; committed(): void; rolledBack(): void },
  ) {
    this.#db = db;
    this.#file = file;
    this.#hooks = hooks;
    this.#begin = db.prepare("BEGIN IMMEDIATE");
    this.#beginRead = db.prepare("BEGIN");
    this.#commit = db.prepare("COMMIT");
    this.#rollback = db.prepare("ROLLBACK");
  }

  run<T>(durable: boolean, run: () => T): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      this.#jobs.push({
        run,
        durable,
        sinceMs: performance.now(),
        resolve: resolve as (value: unknown) => void,
        reject,
      });
      this.#schedule();
    });
  }

  /** Runs reads on one snapshot of the file. Throws if the file is busy. */
  read<T>(read: () => T): T {
    this.#beginRead.run();
    try {
      return read();
    } finally {
      this.#rollBack();
    }
  }

  #schedule(): void {
    if (this.#scheduled || this.#jobs.length === 0) return;
    this.#scheduled = true;
    if (this.#busyTimes === 0) setImmediate(() => this.#turn());
    else {
      const pauseMs = Math.min(RETRY_MS.max, RETRY_MS.min * 2 ** this.#busyTimes);
      setTimeout(() => this.#turn(), pauseMs * (0.5 + Math.random() / 2));
    }
  }

  #turn(): void {
    this.#scheduled = false;
    try {
      this.#transaction(this.#jobs.some((job) => job.durable));
      this.#busyTimes = 0;
    } catch (error) {
      if (isBusy(error)) this.#waitOn(error);
      else this.#reject(this.#jobs, error);
    }
    this.#schedule();
  }

  /** Commits as many of the jobs as fit into a turn. */
  #transaction(durable: boolean): void {
    this.#setSynchronous(durable ? "FULL" : "NORMAL");
    this.#begin.run();
    const values: unknown[] = [];
    try {
      this.durable = durable;
      this.#hooks.begun();
      const startedAtMs = performance.now();
      for (const job of this.#jobs) {
        values.push(job.run());
        if (performance.now() - startedAtMs > TURN_MS) break;
      }
      this.#commit.run();
    } catch (error) {
      this.#hooks.rolledBack();
      this.#rollBack();
      if (error instanceof NeedsDurability) this.#transaction(true);
      else if (isBusy(error) || this.#jobs.length === 1) throw error;
      // One job may be wrong alone: each is run by itself.
      else this.#separate();
      return;
    }
    const done = this.#jobs.splice(0, values.length);
    this.#hooks.committed();
    for (const [i, job] of done.entries()) job.resolve(values[i]);
  }

  #rollBack(): void {
    try {
      this.#rollback.run();
    } catch {
      // SQLite has rolled back by itself.
    }
  }

  #separate(): void {
    const jobs = this.#jobs;
    const added: Job[] = [];
    for (const job of jobs) {
      this.#jobs = [job];
      try {
        this.#transaction(true);
      } catch (error) {
        this.#reject([job], error);
      }
      added.push(...this.#jobs);
    }
    this.#jobs = added;
  }

  /**
   * Durable is FULL: in WAL mode it syncs the log at each commit. NORMAL leaves the last commits to
   * a power cut; after one, no process is left whose release or renewal could matter.
   */
  #setSynchronous(level: "FULL" | "NORMAL"): void {
    if (this.#synchronous === level) return;
    this.#db.exec(`PRAGMA synchronous = ${level}`);
    this.#synchronous = level;
  }

  #waitOn(error: unknown): void {
    this.#busyTimes = Math.min(this.#busyTimes + 1, 16);
    const nowMs = performance.now();
    const waiting: Job[] = [];
    for (const job of this.#jobs) {
      if (nowMs - job.sinceMs < PATIENCE_MS) waiting.push(job);
      else job.reject(explain(error, this.#file));
    }
    this.#jobs = waiting;
  }

  #reject(jobs: readonly Job[], error: unknown): void {
    this.#jobs = this.#jobs.filter((job) => !jobs.includes(job));
    for (const job of jobs) job.reject(explain(error, this.#file));
  }
}
