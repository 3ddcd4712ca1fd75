import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import type { Random } from "../../core/random.js";
import { openSqlite } from "../../stores/sqlite/driver.js";
import { FalseClock } from "../lab/clock.js";
import { Disk } from "../lab/disk.js";
import type { Lab } from "../lab/lab.js";
import { hiddenFromOthers, lackingRight } from "../lab/rights.js";
import { type FaultKind, jumpMs, WORKER_KINDS } from "../runner/kinds.js";
import type { LeftOut, Target } from "../runner/target.js";
import type { Way } from "../runner/way.js";
import type { Connections } from "../traffic/protocol.js";
import { machineMs } from "../traffic/time-line.js";
import { WORKER_PROGRAM } from "../traffic/worker.js";
import { CLOCK_JUMPS, DISK_FULL, diskKinds, fileKinds, GROUP, userKinds } from "./sqlite-faults.js";

const DISK_MB = 64;
const ONLY_ROOT = "only root can act as several users";

/** A file in a folder of the lab, on a small disk of its own where possible. */
export async function sqliteTarget(lab: Lab, isClocked: boolean): Promise<Target> {
  const noDisk = lackingRight("loop mounts");
  const disk = noDisk === null ? await Disk.open(lab, { sizeMb: DISK_MB }) : null;
  const isRoot = process.getuid?.() === 0;
  const noUsers = isRoot
    ? (hiddenFromOthers(process.execPath) ?? hiddenFromOthers(WORKER_PROGRAM))
    : ONLY_ROOT;
  const folder = join(disk?.folder ?? lab.folder, "sqlite");
  mkdirSync(folder);
  // All processes of a machine share its clock.
  const clock = isClocked ? await FalseClock.open(lab, "the machine's clock") : null;
  let files = 0;
  /** The file is shared by the users of a group, as the docs describe. */
  const nextFile = (): string => {
    const next = join(folder, `locks-${++files}.db`);
    if (!isRoot) return next;
    writeFileSync(next, "");
    share(next, 0o660);
    return next;
  };
  if (isRoot) share(folder, 0o2770);
  let file = nextFile();
  const users = userKinds(() => file);
  return {
    name: "sqlite",
    about: "SQLite, one file",
    isOurs: true,
    get url() {
      return `sqlite:${file}`;
    },
    ttlsMs: [900, 1_500, 2_500],
    limits: {},
    kinds: [
      ...WORKER_KINDS.filter(({ needsClock }) => !needsClock),
      clockKind(clock),
      ...fileKinds(() => file),
      ...(disk === null ? [] : diskKinds(disk, () => file)),
      ...(noUsers === null ? users : []),
    ],
    leftOut: [
      ...(noDisk === null ? [] : [{ name: DISK_FULL, because: noDisk }]),
      ...(noUsers === null ? [] : users.map(({ name }): LeftOut => ({ name, because: noUsers }))),
    ],
    drawConnections,
    async openWay(): Promise<Way> {
      const site = clock === null ? {} : { site: clock.site() };
      return { url: `sqlite:${file}`, proxies: [], ...site, close: async () => {} };
    },
    async versions() {
      const db = await openSqlite(":memory:");
      const row = db.prepare("SELECT sqlite_version() AS version").get() as { version: string };
      db.close();
      return { sqlite: row.version };
    },
    /** Rows of claims that have not expired. The next call on a name deletes the others. */
    async leftOf(names) {
      const db = await openSqlite(file);
      try {
        const isLeft = db.prepare(
          "SELECT count(*) AS many FROM holdfast_claims WHERE name = ? AND (expires_ms > ? OR closed_until_ms > ?)",
        );
        const [nowMs, wallMs] = [machineMs(), Date.now()];
        return names.filter(
          (name) => (isLeft.get(name, nowMs, wallMs) as { many: number }).many > 0,
        );
      } finally {
        db.close();
      }
    },
    commands: async () => null,
    /** A file that was replaced is not used again. */
    async recover() {
      // Emptied first, because the driver keeps a closed file open until it is collected, and the
      // disk is small.
      for (const end of ["", "-wal"])
        if (existsSync(`${file}${end}`)) truncateSync(`${file}${end}`);
      for (const end of ["", "-wal", "-shm", "-wake"])
        rmSync(`${file}${end}`, { recursive: true, force: true });
      file = nextFile();
    },
    async [Symbol.asyncDispose]() {
      await disk?.close();
    },
  };
}

function share(path: string, mode: number): void {
  chownSync(path, 0, GROUP);
  chmodSync(path, mode);
}

/** Several connections to one file in a process: closing one must not drop the locks of the others. */
function drawConnections(random: Random): readonly Connections[] {
  const which = random.unit();
  if (which < 0.4) return [{ locks: 1 }];
  if (which < 0.7) return [{ locks: 1 }, { locks: 1 }];
  if (which < 0.85) return [{ locks: 2 }];
  return [{ locks: 1, lazy: true }, { locks: 2 }];
}

/** Leases use the monotonic clock: setting the wall clock affects only `atLeast`. */
function clockKind(clock: FalseClock | null): FaultKind {
  return {
    name: CLOCK_JUMPS,
    hits: "server",
    needsClock: true,
    lasts: { min: 0.2, max: 2 },
    make: (_member, random) => {
      const clockByMs = jumpMs(random);
      return clock && { ...clock.jump(clockByMs), clockByMs };
    },
  };
}
