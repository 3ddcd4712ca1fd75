import { setTimeout as sleep } from "node:timers/promises";
import { ConflictError, InvalidArgumentError } from "../core/errors.js";
import { checkNumber, checkOptions, orElse, show } from "../core/validate.js";
import { assign, type Columns, describeRow, matchKey, quoteColumn, quoteTable } from "./sql.js";
import { addressOfTx, type PostgresTx, toLockError } from "./tx.js";

/** Options of `updateVersioned`. */
export interface UpdateVersionedOptions {
  /** The column that counts the changes of a row. Default "version". */
  column?: string;
  /** How often the row is read again after somebody else has changed it. Default 8. */
  retries?: number;
}

/** Between two attempts, for the first and at most. */
const PAUSE_MS = { first: 2, max: 50 };

/**
 * Changes a row without a lock: reads it, calls `change`, and writes only if nobody has changed the row
 * since, which its version shows; otherwise it begins again. Returns the row as it was written, or null
 * if there is none.
 *
 * Every writer of the table must raise the version. Rejects with `ConflictError` if others were faster
 * at every attempt, and with `StoreUnavailableError` if the database gave no reply: then the row may
 * have been changed.
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
  const row = describeRow(table, key);
  const version = quoteColumn(column);
  for (let attempt = 0; ; attempt++) {
    const found = await readRow(db, table, key);
    if (found === null) return null;
    const changes = await change(found as Row);
    const values: unknown[] = [];
    const set = [...assign(changes, values), `${version} = coalesce(${version}, 0) + 1`];
    const text =
      `UPDATE ${quoteTable(table)} SET ${set.join(", ")} WHERE ${matchKey(key, values)}` +
      ` AND ${version} IS NOT DISTINCT FROM $${values.push(versionOf(found, column))} RETURNING *`;
    const [written] = await run(db, text, values);
    if (written !== undefined) return written as Row;
    if (attempt === retries) throw new ConflictError(row, retries + 1);
    await sleep(Math.random() * Math.min(PAUSE_MS.max, PAUSE_MS.first * 2 ** attempt));
  }
}

async function readRow(db: PostgresTx, table: string, key: Columns): Promise<Columns | null> {
  const values: unknown[] = [];
  const text = `SELECT * FROM ${quoteTable(table)} WHERE ${matchKey(key, values)} LIMIT 2`;
  const rows = await run(db, text, values);
  if (rows.length < 2) return (rows[0] as Columns | undefined) ?? null;
  throw new InvalidArgumentError(
    `several rows are ${describeRow(table, key)}: name a key that one row has`,
  );
}

function versionOf(row: Columns, column: string): unknown {
  if (column in row) return row[column];
  throw new InvalidArgumentError(
    `the row has no column ${show(column)}: name the one that counts its changes`,
  );
}

async function run(
  db: PostgresTx,
  text: string,
  values: readonly unknown[],
): Promise<readonly unknown[]> {
  try {
    return (await db.query(text, values)).rows;
  } catch (error) {
    throw toLockError(error, addressOfTx(db));
  }
}
