import { closeSync, openSync, readlinkSync, statfsSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { InvalidArgumentError, UnsupportedError } from "../../core/errors.js";
import { openSqlite, type SqliteDatabase } from "./driver.js";
import { explain } from "./errors.js";
import { type SqliteStore, sqliteStore } from "./index.js";
import { patiently } from "./patience.js";

/** Linux's numbers of file systems on which several machines, or a machine and its host, share a file. */
const SHARED_FILE_SYSTEMS: Record<number, string> = {
  26985: "NFS",
  20859: "SMB",
  4283649346: "CIFS",
  4266872130: "SMB",
  16914839: "9P (a share of the host)",
  1702057286: "FUSE (sshfs, virtiofs, a share of the host)",
  12805120: "Ceph",
  1397113167: "AFS",
  198183888: "Lustre",
  1196443219: "GPFS",
  1952539503: "OCFS2",
};

const ERRCODES: Record<string, number> = {
  EROFS: 8,
  ENOSPC: 13,
  ENOENT: 14,
  EACCES: 14,
  EISDIR: 14,
  ENOTDIR: 14,
};

/** The number of Linux's first time namespace. In another, the monotonic clock may differ from that of other processes. */
const FIRST_TIME_NAMESPACE = "time:[4026531834]";

/** Opens the store in a file, which is made if it is missing: readable by this user alone. */
export async function openSqliteStore(path: string): Promise<SqliteStore> {
  const file = fileAt(path);
  let db: SqliteDatabase | undefined;
  try {
    refuseSharedFileSystem(fileSystemType(dirname(file)), file);
    refuseTimeNamespace();
    closeSync(openSync(file, "a", 0o600));
    db = await openSqlite(file);
    const opened = db;
    db.exec("PRAGMA busy_timeout = 0");
    // Several processes may open a new file together.
    return await patiently(() => sqliteStore(opened, { closeDatabase: true }));
  } catch (error) {
    db?.close();
    throw explain(fromFileSystem(error), file);
  }
}

export function fileAt(path: string): string {
  if (path !== "" && path !== ":memory:") return resolve(path);
  throw new InvalidArgumentError(
    "sqlite: needs a file's path, as in sqlite:./locks.db or sqlite:/var/lib/app/locks.db",
  );
}

export function refuseSharedFileSystem(type: number | null, file: string): void {
  const name = type === null ? undefined : SHARED_FILE_SYSTEMS[type];
  if (name === undefined) return;
  throw new UnsupportedError(
    `${file} lies on ${name}: SQLite's log and locks are not safe there, so two machines could ` +
      "hold the same name. Use a local disk, or a store that works over a network",
  );
}

export function refuseTimeNamespace(): void {
  let namespace = FIRST_TIME_NAMESPACE;
  try {
    namespace = readlinkSync("/proc/self/ns/time");
  } catch {
    // Not Linux, or too old to have them.
  }
  if (namespace === FIRST_TIME_NAMESPACE) return;
  throw new UnsupportedError(
    "this process runs in a time namespace of its own: its clock is not that of other processes, by which leases in an SQLite file expire",
  );
}

export function fileSystemType(folder: string): number | null {
  return process.platform === "linux" ? statfsSync(folder).type : null;
}

/** What Node's file functions say, in the words that SQLite's own errors get. */
function fromFileSystem(error: unknown): unknown {
  const { code } = error as NodeJS.ErrnoException;
  const errcode = ERRCODES[code ?? ""];
  return errcode === undefined ? error : Object.assign(new Error(String(error)), { errcode });
}
