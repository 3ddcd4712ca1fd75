import { InvalidArgumentError } from "../core/errors.js";
import { checkText, show } from "../core/validate.js";

/** Columns and their values. */
export type Columns = Readonly<Record<string, unknown>>;

/** PostgreSQL cuts longer ones off, and then they may name something else. */
const IDENTIFIER_BYTES = 63;

export const quoteColumn = (name: unknown): string => quote(name, "the column");

/** `table` or `schema.table`, spelt as in the catalogue. */
export function quoteTable(table: unknown): string {
  const parts = typeof table === "string" ? table.split(".") : [table];
  if (parts.length > 2) {
    throw new InvalidArgumentError(`the table is ${show(table)}; write "table" or "schema.table"`);
  }
  return parts.map((part) => quote(part, "the table")).join(".");
}

/** The character before the number of a parameter: `$` in PostgreSQL, `?` in SQLite. */
type Mark = "$" | "?";

/** The condition that a row has this key, with its values appended to the statement's. */
export function matchKey(key: Columns, values: unknown[], mark: Mark = "$"): string {
  const columns = checkColumns(key, "the key");
  if (columns.length === 0)
    throw new InvalidArgumentError("the key has no column: name at least one");
  return columns
    .map(([column, value]) => {
      if (value === null || value === undefined) {
        throw new InvalidArgumentError(
          `the key's column ${show(column)} is ${value}, which equals no value`,
        );
      }
      return `${quoteColumn(column)} = ${mark}${values.push(value)}`;
    })
    .join(" AND ");
}

/** The assignments of an UPDATE, with their values appended to the statement's. */
export const assign = (changes: Columns, values: unknown[], mark: Mark = "$"): string[] =>
  checkColumns(changes, "the changes").map(([column, value]) => {
    if (value !== undefined) return `${quoteColumn(column)} = ${mark}${values.push(value)}`;
    throw new InvalidArgumentError(
      `the changes' column ${show(column)} is undefined: leave it out, or write null`,
    );
  });

/** As `assign`, and raises the version. The changes may be the whole row, but not with another version. */
export function assignVersioned(
  changes: Columns,
  { column, seen }: { readonly column: string; readonly seen: unknown },
  values: unknown[],
  mark: Mark = "$",
): string {
  const { [column]: version = seen, ...others } = Object.fromEntries(
    checkColumns(changes, "the changes"),
  );
  if (version !== seen) {
    throw new InvalidArgumentError(
      `the changes set ${show(column)}, which counts the changes by itself: leave it out`,
    );
  }
  const name = quoteColumn(column);
  return [...assign(others, values, mark), `${name} = coalesce(${name}, 0) + 1`].join(", ");
}

/** How a row is called in an error. */
export const describeRow = (table: string, key: Columns): string =>
  `${table} (${Object.entries(key)
    .map(([column, value]) => `${column} = ${typeof value === "number" ? value : show(value)}`)
    .join(", ")})`;

/** The value of a row's version column. */
export function versionOf(row: Columns, column: string): unknown {
  if (column in row) return row[column];
  throw new InvalidArgumentError(
    `the row has no column ${show(column)}: name the one that counts its changes`,
  );
}

export const severalRows = (table: string, key: Columns): InvalidArgumentError =>
  new InvalidArgumentError(
    `several rows are ${describeRow(table, key)}: name a key that one row has`,
  );

function checkColumns(columns: unknown, what: string): [string, unknown][] {
  if (Object.prototype.toString.call(columns) === "[object Object]")
    return Object.entries(columns as object);
  throw new InvalidArgumentError(
    `${what} is ${show(columns)}; it must be an object: { column: value }`,
  );
}

const quote = (name: unknown, what: string): string =>
  `"${checkText(name, what, 1, IDENTIFIER_BYTES).replaceAll('"', '""')}"`;
