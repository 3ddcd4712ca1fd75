import { InvalidArgumentError, UnsupportedError } from "../../core/errors.js";
import { checkOptions, orElse } from "../../core/validate.js";
import {
  assign,
  type Columns,
  describeRow,
  matchKey,
  quoteColumn,
  quoteTable,
} from "../../postgres/sql.js";
import {
  addressOfTx,
  checkInTransaction,
  checkTx,
  makeFail,
  type PostgresTx,
  rowsBy,
  toLockError,
} from "../../postgres/tx.js";
import { checkFenced, type Fenced, stale } from "../fence.js";

/** Options of `guardRow`. */
export interface GuardRowOptions {
  /** The column of type bigint that keeps the highest token of the row. Default "fence_token". */
  column?: string;
  /** Columns to be changed in the same statement. Default none. */
  set?: Columns;
}

/**
 * A fence that is a column of your own table: changes the row only if no later holder has entered it,
 * and raises its token. Returns the row as it is now, locked until the transaction ends, or null if
 * there is no such row. Rejects with `StaleTokenError` if a later holder has entered; then the
 * transaction can't be committed any more.
 *
 * Without `set` it enters the row: call it so before the first read, or take the row that it returns.
 *
 * @param tx The client on which the transaction was begun.
 * @param table `table` or `schema.table`, spelt as in the catalogue.
 * @param key Columns and values that only this row has.
 *
 * @example
 * ```ts
 * import { guardRow } from "holdfast/fence/postgres";
 *
 * const hat = await guardRow<{ count: number }>(tx, "stock", { item: "hat" }, lease);
 * if (hat === null) throw new Error("there is no hat in the table");
 * await guardRow(tx, "stock", { item: "hat" }, lease, { set: { count: hat.count - 1 } });
 * ```
 */
export async function guardRow<Row = Record<string, unknown>>(
  tx: PostgresTx,
  table: string,
  key: Columns,
  lease: Fenced,
  options: GuardRowOptions = {},
): Promise<Row | null> {
  checkOptions(options, "the options of guardRow", ["column", "set"]);
  checkTx(tx);
  const name = describeRow(table, key);
  const { token, floor } = checkFenced("row", lease);
  const columnName = orElse(options.column, "fence_token");
  const column = quoteColumn(columnName);
  const values: unknown[] = [];
  const raise = `${column} = greatest(${column}, $${values.push(String(floor))}::pg_catalog.text::bigint)`;
  const set = [...assign(orElse(options.set, {}), values), raise].join(", ");
  const update =
    `UPDATE ${quoteTable(table)} SET ${set} WHERE ${matchKey(key, values)}` +
    ` AND coalesce(${column}, 0) <= $${values.push(String(token))}::pg_catalog.text::bigint AND ${isExact(column)} RETURNING *`;
  const keyValues: unknown[] = [];
  const find = `SELECT ${column}::bigint::pg_catalog.text AS highest FROM ${quoteTable(table)} WHERE ${matchKey(key, keyValues)} FOR UPDATE`;
  try {
    // Twice, because the row may appear between the two statements; the second time it is locked.
    for (let attempt = 1; attempt <= 2; attempt++) {
      const rows = await rowsBy(tx, update, values);
      checkInTransaction(tx);
      if (rows.length > 1) {
        await makeFail(tx);
        throw new InvalidArgumentError(`several rows are ${name}: name a key that one row has`);
      }
      if (rows.length === 1) {
        // NaN where a query builder has renamed the column.
        if (Number((rows[0] as Columns)[columnName]) < Number(floor)) {
          await makeFail(tx);
          throw new UnsupportedError(
            `PostgreSQL does not keep the token of ${name} in ${column}: does a trigger change it?`,
          );
        }
        return rows[0] as Row;
      }
      const [found] = (await rowsBy(tx, find, keyValues)) as [{ highest: string | null }?];
      if (found === undefined) return null;
      const highest = BigInt(found.highest ?? 0);
      if (highest > token) {
        await makeFail(tx);
        throw stale(name, token, highest);
      }
    }
  } catch (error) {
    throw toLockError(error, addressOfTx(tx));
  }
  await makeFail(tx);
  throw new UnsupportedError(
    `PostgreSQL does not change ${name}: does a trigger or a policy prevent it? Or is ${column} no bigint, but of a type that rounds?`,
  );
}

/**
 * Another holder's number, rounded up to the token of a stale one, would let it pass. The type of `greatest` is a
 * base type, also where the column's is a domain.
 */
const isExact = (column: string): string =>
  `pg_catalog.pg_typeof(greatest(${column}, 0::bigint)) OPERATOR(pg_catalog.<>) ALL ('{real,double precision}'::pg_catalog.regtype[])`;
