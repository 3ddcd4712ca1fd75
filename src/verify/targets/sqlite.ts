import { chmodSync, linkSync, mkdirSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import type { Random } from "../../core/random.js";
import { openSqlite, type SqliteDatabase } from "../../stores/sqlite/driver.js";
import { type Fault, fault } from "../faults/fault.js";
import { FalseClock } from "../lab/clock.js";
import type { Lab } from "../lab/lab.js";
import type { Member } from "../runner/crew.js";
import { EXCLUSION, type FaultKind, jumpMs, WORKER_KINDS } from "../runner/kinds.js";
import type { Target, Way } from "../runner/target.js";
import type { Connections } from "../traffic/protocol.js";

const SHORT = { min: 0.05, max: 0.8 };
const ONCE = { min: 0.01, max: 0.01 };

/** A file in a folder of the lab. */
export async function sqliteTarget(lab: Lab, isClocked: boolean): Promise<Target> {
  const folder = join(lab.folder, "sqlite");
  mkdirSync(folder);
  // All processes of a machine share its clock.
  const clock = isClocked ? await FalseClock.open(lab, "the machine's clock") : null;
  let file = join(folder, "locks.db");
  let files = 1;
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
      ...WORKER_KINDS.filter(({ name }) => name !== "worker clock jumps"),
      ...(clock === null ? [] : [clockKind(clock)]),
      ...fileKinds(() => file),
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
    commands: async () => null,
    /** A file that was replaced is not used again. */
    async recover() {
      files++;
      file = join(folder, `locks-${files}.db`);
    },
    async [Symbol.asyncDispose]() {},
  };
}

/** Several connections to one file in a process: closing one must not drop the locks of the others. */
function drawConnections(random: Random): readonly Connections[] {
  const which = random.unit();
  if (which < 0.4) return [{ locks: 1 }];
  if (which < 0.7) return [{ locks: 1 }, { locks: 1 }];
  if (which < 0.85) return [{ locks: 2 }];
  return [{ locks: 1, lazy: true }, { locks: 2 }];
}

function fileKinds(file: () => string): readonly FaultKind[] {
  const kind = (
    name: string,
    make: (random: Random) => Fault,
    more: Partial<FaultKind> = {},
  ): FaultKind => ({
    name,
    hits: "files",
    weight: 0.5,
    lasts: SHORT,
    make: (_member, random) => make(random),
    ...more,
  });
  return [
    kind("file locked by another tool", () => heldByAnother(file())),
    kind("log checkpointed by another tool", () => checkpointed(file()), { lasts: ONCE }),
    kind("journal mode changed by another tool", () => journalModeChanged(file()), { lasts: ONCE }),
    {
      name: "worker uses a second hard link",
      hits: "files",
      weight: 0.5,
      lasts: { min: 0.5, max: 2 },
      sparesStore: true,
      make: (member) => hardLinked(file(), member),
    },
    kind("wake folder taken away", () => wakeFolderClosed(file())),
    kind("file moved away and back", () => movedAway(file()), {
      weight: 0.1,
      locksOut: true,
      breaks: EXCLUSION,
      because: "a process that opens the file meanwhile makes a new one, and both grant",
    }),
  ];
}

/** Leases are on the monotonic clock: a wall clock that is set changes nothing but `atLeast`. */
function clockKind(clock: FalseClock): FaultKind {
  return {
    name: "machine clock jumps",
    hits: "server",
    lasts: { min: 0.2, max: 2 },
    make: (_member, random) => {
      const clockByMs = jumpMs(random);
      return { ...clock.jump(clockByMs), clockByMs };
    },
  };
}

function heldByAnother(file: string): Fault {
  let db: SqliteDatabase | undefined;
  return fault(
    "the file is locked by another tool",
    async () => {
      db = await openSqlite(file);
      db.exec("PRAGMA busy_timeout = 2000; BEGIN IMMEDIATE");
    },
    () => {
      db?.close();
      db = undefined;
    },
  );
}

function checkpointed(file: string): Fault {
  return fault("the log is checkpointed by another tool", async () => {
    const db = await openSqlite(file);
    db.exec("PRAGMA busy_timeout = 50; PRAGMA wal_checkpoint(TRUNCATE)");
    db.close();
  });
}

function journalModeChanged(file: string): Fault {
  return fault("another tool changes the journal mode", async () => {
    const db = await openSqlite(file);
    try {
      db.exec("PRAGMA busy_timeout = 0; PRAGMA journal_mode = DELETE");
    } catch {
      // Refused while others have it open, as it should be.
    } finally {
      db.close();
    }
  });
}

let links = 0;

/** Another process opens the file by its second name, which is refused. */
function hardLinked(file: string, member: Member): Fault {
  const link = `${file}-link-${++links}`;
  return fault(
    `${member.client}'s twin uses a second hard link`,
    async () => {
      linkSync(file, link);
      await member.startTwin(`sqlite:${link}`);
    },
    async () => {
      await member.endTwin(`sqlite:${link}`);
      for (const end of ["", "-wal", "-shm"]) rmSync(`${link}${end}`, { force: true });
    },
  );
}

function wakeFolderClosed(file: string): Fault {
  const folder = `${file}-wake`;
  return fault(
    "the wake folder is taken away",
    () => {
      try {
        renameSync(folder, `${folder}-away`);
        chmodSync(`${folder}-away`, 0o700);
      } catch {
        // Nobody has waited yet.
      }
    },
    () => rmSync(`${folder}-away`, { recursive: true, force: true }),
  );
}

function movedAway(file: string): Fault {
  return fault(
    "the file is moved away",
    () => renameSync(file, `${file}-away`),
    () => {
      for (const end of ["", "-wal", "-shm"]) rmSync(`${file}${end}`, { force: true });
      renameSync(`${file}-away`, file);
    },
  );
}
