import type { SqliteDatabase } from "./driver.js";

/** Runs the step in a write transaction of its own. If the step or the commit fails, nothing of it is left. */
export function inTransaction(db: SqliteDatabase, step: () => unknown): void {
  // BEGIN is outside of the try: a transaction that the caller has left open is not ours to roll back.
  db.exec("BEGIN IMMEDIATE");
  try {
    step();
    db.exec("COMMIT");
  } catch (error) {
    rollBack(db);
    throw error;
  }
}

export function rollBack(db: SqliteDatabase): void {
  try {
    db.exec("ROLLBACK");
  } catch {
    // SQLite has rolled back by itself.
  }
}
