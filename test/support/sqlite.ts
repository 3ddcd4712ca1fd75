import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { onTestFinished } from "vitest";
import { connect, type Locks } from "../../src/index.js";
import { openSqlite, type SqliteDatabase } from "../../src/stores/sqlite/index.js";

export function freshFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-test-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

export const freshFile = (): string => join(freshFolder(), "locks.db");

export async function open(file: string, options = {}): Promise<Locks> {
  const locks = await connect(`sqlite:${file}`, options);
  onTestFinished(() => locks.close());
  return locks;
}

export async function rawConnection(file: string): Promise<SqliteDatabase> {
  const db = await openSqlite(file);
  onTestFinished(() => {
    try {
      db.close();
    } catch {
      // The test has closed it.
    }
  });
  return db;
}
