import { reasonOf, safeCause } from "../core/cause.js";
import { retryConflicts } from "../core/conflicts.js";
import { ConflictError, InvalidArgumentError } from "../core/errors.js";
import { unknownOutcome, type VersionedPlace } from "../core/place.js";
import { checkNumber, checkOptions, orElse, show } from "../core/validate.js";
import { isPool, transactionStatus } from "../stores/postgres/client.js";
import {
  assignVersioned,
  type Columns,
  describeRow,
  matchKey,
  quoteColumn,
  quoteTable,
  severalRows,
  versionOf,
} from "./sql.js";
import { addressOfTx, type PostgresTx, rowsBy, sqlStateOf, toLockError } from "./tx.js";

/** Options of `updateVersioned`. */
export interface UpdateVersionedOptions {
  /** The column that counts the changes of a row. Default "version". */
  column?: string;
  /** How often the row is read again after somebody else has changed it. Default 8. */
  retries?: number;
}

/** Between two attempts, for the first and at most. */
const PAUSE_MS = { firstMs: 2, maxMs: 50 };

/**
 * Changes a row without a lock: reads it, calls `change`, and writes only if nobody has changed the row
 * since, which its version shows; otherwise it begins again. Returns the row as it was written, or null
 * if there is none.
 *
 * Every writer of the table must raise the version, and a row that is deleted and made again must not get a
 * version that it had before. Rejects with `ConflictError` if others were faster at every attempt, and with
 * `StoreUnavailableError` if the database gave no reply: if that is not retryable, the row may have been changed.
 *
 * @param db A pool or a client of `pg`.
 * @param table `table` or `schema.table`, spelt as in the catalogue.
 * @param key Columns and values that only this row has.
 * @param change Returns the columns to be changed; called once for each attempt.
 *
 * @example
 * ```ts
 * import { updateVersioned } from "holdfast/postgres";
 *
 * await updateVersioned<{ count: number }>(pool, "stock", { item: "hat" }, ({ count }) => ({ count: count - 1 }));
 * ```
 */
export async function updateVersioned<Row = Record<string, unknown>>(
  db: PostgresTx,
  table: string,
  key: Columns,
  change: (row: Row) => Columns | Promise<Columns>,
  options: UpdateVersionedOptions = {},
): Promise<Row | null> {
  checkOptions(options, "the options of updateVersioned", ["column", "retries"]);
  const column = orElse(options.column, "version");
  const retries = checkNumber(orElse(options.retries, 8), "retries", {
    min: 0,
    max: 1_000,
    integer: true,
  });
  if (typeof change !== "function") {
    throw new InvalidArgumentError(`change is ${show(change)}; it must be a function`);
  }
  const place = postgresRow<Row>(db, table, key, { column });
  const { written } = await retryConflicts(
    { retries, ...PAUSE_MS },
    async () => {
      const found = await place.read();
      if (found === null) return { written: null };
      const written = await place.write(await change(found.value), found.version);
      return written === false ? null : { written };
    },
    (attempts) => new ConflictError(describeRow(table, key), attempts),
  );
  return written;
}

/**
 * A row of a table in PostgreSQL whose column `version` counts its changes, for `optimistic` and `changing` of
 * `holdfast/lockfree`. Columns that `change` does not return keep their values.
 */
export function postgresRow<Row = Record<string, unknown>>(
  db: PostgresTx,
  table: string,
  key: Columns,
  options: { column?: string } = {},
): VersionedPlace<Row, Columns> {
  checkOptions(options, "the options of postgresRow", ["column"]);
  if (typeof (db as PostgresTx | null | undefined)?.query !== "function") {
    throw new InvalidArgumentError(
      `the db is ${show(db)}; pass a pool or a client of the package pg`,
    );
  }
  const column = orElse(options.column, "version");
  const version = quoteColumn(column);
  const resource = describeRow(table, key);
  return {
    resource,
    async read() {
      const values: unknown[] = [];
      const text = `SELECT * FROM ${quoteTable(table)} WHERE ${matchKey(key, values)} LIMIT 2`;
      const [row, another] = await rowsBy(db, text, values).catch((error: unknown) => {
        throw toLockError(error, addressOfTx(db));
      });
      if (another !== undefined) throw severalRows(table, key);
      if (row === undefined) return null;
      return { value: row as Row, version: versionOf(row as Columns, column) };
    },
    async write(changes, seen) {
      const values: unknown[] = [];
      const set = assignVersioned(changes, { column, seen }, values);
      const text =
        `UPDATE ${quoteTable(table)} SET ${set} WHERE ${matchKey(key, values)}` +
        ` AND ${version} IS NOT DISTINCT FROM $${values.push(seen)} RETURNING *`;
      try {
        const [written] = await rowsBy(db, text, values);
        return written === undefined ? false : (written as Row);
      } catch (error) {
        if (isConflict(db, error)) return false;
        throw toWriteError(db, error, resource);
      }
    },
  };
}

/** Above "read committed", the server refuses the statement where it would find another version otherwise. */
const isConflict = (db: PostgresTx, error: unknown): boolean =>
  /^40(001|P01)$/.test(sqlStateOf(error)) && (isPool(db) || transactionStatus(db) === "I");

/** An error with an SQLSTATE is the server's, and then nothing was written; except for those of a broken connection. */
const REFUSED = /^(?!08|57P|40003)[0-9FHPX][0-9A-Z]{4}$/;
const NOT_SENT =
  /ECONNREFUSED|ENOTFOUND|EAI_AGAIN|trying to connect|not queryable|was closed|after calling end/;

function toWriteError(db: PostgresTx, error: unknown, resource: string): unknown {
  const known = toLockError(error, addressOfTx(db));
  // A write in a transaction of the caller's ends with its connection.
  const inTransaction = ["T", "E"].includes(transactionStatus(db) ?? "");
  if (inTransaction || REFUSED.test(sqlStateOf(error)) || NOT_SENT.test(reasonOf(error)))
    return known;
  return unknownOutcome(resource, reasonOf(known), safeCause(error));
}
