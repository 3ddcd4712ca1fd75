import { checkToken } from "../core/validate.js";
import type { SqliteDatabase, SqliteStatement } from "../stores/sqlite/driver.js";
import { explain } from "../stores/sqlite/errors.js";
import { patiently } from "../stores/sqlite/patience.js";
import { checkFenced, type Fence, type Fenced, notEntered, stale } from "./fence.js";

const TABLE = `
CREATE TABLE IF NOT EXISTS holdfast_fence (
  resource TEXT PRIMARY KEY,
  highest INTEGER NOT NULL
) WITHOUT ROWID`;

/** One statement, so that check and advance are one step also outside a transaction. No row: refused. */
const ENTER = `
INSERT INTO holdfast_fence (resource, highest) VALUES (?1, ?2)
ON CONFLICT (resource) DO UPDATE SET highest = max(highest, ?2) WHERE ?3 >= highest
RETURNING 1`;

const HIGHEST = "SELECT CAST(highest AS TEXT) AS highest FROM holdfast_fence WHERE resource = ?";

const RESET = `
INSERT INTO holdfast_fence (resource, highest) VALUES (?1, ?2)
ON CONFLICT (resource) DO UPDATE SET highest = ?2`;

interface Statements {
  readonly enter: SqliteStatement;
  readonly highest: SqliteStatement;
  readonly reset: SqliteStatement;
}

/**
 * For data in an SQLite file: the connection in whose open transaction the user's write stands is
 * the `tx`; without one, the fence's own connection is used, and the statement is its own transaction.
 */
export class SqliteFence implements Fence<SqliteDatabase | undefined> {
  readonly #db: SqliteDatabase;
  readonly #statements = new WeakMap<SqliteDatabase, Statements>();

  constructor(db: SqliteDatabase) {
    this.#db = db;
    db.exec(TABLE);
  }

  async enter(tx: SqliteDatabase | undefined, resource: string, lease: Fenced): Promise<void> {
    // In a transaction of its own it may meet those of others; in the caller's it has the lock.
    if (tx === undefined) await patiently(() => this.#enter(tx, resource, lease));
    else this.#enter(tx, resource, lease);
  }

  async guard(
    tx: SqliteDatabase | undefined,
    resource: string,
    lease: Fenced,
    options: { strict?: boolean } = {},
  ): Promise<void> {
    this.guardSync(tx, resource, lease, options);
  }

  /** For a transaction that is written without `await`, as `node:sqlite` suggests. */
  guardSync(
    tx: SqliteDatabase | undefined,
    resource: string,
    lease: Fenced,
    options: { strict?: boolean } = {},
  ): void {
    const { token, floor } = checkFenced(resource, lease);
    if (options.strict) {
      const highest = this.#highest(tx, resource);
      if (highest < floor) throw notEntered(resource, token, highest);
    }
    this.#enter(tx, resource, lease);
  }

  async highest(tx: SqliteDatabase | undefined, resource: string): Promise<bigint> {
    return this.#highest(tx, resource);
  }

  async reset(tx: SqliteDatabase | undefined, resource: string, token: bigint): Promise<void> {
    checkToken(token, "token");
    this.#run(tx, ({ reset }) => reset.run(resource, token));
  }

  #enter(tx: SqliteDatabase | undefined, resource: string, lease: Fenced): void {
    const { token, floor } = checkFenced(resource, lease);
    const entered = this.#run(tx, ({ enter }) => enter.get(resource, floor, token));
    if (entered === undefined) throw stale(resource, token, this.#highest(tx, resource));
  }

  #highest(tx: SqliteDatabase | undefined, resource: string): bigint {
    const row = this.#run(tx, ({ highest }) => highest.get(resource));
    return BigInt((row as { highest: string } | undefined)?.highest ?? 0);
  }

  #run<T>(tx: SqliteDatabase | undefined, run: (statements: Statements) => T): T {
    const db = tx ?? this.#db;
    try {
      return run(this.#prepared(db));
    } catch (error) {
      throw explain(error, "of the fence");
    }
  }

  #prepared(db: SqliteDatabase): Statements {
    let prepared = this.#statements.get(db);
    if (prepared === undefined) {
      prepared = {
        enter: db.prepare(ENTER),
        highest: db.prepare(HIGHEST),
        reset: db.prepare(RESET),
      };
      this.#statements.set(db, prepared);
    }
    return prepared;
  }
}

/** Makes its table, `holdfast_fence`, in the database that holds the data. */
export function sqliteFence(db: SqliteDatabase): SqliteFence {
  return new SqliteFence(db);
}
