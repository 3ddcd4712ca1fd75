import type { SqliteDatabase, SqliteStatement } from "./driver.js";
import { isBusy, isFull, toStoreError } from "./errors.js";
import { BUSY_TIMEOUT_MS } from "./retry.js";
import { rollBack } from "./transaction.js";

interface Job {
  readonly run: () => unknown;
  readonly durable: boolean;
  readonly sinceMs: number;
  resolve(value: unknown): void;
  reject(error: unknown): void;
}

const RETRY_PAUSE_MS = { min: 1, max: 20 };
/** A transaction takes no further job after this time, so that many jobs do not block the event loop. */
const TRANSACTION_MS = 3;

/** Thrown by a job that needs a durable transaction: its jobs are run again in one. */
export class NeedsDurability extends Error {}

/** Called within a transaction before its first job, after a commit, and after a rollback. */
interface Hooks {
  begun(): void;
  committed(): void;
  rolledBack(): void;
}

/**
 * Runs jobs in write transactions. The jobs of one turn of the event loop share a transaction, and so
 * one sync to the disk. If the file is busy, a timer retries: SQLite's own timeout would block the event loop.
 */
export class Writer {
  /** Whether a power cut after the commit of the current transaction loses nothing of it. */
  durable = false;
  readonly #db: SqliteDatabase;
  readonly #file: string;
  readonly #hooks: Hooks;
  readonly #begin: SqliteStatement;
  readonly #beginRead: SqliteStatement;
  readonly #commit: SqliteStatement;
  #jobs: Job[] = [];
  #scheduled = false;
  #synchronous: "FULL" | "NORMAL" | "" = "";
  #busyAttempts = 0;

  constructor(db: SqliteDatabase, file: string, hooks: Hooks) {
    this.#db = db;
    this.#file = file;
    this.#hooks = hooks;
    this.#begin = db.prepare("BEGIN IMMEDIATE");
    this.#beginRead = db.prepare("BEGIN");
    this.#commit = db.prepare("COMMIT");
  }

  /** Resolves with the value of the job after the commit. Unless it is durable, a power cut may undo it. */
  run<T>(run: () => T, { durable = false } = {}): Promise<T> {
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
      rollBack(this.#db);
    }
  }

  #schedule(): void {
    if (this.#scheduled || this.#jobs.length === 0) return;
    this.#scheduled = true;
    if (this.#busyAttempts === 0) setImmediate(() => this.#runJobs());
    else {
      const pauseMs = Math.min(RETRY_PAUSE_MS.max, RETRY_PAUSE_MS.min * 2 ** this.#busyAttempts);
      setTimeout(() => this.#runJobs(), pauseMs * (0.5 + Math.random() / 2));
    }
  }

  #runJobs(): void {
    this.#scheduled = false;
    try {
      this.#transaction(this.#jobs.some((job) => job.durable));
      this.#busyAttempts = 0;
    } catch (error) {
      if (isBusy(error)) this.#rejectTimedOut(error);
      else this.#reject(this.#jobs, error);
    }
    this.#schedule();
  }

  /** Commits the first jobs, as many as TRANSACTION_MS allows. */
  #transaction(durable: boolean, logIsEmpty = false): void {
    this.#setSynchronous(durable ? "FULL" : "NORMAL");
    this.#begin.run();
    const values: unknown[] = [];
    try {
      this.durable = durable;
      this.#hooks.begun();
      const startedAtMs = performance.now();
      for (const job of this.#jobs) {
        values.push(job.run());
        if (performance.now() - startedAtMs > TRANSACTION_MS) break;
      }
      this.#commit.run();
    } catch (error) {
      this.#hooks.rolledBack();
      rollBack(this.#db);
      if (error instanceof NeedsDurability) this.#transaction(true, logIsEmpty);
      else if (isFull(error) && !logIsEmpty) {
        this.#emptyLog();
        this.#transaction(durable, true);
      } else if (isBusy(error) || this.#jobs.length === 1) throw error;
      // Only one of the jobs may be at fault, so each gets a transaction of its own.
      else this.#runSeparately();
      return;
    }
    const done = this.#jobs.splice(0, values.length);
    this.#hooks.committed();
    for (const [i, job] of done.entries()) job.resolve(values[i]);
  }

  #runSeparately(): void {
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
   * In WAL mode, FULL syncs the log at each commit. With NORMAL a power cut may lose the last commits:
   * harmless for releases and renewals, because no process that sent them is left.
   */
  #setSynchronous(level: "FULL" | "NORMAL"): void {
    if (this.#synchronous === level) return;
    this.#db.exec(`PRAGMA synchronous = ${level}`);
    this.#synchronous = level;
  }

  /** SQLite empties its log only after a commit, which a full disk prevents: the log itself may fill the disk. */
  #emptyLog(): void {
    try {
      this.#db.exec("PRAGMA wal_checkpoint(TRUNCATE)");
    } catch {
      // Not even that has room, or others read: the disk stays full.
    }
  }

  #rejectTimedOut(error: unknown): void {
    this.#busyAttempts = Math.min(this.#busyAttempts + 1, 16);
    const nowMs = performance.now();
    const waiting: Job[] = [];
    for (const job of this.#jobs) {
      if (nowMs - job.sinceMs < BUSY_TIMEOUT_MS) waiting.push(job);
      else job.reject(toStoreError(error, this.#file));
    }
    this.#jobs = waiting;
  }

  #reject(jobs: readonly Job[], error: unknown): void {
    this.#jobs = this.#jobs.filter((job) => !jobs.includes(job));
    for (const job of jobs) job.reject(toStoreError(error, this.#file));
  }
}
