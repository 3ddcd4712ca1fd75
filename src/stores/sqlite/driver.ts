import { InvalidArgumentError, UnsupportedError } from "../../core/errors.js";
import { show } from "../../core/validate.js";

type SqliteValue = null | number | bigint | string;

export interface SqliteStatement {
  run(...params: SqliteValue[]): unknown;
  get(...params: SqliteValue[]): unknown;
  all(...params: SqliteValue[]): unknown[];
}

/** What is needed of a connection: `DatabaseSync` of `node:sqlite`, of `@photostructure/sqlite`, or the like. */
export interface SqliteDatabase {
  exec(sql: string): unknown;
  prepare(sql: string): SqliteStatement;
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

/** The same API twice: built into newer versions of Node, or as a package with its own binary. */
const DRIVERS = ["node:sqlite", "@photostructure/sqlite"];

/** Opens a connection of its own to a file, with whichever driver there is. */
export async function openSqlite(path: string): Promise<SqliteDatabase> {
  if (typeof path !== "string") {
    throw new InvalidArgumentError(`openSqlite needs the path of a file, and got ${show(path)}`);
  }
  const Database = await loadDriver();
  return new Database(path);
}

async function loadDriver(): Promise<DatabaseClass> {
  const errors: unknown[] = [];
  for (const name of DRIVERS) {
    try {
      return (await quietly(() => import(name))).DatabaseSync;
    } catch (error) {
      errors.push(error);
    }
  }
  throw new UnsupportedError(
    `sqlite: needs Node 22.13 or later, or a driver of its own: on this Node ${process.version}, run npm install @photostructure/sqlite`,
    new AggregateError(errors),
  );
}

/** Node 22 warns on stderr that its SQLite is experimental; a library prints nothing. */
async function quietly(
  load: () => Promise<{ DatabaseSync: DatabaseClass }>,
): Promise<{ DatabaseSync: DatabaseClass }> {
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
