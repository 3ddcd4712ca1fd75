import { InvalidArgumentError } from "../../core/errors.js";
import { show } from "../../core/validate.js";
import { importInstalled } from "../shared/client-library.js";

export type SqliteValue = null | number | bigint | string;

/** A prepared statement. */
export interface SqliteStatement {
  /** Executes it and ignores its rows. */
  run(...params: SqliteValue[]): unknown;
  /** The first row as an object; undefined if there is none. */
  get(...params: SqliteValue[]): unknown;
  /** All rows as objects. */
  all(...params: SqliteValue[]): unknown[];
}

/** The methods of a connection that the store uses: `DatabaseSync` of `node:sqlite`, of `@photostructure/sqlite`, or the like. */
export interface SqliteDatabase {
  /** Executes statements without parameters. */
  exec(sql: string): unknown;
  /** Compiles one statement. */
  prepare(sql: string): SqliteStatement;
  /** Closes the connection. */
  close(): unknown;
}

export const isDatabase = (value: unknown): value is SqliteDatabase =>
  typeof (value as SqliteDatabase | null | undefined)?.exec === "function" &&
  typeof (value as SqliteDatabase).prepare === "function";

export function checkDatabase(value: unknown, of: string): SqliteDatabase {
  if (isDatabase(value)) return value;
  const advice = typeof value === "string" ? `, such as await openSqlite(path)` : "";
  throw new InvalidArgumentError(
    `${of} needs an open connection to a database${advice}, and got ${show(value)}`,
  );
}

type DatabaseClass = new (path: string) => SqliteDatabase;

/** Two drivers with the same API: one is part of newer versions of Node, the other a package with its own binary. */
const DRIVERS = ["node:sqlite", "@photostructure/sqlite"];

/**
 * Opens a new connection to a file with the first driver that is there: `node:sqlite`, then
 * `@photostructure/sqlite`. Throws `UnsupportedError` if there is none, and the driver's error if the
 * file can't be opened.
 */
export async function openSqlite(path: string): Promise<SqliteDatabase> {
  if (typeof path !== "string") {
    throw new InvalidArgumentError(`openSqlite needs the path of a file, and got ${show(path)}`);
  }
  const Database = await loadDriver();
  return new Database(path);
}

/** Throws `UnsupportedError` if no driver is there. */
export async function loadDriver(): Promise<DatabaseClass> {
  const { module } = await withoutWarning(() =>
    importInstalled(
      DRIVERS,
      `sqlite: needs Node 22.13 or later, or a driver, and this is Node ${process.version}: run npm install @photostructure/sqlite`,
    ),
  );
  return (module as { DatabaseSync: DatabaseClass }).DatabaseSync;
}

/** Node 22 warns on stderr that its SQLite is experimental; a library prints nothing. */
async function withoutWarning<T>(load: () => Promise<T>): Promise<T> {
  const { emitWarning } = process;
  process.emitWarning = ((warning: string | Error, ...rest: never[]) => {
    if (!/^SQLite is an experimental feature/.test(String(warning))) emitWarning(warning, ...rest);
  }) as typeof emitWarning;
  try {
    return await load();
  } finally {
    process.emitWarning = emitWarning;
  }
}
