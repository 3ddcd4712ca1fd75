import { UnsupportedError } from "../../core/errors.js";
import type { SqliteDatabase } from "./driver.js";

/** Raised when an older Holdfast could misread the tables. */
export const FORMAT = 2;

/**
 * Grants and tickets in one table, so that a handover is an update. `expires_ms` is on the machine's
 * monotonic clock, which all its processes share; `closed_until_ms` on the wall clock, to outlive a
 * restart. `grants` counts all grants: if it falls, an older copy was restored over the file.
 * The primary key keeps the claims on one name together, in their order. `wake` is the socket of the waiter's process.
 */
const TABLES = `
CREATE TABLE IF NOT EXISTS holdfast_meta (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  format INTEGER NOT NULL,
  last_token INTEGER NOT NULL,
  grants INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS holdfast_claims (
  name TEXT NOT NULL,
  place INTEGER NOT NULL,
  grant_id TEXT NOT NULL,
  permits INTEGER NOT NULL,
  max_permits INTEGER NOT NULL,
  at_least_ms REAL NOT NULL,
  holder TEXT NOT NULL,
  since_ms REAL NOT NULL,
  seq INTEGER NOT NULL,
  ttl_ms REAL NOT NULL,
  expires_ms REAL NOT NULL,
  token INTEGER NOT NULL,
  floor INTEGER NOT NULL,
  closed_until_ms REAL NOT NULL,
  ended TEXT NOT NULL,
  ended_by TEXT NOT NULL,
  ended_why TEXT NOT NULL,
  wake TEXT NOT NULL,
  PRIMARY KEY (name, place)
) WITHOUT ROWID;
INSERT OR IGNORE INTO holdfast_meta VALUES (1, ${FORMAT}, 0, 0);
`;

/**
 * Records and meters (see records.ts). Times are in µs on the wall clock. Earlier versions with the same format do
 * not have these tables, and are not disturbed by them.
 */
const RECORD_TABLES = `
CREATE TABLE holdfast_records (
  key TEXT PRIMARY KEY NOT NULL,
  value TEXT NOT NULL,
  version TEXT NOT NULL,
  token TEXT NOT NULL,
  keep_us INTEGER NOT NULL,
  expires_us INTEGER NOT NULL
);
CREATE INDEX holdfast_records_by_expiry ON holdfast_records (expires_us);
CREATE TABLE holdfast_meters (
  key TEXT PRIMARY KEY NOT NULL,
  since_us INTEGER NOT NULL,
  used_units INTEGER NOT NULL,
  full_at_us INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX holdfast_meters_by_expiry ON holdfast_meters (full_at_us);
`;

/** Earlier versions with the same format do not have this column, and are not disturbed by it. */
const ADD_GRANTS = "ALTER TABLE holdfast_meta ADD COLUMN grants INTEGER NOT NULL DEFAULT 0";

/** Inside a write transaction: makes the tables if they are missing, and refuses a newer format. */
export function prepareTables(db: SqliteDatabase, file: string): void {
  if (!hasTables(db)) db.exec(TABLES);
  refuseOtherFormat(db, file);
  if (!hasColumn(db, "grants")) db.exec(ADD_GRANTS);
  if (!hasTable(db, "holdfast_records")) db.exec(RECORD_TABLES);
}

function hasColumn(db: SqliteDatabase, name: string): boolean {
  const sql = "SELECT 1 FROM pragma_table_info('holdfast_meta') WHERE name = ?";
  return db.prepare(sql).get(name) !== undefined;
}

/** Whether the file has the tables of locks. */
export const hasTables = (db: SqliteDatabase): boolean => hasTable(db, "holdfast_meta");

function hasTable(db: SqliteDatabase, name: string): boolean {
  const sql = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?";
  return db.prepare(sql).get(name) !== undefined;
}

export function refuseOtherFormat(db: SqliteDatabase, file: string): void {
  const row = db.prepare("SELECT format FROM holdfast_meta").get();
  if (row === undefined) {
    throw new UnsupportedError(
      `the SQLite file ${file} has lost the row of its table holdfast_meta, with the last token: ` +
        "stop all processes that use the file, then restore it or use another",
    );
  }
  const { format } = row as { format: number };
  if (format === FORMAT) return;
  throw new UnsupportedError(
    `the SQLite file ${file} has format ${format}, and this version of Holdfast knows ${FORMAT}: ` +
      "use the version that wrote it, or another file",
  );
}
