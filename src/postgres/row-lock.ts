import { unlessAborted } from "../core/abort.js";
import { InvalidArgumentError } from "../core/errors.js";
import {
  checkBoolean,
  checkOptions,
  checkSignal,
  type Duration,
  orElse,
} from "../core/validate.js";
import { type Columns, describeRow, matchKey, quoteColumn, quoteTable } from "./sql.js";
import { checkInTransaction, checkTx, type PostgresTx } from "./tx.js";
import { checkWait, withWaitLimit } from "./wait-limit.js";

/** Options of `lockRow`. */
export interface LockRowOptions {
  /**
   * How long to wait while another transaction has locked the row. Default 10 s; 0 does not wait;
   * `Infinity`.
   */
  wait?: Duration;
  /**
   * Ends the wait: the call rejects with the signal's reason. The statement waits on in PostgreSQL, and a ROLLBACK
   * waits behind it: `tx.release(true)` closes the connection at once.
   */
  signal?: AbortSignal;
  /** Passes over rows that are locked, and then several rows may have the key. Default false. */
  skipLocked?: boolean;
  /** With `skipLocked`: the column by whose lowest value the row is chosen. By default any row. */
  orderBy?: string;
}

/**
 * Locks a row until the transaction ends (`SELECT … FOR UPDATE`). Returns the row, or null if there is
 * none, or if `skipLocked` has passed over it.
 *
 * Rejects with `AcquireTimeoutError` if another transaction keeps the row locked for the whole `wait`;
 * with the signal's reason; with `StoreUnavailableError` if the connection is lost or PostgreSQL refuses
 * the statement. Then the transaction can only be rolled back. Rejects with `InvalidArgumentError` if several rows have the key.
 *
 * @param tx The client on which the transaction was begun.
 * @param table `table` or `schema.table`, spelt as in the catalogue.
 * @param key Columns and values that only this row has.
 *
 * @example
 * ```ts
 * import { lockRow, withTransactionLock } from "holdfast/postgres";
 *
 * await withTransactionLock(pool, "orders", { mode: "shared" }, async (tx) => {
 *   const order = await lockRow<{ state: string }>(tx, "orders", { id: 1 }, { wait: "5s" });
 *   if (order?.state !== "open") return;
 *   await tx.query("UPDATE orders SET state = 'paid' WHERE id = 1");
 * });
 * ```
 */
export async function lockRow<Row = Record<string, unknown>>(
  tx: PostgresTx,
  table: string,
  key: Columns,
  options: LockRowOptions = {},
): Promise<Row | null> {
  checkOptions(options, "the options of lockRow", ["wait", "signal", "skipLocked", "orderBy"]);
  checkTx(tx);
  const signal = options.signal === undefined ? undefined : checkSignal(options.signal);
  const skipLocked = checkBoolean(orElse(options.skipLocked, false), "skipLocked");
  const waitMs = skipLocked ? 0 : checkWait(options.wait);
  if (options.orderBy !== undefined && !skipLocked) {
    throw new InvalidArgumentError("orderBy chooses among several rows: it needs skipLocked");
  }
  const values: unknown[] = [];
  const order = options.orderBy === undefined ? "" : ` ORDER BY ${quoteColumn(options.orderBy)}`;
  const text =
    `SELECT * FROM ${quoteTable(table)} WHERE ${matchKey(key, values)}${order} LIMIT ${skipLocked ? 1 : 2}` +
    ` FOR UPDATE${skipLocked ? " SKIP LOCKED" : waitMs === 0 ? " NOWAIT" : ""}`;
  const row = describeRow(table, key);
  signal?.throwIfAborted();
  const locking = withWaitLimit(tx, row, waitMs, () => {
    // Behind the caller's ROLLBACK, the statement would run outside of the transaction.
    signal?.throwIfAborted();
    return tx.query(text, values);
  });
  const { rows } = await unlessAborted(locking, signal);
  checkInTransaction(tx);
  if (rows.length > 1)
    throw new InvalidArgumentError(`several rows are ${row}: name a key that one row has`);
  return (rows[0] as Row | undefined) ?? null;
}
