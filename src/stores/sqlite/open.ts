import { openSqlite, type SqliteDatabase } from "./driver.js";
import { explain, isUnopenable } from "./errors.js";
import { fileAt, makeFile } from "./file.js";
import { type SqliteStore, sqliteStore } from "./index.js";
import { patiently } from "./patience.js";
import { refuseUnsafeFile } from "./refusals.js";

const ERRCODES: Record<string, number> = {
  EROFS: 8,
  ENOSPC: 13,
  ENOENT: 14,
  EACCES: 14,
  EISDIR: 14,
  ENOTDIR: 14,
};

/** About half a second: another user's process gives its new log files to the group within that time. */
const LOG_ATTEMPTS = 50;

/** Opens the store in a file, which is made if it is missing: readable by this user alone. */
export async function openSqliteStore(path: string): Promise<SqliteStore> {
  const file = fileAt(path);
  let db: SqliteDatabase | undefined;
  try {
    // Before anything is opened: SQLite would make a second log beside a second path.
    refuseUnsafeFile(file);
    makeFile(file);
    db = await openSqlite(file);
    const opened = db;
    db.exec("PRAGMA busy_timeout = 0");
    let attempts = 0;
    // Several processes may open a new file together.
    return await patiently(
      () => sqliteStore(opened, { closeDatabase: true }),
      (error) => isUnopenable(error) && ++attempts < LOG_ATTEMPTS,
    );
  } catch (error) {
    db?.close();
    throw explain(fromFileSystem(error), file);
  }
}

/** What Node's file functions say, in the words that SQLite's own errors get. */
function fromFileSystem(error: unknown): unknown {
  const { code } = error as NodeJS.ErrnoException;
  const errcode = ERRCODES[code ?? ""];
  return errcode === undefined ? error : Object.assign(new Error(String(error)), { errcode });
}
