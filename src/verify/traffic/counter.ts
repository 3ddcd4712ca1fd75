import { StaleTokenError } from "../../core/errors.js";
import type { Fenced } from "../../fence/fence.js";
import { type SqliteFence, sqliteFence } from "../../fence/sqlite.js";
import { openSqlite, type SqliteDatabase } from "../../stores/sqlite/driver.js";
import { patiently } from "../../stores/sqlite/patience.js";

const TABLE = `
CREATE TABLE IF NOT EXISTS counter (one INTEGER PRIMARY KEY CHECK (one = 1), value INTEGER, step INTEGER);
INSERT OR IGNORE INTO counter VALUES (1, 0, 0)`;

export interface Answered {
  readonly accepted: boolean;
  /** How many steps the resource had taken by then, this one included. */
  readonly step: number;
}

const RESOURCE = "counter";

/** A number behind a fence, in an SQLite file: the resource that workers of one machine write to. */
export class Counter {
  readonly #db: SqliteDatabase;
  readonly #fence: SqliteFence;

  private constructor(db: SqliteDatabase) {
    this.#db = db;
    this.#fence = sqliteFence(db);
  }

  static async open(file: string): Promise<Counter> {
    const db = await openSqlite(file);
    db.exec("PRAGMA busy_timeout = 0");
    return patiently(() => {
      db.exec(TABLE);
      return new Counter(db);
    });
  }

  enter(lease: Fenced): Promise<Answered> {
    return this.#step(() => this.#fence.guardSync(this.#db, RESOURCE, lease));
  }

  async read(): Promise<number> {
    const row = await patiently(() => this.#db.prepare("SELECT value FROM counter").get());
    return (row as { value: number }).value;
  }

  write(lease: Fenced, value: number): Promise<Answered> {
    return this.#step(() => {
      this.#fence.guardSync(this.#db, RESOURCE, lease);
      this.#db.prepare("UPDATE counter SET value = ?").run(value);
    });
  }

  close(): void {
    this.#db.close();
  }

  /** A refusal is counted too: its place in the order is part of what is checked. */
  #step(act: () => void): Promise<Answered> {
    return patiently(() => {
      this.#db.exec("BEGIN IMMEDIATE");
      try {
        const accepted = isAccepted(act);
        this.#db.exec("UPDATE counter SET step = step + 1");
        const { step } = this.#db.prepare("SELECT step FROM counter").get() as { step: number };
        this.#db.exec("COMMIT");
        return { accepted, step };
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
