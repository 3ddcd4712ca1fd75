import { readFileSync, readlinkSync, statfsSync } from "node:fs";
import { dirname } from "node:path";
import { UnsupportedError } from "../../core/errors.js";
import { countLinks, look } from "./file.js";

/** Linux's numbers of file systems on which several machines, or a machine and its host, share a file. */
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

/** The number of Linux's first time namespace. In another, the monotonic clock may differ from that of other processes. */
const FIRST_TIME_NAMESPACE = "time:[4026531834]";

/** Throws if locks in this file could be granted twice. The file may be missing still. */
export function refuseUnsafeFile(file: string): void {
  for (const type of fileSystemTypes(file)) refuseSharedFileSystem(type, file);
  refuseTimeNamespace();
  refuseSecondPath(file);
}

/** Of the folder and, as it may be mounted by itself, of the file; none where the system does not tell. */
export function fileSystemTypes(file: string): number[] {
  if (process.platform !== "linux") return [];
  const paths = [dirname(file), file].filter((path) => look(path) !== null);
  return paths.map((path) => statfsSync(path).type);
}

export function refuseSharedFileSystem(type: number, file: string): void {
  const name = SHARED_FILE_SYSTEMS[type];
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

/** SQLite's log is found by the path of the file: under another path there is another log, and other locks. */
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

/** Linux only. The fifth field of a line is the mount point, with some characters as octal numbers. */
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
