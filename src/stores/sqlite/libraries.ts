import { statSync } from "node:fs";
import { UnsupportedError } from "../../core/errors.js";
import type { SqliteDatabase } from "./driver.js";

interface Use {
  readonly db: WeakRef<SqliteDatabase>;
  readonly library: string;
}

/** What this thread has open, by device and inode. */
const USES = new Map<string, Use[]>();

/**
 * Throws if this thread uses the file through another copy of the SQLite library (another driver).
 * Copies do not know of each other, and each drops the other's locks when it closes its descriptor.
 */
export function refuseOtherLibrary(db: SqliteDatabase, file: string): void {
  for (const [key, uses] of USES) {
    if (uses.every((use) => use.db.deref() === undefined)) USES.delete(key);
  }
  const { dev, ino } = statSync(file);
  const key = `${dev}:${ino}`;
  const uses = (USES.get(key) ?? []).filter(
    (use) => use.db.deref() !== db && isOpen(use.db.deref()),
  );
  const library = libraryOf(db);
  if (uses.some((use) => use.library !== library)) {
    throw new UnsupportedError(
      `this process already uses the SQLite file ${file} through another copy of the SQLite library: ` +
        "the two would drop each other's locks on the file. Use one driver (such as node:sqlite) for " +
        "all connections to it",
    );
  }
  USES.set(key, [...uses, { db: new WeakRef(db), library }]);
}

/** The same for all connections of one copy. Copies of the same build can't be told apart. */
function libraryOf(db: SqliteDatabase): string {
  const options = db.prepare("PRAGMA compile_options").all();
  return JSON.stringify([db.prepare("SELECT sqlite_source_id() AS id").get(), options]);
}

function isOpen(db: SqliteDatabase | undefined): boolean {
  try {
    return db?.prepare("SELECT 1").get() !== undefined;
  } catch {
    return false;
  }
}
