import { setTimeout as pause } from "node:timers/promises";
import { openSqlite, type SqliteDatabase } from "./driver.js";
import { isCantOpen, isReadOnly, toStoreError } from "./errors.js";
import { fileAt, makeFile } from "./file.js";
import { type SqliteStore, sqliteStore } from "./index.js";
import { retryWhileBusy } from "./retry.js";
import { refuseUnsafeFile } from "./unsafe-file.js";

/** About half a second: another user's process gives new log files to the group within that time. */
const LOG_ATTEMPTS = 50;
/** The same time: each new connection costs descriptors. */
const CONNECTIONS = 8;
const CONNECTION_PAUSE_MS = 60;

/** Opens the store in a file. A missing file is made, readable by this user alone. */
export async function openSqliteStore(path: string): Promise<SqliteStore> {
  const file = fileAt(path);
  let db: SqliteDatabase | undefined;
  try {
    // Checked before SQLite opens the file, because SQLite would make a second log beside a second path.
    refuseUnsafeFile(file);
    makeFile(file);
    let attempts = 0;
    for (let connections = 1; ; connections++) {
      const opened = await openSqlite(file);
      db = opened;
      db.exec("PRAGMA busy_timeout = 0");
      try {
        // Several processes may open a new file together.
        return await retryWhileBusy(
          () => sqliteStore(opened, { closeDatabase: true }),
          (error) => isCantOpen(error) && ++attempts < LOG_ATTEMPTS,
        );
      } catch (error) {
        // A log that was not the group's yet is open for reading alone, as long as the connection lives.
        if (!isReadOnly(error) || connections === CONNECTIONS) throw error;
        db = undefined;
        opened.close();
        await pause(CONNECTION_PAUSE_MS);
      }
    }
  } catch (error) {
    db?.close();
    throw toStoreError(error, file);
  }
}
