import { writeSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { connect } from "../../connect.js";
import type { LocksOptions } from "../../core/options.js";
import type { Locks } from "../../locks.js";
import { openSqlite, type SqliteDatabase } from "../../stores/sqlite/driver.js";
import { inTransaction } from "../../stores/sqlite/transaction.js";

/** Given to a process of a story when it starts. */
export interface Role {
  readonly story: string;
  readonly name: string;
  /** The second part of the story. */
  readonly fixed: boolean;
  readonly folder: string;
  /** The store of the locks. */
  readonly url: string;
}

/** A process of a story, seen from inside. */
export class Actor {
  readonly name: string;
  readonly fixed: boolean;
  readonly folder: string;
  readonly url: string;
  readonly #cues = createInterface(process.stdin)[Symbol.asyncIterator]();

  constructor({ name, fixed, folder, url }: Role) {
    this.name = name;
    this.fixed = fixed;
    this.folder = folder;
    this.url = url;
  }

  /** Reports to the director, who prints it. Synchronous: the process may be stopped right after it. */
  say(text: string): void {
    writeSync(1, `${JSON.stringify(text)}\n`);
  }

  /** Waits for the director; resolves to the word that came with the cue. */
  async cue(): Promise<string> {
    const { done, value } = await this.#cues.next();
    return done ? process.exit(1) : value;
  }

  /** Reports, and waits for the cue to go on. */
  async sayAndWait(text: string): Promise<void> {
    this.say(text);
    await this.cue();
  }

  connect(options: LocksOptions = {}): Promise<Locks> {
    return connect(this.url, { holder: this.name, wait: "30s", ...options });
  }

  /** The database of the story. */
  async open(): Promise<Data> {
    return new Data(await openSqlite(join(this.folder, "data.db")));
  }
}

/** An SQLite database that several processes use. */
export class Data {
  readonly db: SqliteDatabase;

  constructor(db: SqliteDatabase) {
    db.exec("PRAGMA busy_timeout = 10000");
    this.db = db;
  }

  /** The only value of the first row. */
  value(sql: string, ...values: (string | number)[]): number | string | null {
    const row = this.db.prepare(sql).get(...values) as Record<string, number | string> | undefined;
    return row === undefined ? null : Object.values(row)[0]!;
  }

  /** Returns the number of changed rows. */
  run(sql: string, ...values: (string | number)[]): number {
    return Number((this.db.prepare(sql).run(...values) as { changes: number | bigint }).changes);
  }

  /** Begins with BEGIN IMMEDIATE: no other process writes in between. */
  transaction(steps: () => void): void {
    inTransaction(this.db, steps);
  }
}
