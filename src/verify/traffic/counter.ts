import { StaleTokenError } from "../../core/errors.js";
import type { Fenced } from "../../fence/fence.js";
import { type SqliteFence, sqliteFence } from "../../fence/sqlite.js";
import { openSqlite, type SqliteDatabase } from "../../stores/sqlite/driver.js";
import { retryWhileBusy } from "../../stores/sqlite/retry.js";
import type { Answered, Register } from "./registers/register.js";

const TABLE = `
CREATE TABLE IF NOT EXISTS counter (resource TEXT PRIMARY KEY, value INTEGER, unfenced INTEGER, step INTEGER)`;

/**
 * The resources that workers of one machine write to, in an SQLite file: for each name a number
 * behind a fence, and another one without a fence.
 */
export class Counter implements Register {
  readonly #db: SqliteDatabase;
  readonly #fence: SqliteFence;

  private constructor(db: SqliteDatabase) {
    this.#db = db;
    this.#fence = sqliteFence(db);
  }

  static async open(file: string): Promise<Counter> {
    const db = await openSqlite(file);
    db.exec("PRAGMA busy_timeout = 0");
    return retryWhileBusy(() => {
      // No sync is needed: written data outlives the process, and no fault cuts the power here.
      db.exec("PRAGMA synchronous = OFF; PRAGMA journal_mode = WAL");
      db.exec(TABLE);
      return new Counter(db);
    });
  }

  enter(resource: string, lease: Fenced): Promise<Answered> {
    return this.#step(resource, () => this.#fence.guardSync(this.#db, resource, lease));
  }

  async read(resource: string): Promise<{ value: number; unfenced: number }> {
    const read = "SELECT value, unfenced FROM counter WHERE resource = ?";
    const row = await retryWhileBusy(() => this.#db.prepare(read).get(resource));
    return row as { value: number; unfenced: number };
  }

  write(resource: string, lease: Fenced, value: number): Promise<Answered> {
    return this.#step(resource, () => {
      this.#fence.guardSync(this.#db, resource, lease);
      this.#db.prepare("UPDATE counter SET value = ? WHERE resource = ?").run(value, resource);
    });
  }

  /** Writes without a fence. Returns the number that it replaced. */
  writeUnfenced(resource: string, value: number): Promise<number> {
    return this.#transaction(() => {
      const read = "SELECT unfenced FROM counter WHERE resource = ?";
      const { unfenced } = this.#db.prepare(read).get(resource) as { unfenced: number };
      this.#db.prepare("UPDATE counter SET unfenced = ? WHERE resource = ?").run(value, resource);
      return unfenced;
    });
  }

  close(): void {
    this.#db.close();
  }

  /** Counts a refusal, too: its place in the order is part of what is checked. */
  #step(resource: string, act: () => void): Promise<Answered> {
    return this.#transaction(() => {
      const accepted = isAccepted(act);
      const count =
        "INSERT INTO counter VALUES (?, 0, 0, 1) ON CONFLICT DO UPDATE SET step = step + 1 RETURNING step";
      const { step } = this.#db.prepare(count).get(resource) as { step: number };
      return { accepted, step };
    });
  }

  #transaction<T>(act: () => T): Promise<T> {
    return retryWhileBusy(() => {
      this.#db.exec("BEGIN IMMEDIATE");
      try {
        const done = act();
        this.#db.exec("COMMIT");
        return done;
      } catch (error) {
        this.#db.exec("ROLLBACK");
        throw error;
      }
    });
  }
}

function isAccepted(act: () => void): boolean {
  try {
    act();
    return true;
  } catch (error) {
    if (error instanceof StaleTokenError) return false;
    throw error;
  }
}
