import { readFileSync, readlinkSync, statfsSync, statSync } from "node:fs";
import { dirname } from "node:path";
import { UnsupportedError } from "../../core/errors.js";
import type { SqliteDatabase } from "./driver.js";
import { countLinks, statOrNull } from "./file.js";

/* Each function throws where two processes, or two connections of one, could hold the same name. */

/** File systems on which several machines, or a machine and its host, share a file; by Linux's numbers. */
const SHARED_FILE_SYSTEMS: Record<number, string> = {
  26985: "NFS",
  20859: "SMB",
  4283649346: "CIFS",
  4266872130: "SMB",
  16914839: "9P (a share of the host)",
  1702057286: "FUSE (sshfs, virtiofs, a share of the host)",
  2020557398: "vboxsf (a share of the host)",
  3133910204: "vmhgfs (a share of the host)",
  2088527475: "prl_fs (a share of the host)",
  12805120: "Ceph",
  1397113167: "AFS",
  1799439955: "AFS",
  1937076805: "Coda",
  198183888: "Lustre",
  1196443219: "GPFS",
  1952539503: "OCFS2",
  18225520: "GFS2",
  428016422: "BeeGFS",
  537068840: "OrangeFS",
};

/** Linux's first time namespace. In any other, the monotonic clock may differ from that of other processes. */
const FIRST_TIME_NAMESPACE = "time:[4026531834]";

/** Before the file is opened; it may be missing. */
export function refuseUnsafeFile(file: string): void {
  for (const type of fileSystemTypes(file)) refuseSharedFileSystem(type, file);
  refuseTimeNamespace();
  refuseSecondPath(file);
}

/**
 * The file system types of the folder and of the file, which may be mounted by itself. Empty on
 * systems that do not report them.
 */
export function fileSystemTypes(file: string): number[] {
  if (process.platform !== "linux") return [];
  const paths = [dirname(file), file].filter((path) => statOrNull(path) !== null);
  return paths.map((path) => statfsSync(path).type);
}

/** The name of a file system that several machines share; undefined for any other. */
export const sharedFileSystem = (type: number): string | undefined => SHARED_FILE_SYSTEMS[type];

export function refuseSharedFileSystem(type: number, file: string): void {
  const name = sharedFileSystem(type);
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
    // Not Linux, or a Linux without time namespaces.
  }
  if (namespace === FIRST_TIME_NAMESPACE) return;
  throw new UnsupportedError(
    "this process runs in a time namespace of its own: leases in an SQLite file expire by the machine's " +
      "clock, and this process sees another one. Run it in the time namespace of the host",
  );
}

/** SQLite finds the log by the path of the file: under another path it has another log and other locks. */
export function refuseSecondPath(file: string): void {
  const links = countLinks(file);
  if (links > 1) {
    throw new UnsupportedError(
      `${file} has ${links} names (hard links): SQLite has a log of its own under each, so two ` +
        "processes could hold the same name. Remove the other links (find them with find -samefile), " +
        "or make a symbolic link instead",
    );
  }
  if (isMountPoint(file)) {
    throw new UnsupportedError(
      `${file} is a mount point: SQLite's log lies beside it, outside of the mount, so processes ` +
        "here and there could hold the same name. Mount the folder of the file instead of the file",
    );
  }
}

/** Known on Linux only. The fifth field of a line is the mount point, with some characters in octal. */
function isMountPoint(file: string): boolean {
  let mounts: string;
  try {
    mounts = readFileSync("/proc/self/mountinfo", "utf8");
  } catch {
    return false;
  }
  const decode = (field: string): string =>
    field.replace(/\\([0-7]{3})/g, (_, octal) => String.fromCharCode(Number.parseInt(octal, 8)));
  return mounts.split("\n").some((line) => decode(line.split(" ")[4] ?? "") === file);
}

interface Use {
  readonly db: WeakRef<SqliteDatabase>;
  readonly library: string;
}

/** The connections that this thread has given to stores, by device and inode of the file. */
const USES = new Map<string, Use[]>();

/**
 * Two copies of the SQLite library in one process, as two drivers bring them, do not know of each other:
 * one that closes its descriptor of the file drops the other's locks. Noticed within this thread.
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

/** The same for all connections of one copy, and for copies of the same build. */
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
