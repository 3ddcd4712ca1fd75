import { onAbort } from "../core/abort.js";
import { InvalidArgumentError } from "../core/errors.js";
import {
  checkBoolean,
  checkOptions,
  checkSignal,
  type Duration,
  orElse,
} from "../core/validate.js";
import { settlesWithin } from "../stores/shared/timeout.js";
import { type Backend, CANCEL_MS, cancelWaitOf, isClient } from "./cancel.js";
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
   * Ends the wait, also in PostgreSQL, by a connection of its own: the call rejects with the signal's reason, and you
   * can roll back at once. The `tx` must be a client of `pg`: the transaction of a query builder waits on in PostgreSQL,
   * and so does its ROLLBACK.
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
  let backend: Backend | null = null;
  const locking = withWaitLimit<Reply>(tx, row, waitMs, (own) => {
    // The reply is not used: the statement would wait, and the transaction keeps its own `lock_timeout`.
    if (signal?.aborted) return Promise.resolve({ rows: [] });
    backend = own;
    return tx.query(text, values);
  });
  const { rows } = await unlessCancelled(locking, signal, async () => {
    if (backend === null) return;
    if (!isClient(tx)) throw new Error("the wait can't be cancelled");
    await cancelWaitOf(tx, backend);
  });
  checkInTransaction(tx);
  if (rows.length > 1)
    throw new InvalidArgumentError(`several rows are ${row}: name a key that one row has`);
  return (rows[0] as Row | undefined) ?? null;
}

interface Reply {
  readonly rows: readonly unknown[];
}

/**
 * Rejects with the signal's reason when it aborts and the statement has ended, or could not be cancelled. A statement
 * that went on would keep the caller's ROLLBACK waiting, and its locks.
 */
function unlessCancelled<T>(
  statement: Promise<T>,
  signal: AbortSignal | undefined,
  cancel: () => Promise<void>,
): Promise<T> {
  if (signal === undefined) return statement;
  return new Promise((resolve, reject) => {
    let isAborted = false;
    const undo = onAbort(signal, () => {
      isAborted = true;
      const ended = Promise.all([cancel(), statement.catch(() => {})]);
      settlesWithin(CANCEL_MS, ended)
        .catch(() => {})
        .then(() => reject(signal.reason));
    });
    statement.finally(undo).then(
      (value) => isAborted || resolve(value),
      (error) => isAborted || reject(error),
    );
  });
}
