import { HoldfastError, InvalidArgumentError, StoreUnavailableError } from "../core/errors.js";
import { checkToken, show } from "../core/validate.js";
import {
  checkDatabase,
  isDatabase,
  type SqliteDatabase,
  type SqliteStatement,
} from "../stores/sqlite/driver.js";
import { isBusy, toStoreError } from "../stores/sqlite/errors.js";
import { retryWhileBusy } from "../stores/sqlite/retry.js";
import { inTransaction } from "../stores/sqlite/transaction.js";
import {
  checkEntry,
  checkFenced,
  checkResource,
  type Fence,
  type Fenced,
  refuseUnlessEntered,
  stale,
} from "./fence.js";
import { checkListOptions, type FencedResource, type FenceListOptions } from "./shared/list.js";

const TABLE = `
CREATE TABLE IF NOT EXISTS holdfast_fence (
  resource TEXT PRIMARY KEY,
  highest INTEGER NOT NULL,
  entered_at INTEGER
) WITHOUT ROWID`;

/** Tables of an earlier version have no time. */
const ADD_TIME = "ALTER TABLE holdfast_fence ADD COLUMN entered_at INTEGER";
const HAS_TIME = "SELECT 1 FROM pragma_table_info('holdfast_fence') WHERE name = 'entered_at'";
/** Milliseconds since 1970. */
const NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)";

/**
 * One statement, so that check and advance are one step also outside a transaction. No row:
 * refused. No parameter has a number: `node:sqlite` of Node 22.13 to 22.19 and 24.0 to 24.6 can't bind those.
 */
const ENTER = `
INSERT INTO holdfast_fence (resource, highest, entered_at) VALUES (?, ?, ${NOW})
ON CONFLICT (resource) DO UPDATE SET highest = max(highest, excluded.highest),
  entered_at = CASE WHEN excluded.highest > highest THEN excluded.entered_at ELSE entered_at END
WHERE ? >= highest RETURNING 1`;

const HIGHEST = "SELECT CAST(highest AS TEXT) AS highest FROM holdfast_fence WHERE resource = ?";

const RESET = `
INSERT INTO holdfast_fence (resource, highest, entered_at) VALUES (?, ?, ${NOW})
ON CONFLICT (resource) DO UPDATE SET highest = excluded.highest, entered_at = excluded.entered_at`;

const OPEN_TRANSACTION =
  "the fence can't enter: another transaction stays open on its connection; pass it as tx, or give the fence a connection of its own";

const NO_TRANSACTION =
  "no transaction is open on the tx, so a later holder can enter between guard and write: run BEGIN IMMEDIATE first";

interface Row {
  readonly resource: string;
  /** As text: the driver may read a number as a double. */
  readonly highest: string;
  readonly entered_at: number | bigint | null;
}

/**
 * A fence for data in an SQLite file. The `tx` is the connection in whose open transaction you write.
 * Without one, `enter`, `guard` and `reset` are transactions of their own on the fence's connection, and wait
 * for the end of one that is open there: inside it, they would come between the guard and the write
 * of a stale holder, and a rollback would undo them.
 */
export class SqliteFence implements Fence<SqliteDatabase | undefined> {
  readonly #db: SqliteDatabase;
  readonly #statements = new WeakMap<SqliteDatabase, Map<string, SqliteStatement>>();
  /** False while the table may be missing, as after a rollback of the transaction that made it. */
  #hasTable = false;

  constructor(db: SqliteDatabase) {
    this.#db = checkDatabase(db, "sqliteFence");
    try {
      makeTable(db);
      this.#hasTable = isOutsideTransaction(db);
    } catch (error) {
      // Another process has locked the file: the first write waits for that, and makes the table.
      if (!isBusy(error)) throw toStoreError(error, "of the fence");
    }
  }

  async enter(tx: SqliteDatabase | undefined, resource: string, lease: Fenced): Promise<void> {
    if (tx !== undefined) this.#enter(tx, resource, lease);
    else await this.#alone(() => this.#enter(tx, resource, lease));
  }

  async guard(
    tx: SqliteDatabase | undefined,
    resource: string,
    lease: Fenced,
    options?: { strict?: boolean },
  ): Promise<void> {
    if (tx !== undefined) this.guardSync(tx, resource, lease, options);
    else await this.#alone(() => this.guardSync(tx, resource, lease, options));
  }

  /**
   * `guard` for a transaction without `await`, as `node:sqlite` suggests. Throws `StaleTokenError`.
   */
  guardSync(
    tx: SqliteDatabase | undefined,
    resource: string,
    lease: Fenced,
    options?: { strict?: boolean },
  ): void {
    const entry = checkEntry(resource, lease, options);
    if (isOutsideTransaction(tx)) throw new InvalidArgumentError(NO_TRANSACTION);
    if (entry.strict) refuseUnlessEntered(entry, this.highestOrNullSync(tx, resource));
    this.#enter(tx, resource, lease);
  }

  async highest(tx: SqliteDatabase | undefined, resource: string): Promise<bigint> {
    const read = (): bigint => this.highestSync(tx, resource);
    return tx === undefined ? retryWhileBusy(read) : read();
  }

  /** The resources that it has seen, in the order of their UTF-8 bytes. */
  async list(options?: FenceListOptions): Promise<readonly FencedResource[]> {
    return retryWhileBusy(() => this.listSync(options));
  }

  /** `list` without `await`. */
  listSync(options?: FenceListOptions): readonly FencedResource[] {
    return listTable(this.#db, options);
  }

  async reset(tx: SqliteDatabase | undefined, resource: string, token: bigint): Promise<void> {
    checkResource(resource);
    checkToken(token, "token");
    const set = (): unknown => this.#write(tx, RESET, (reset) => reset.run(resource, token));
    if (tx !== undefined) set();
    else await this.#alone(set);
  }

  /**
   * Runs the step in a transaction of its own, once no other is open on this connection and no
   * process has locked the file.
   */
  async #alone(step: () => unknown): Promise<void> {
    await retryWhileBusy(
      () => {
        try {
          inTransaction(this.#db, step);
          this.#hasTable = true;
        } catch (error) {
          throw isNested(error)
            ? new StoreUnavailableError(OPEN_TRANSACTION, { cause: error })
            : toStoreError(error, "of the fence");
        }
      },
      (error) => isNested((error as Error).cause),
    );
  }

  #enter(tx: SqliteDatabase | undefined, resource: string, lease: Fenced): void {
    const { token, floor } = checkFenced(resource, lease);
    const entered = this.#write(tx, ENTER, (enter) => enter.get(resource, floor, token));
    if (entered === undefined) throw stale(resource, token, this.highestSync(tx, resource));
  }

  /** `highest` without `await`. */
  highestSync(tx: SqliteDatabase | undefined, resource: string): bigint {
    return this.highestOrNullSync(tx, resource) ?? 0n;
  }

  /** As `highestSync`, but null for a resource that was never entered. */
  highestOrNullSync(tx: SqliteDatabase | undefined, resource: string): bigint | null {
    checkResource(resource);
    const row = this.#run(tx, (db) => {
      try {
        return this.#prepared(db, HIGHEST).get(resource) as Row | undefined;
      } catch (error) {
        if (isOfMissingTable(error)) return undefined;
        throw error;
      }
    });
    return row === undefined ? null : BigInt(row.highest);
  }

  /** Makes the table first if it may be missing. */
  #write<T>(
    tx: SqliteDatabase | undefined,
    sql: string,
    run: (statement: SqliteStatement) => T,
  ): T {
    return this.#run(tx, (db) => {
      try {
        if (!this.#hasTable) makeTable(db);
        return run(this.#prepared(db, sql));
      } catch (error) {
        // Somebody has dropped it: the next write makes it again.
        if (isOfMissingTable(error)) this.#hasTable = false;
        throw error;
      }
    });
  }

  #run<T>(tx: SqliteDatabase | undefined, step: (db: SqliteDatabase) => T): T {
    const db = tx === undefined ? this.#db : tx;
    if (!isDatabase(db)) {
      throw new InvalidArgumentError(
        `the tx is ${show(db)}; pass the connection in whose open transaction you write, or undefined`,
      );
    }
    try {
      return step(db);
    } catch (error) {
      throw toStoreError(error, "of the fence");
    }
  }

  #prepared(db: SqliteDatabase, sql: string): SqliteStatement {
    const prepared = this.#statements.get(db) ?? new Map<string, SqliteStatement>();
    this.#statements.set(db, prepared);
    const statement = prepared.get(sql) ?? db.prepare(sql);
    prepared.set(sql, statement);
    return statement;
  }
}

/** The resources of a database that may have no table, or one of an earlier version. It changes nothing. */
export function listTable(
  db: SqliteDatabase,
  options?: FenceListOptions,
): readonly FencedResource[] {
  const { prefix, limit } = checkListOptions(options);
  try {
    const columns = db.prepare("SELECT name FROM pragma_table_info('holdfast_fence')").all();
    if (columns.length === 0) return [];
    const hasTime = columns.some((one) => (one as { name: string }).name === "entered_at");
    const list = `SELECT resource, CAST(highest AS TEXT) AS highest, ${hasTime ? "entered_at" : "NULL"} AS entered_at
      FROM holdfast_fence WHERE substr(resource, 1, length(?)) = ? ORDER BY resource LIMIT ?`;
    return (db.prepare(list).all(prefix, prefix, limit) as Row[]).map((row) => ({
      resource: row.resource,
      highest: BigInt(row.highest),
      // Some connections read integers as bigint.
      enteredAtMs: row.entered_at === null ? null : Number(row.entered_at),
    }));
  } catch (error) {
    throw toStoreError(error, "of the fence");
  }
}

function makeTable(db: SqliteDatabase): void {
  const hasTime = (): boolean => db.prepare(HAS_TIME).get() !== undefined;
  db.exec(TABLE);
  if (hasTime()) return;
  try {
    db.exec(ADD_TIME);
  } catch (error) {
    // Another process may have added it at the same time.
    if (!hasTime()) throw error;
  }
}

/** Also of a table of an earlier version that somebody has restored. */
const isOfMissingTable = (error: unknown): boolean =>
  /no such table: (\w+\.)?holdfast_fence|holdfast_fence has no column/.test(
    String((error as Error | null)?.message),
  );

/** False also where the driver does not tell: `node:sqlite` before Node 22.16. */
function isOutsideTransaction(tx: SqliteDatabase | undefined): boolean {
  // The second is that of better-sqlite3 and Bun.
  const { isTransaction, inTransaction: isInside = isTransaction } = (tx ?? {}) as {
    readonly isTransaction?: unknown;
    readonly inTransaction?: unknown;
  };
  return isInside === false;
}

/**
 * SQLite has no result code for a nested BEGIN, and not every driver shows whether a transaction is
 * open. An error of ours may hold the same words in the name of a resource.
 */
const isNested = (error: unknown): boolean =>
  error instanceof Error && !HoldfastError.is(error) && /within a transaction/.test(error.message);

/**
 * Makes a fence for data in an SQLite database, and its table `holdfast_fence` there if it is
 * missing. Throws `InvalidArgumentError` if `db` is not a connection, and `StoreUnavailableError` if the table is
 * missing and the file can't be written. If another process has locked the file, the first write to the fence makes
 * the table.
 *
 * @example
 * ```ts
 * import { connect } from "holdfast";
 * import { sqliteFence } from "holdfast/fence/sqlite";
 * import { openSqlite } from "holdfast/stores/sqlite";
 *
 * const db = await openSqlite("shop.db"); // has a table: stock (amount INTEGER)
 * const fence = sqliteFence(db);
 * const locks = await connect("sqlite:locks.db");
 * await locks.withLock("stock", { fence }, async (lease) => {
 *   const { amount } = db.prepare("SELECT amount FROM stock").get() as { amount: number };
 *   db.exec("BEGIN IMMEDIATE");
 *   try {
 *     await fence.guard(db, "stock", lease); // throws StaleTokenError if a later holder has entered
 *     db.prepare("UPDATE stock SET amount = ?").run(amount - 1);
 *     db.exec("COMMIT");
 *   } catch (error) {
 *     db.exec("ROLLBACK");
 *     throw error;
 *   }
 * });
 * ```
 */
export function sqliteFence(db: SqliteDatabase): SqliteFence {
  return new SqliteFence(db);
}
