import { chmodSync, linkSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import type { Random } from "../../core/random.js";
import { openSqlite, type SqliteDatabase } from "../../stores/sqlite/driver.js";
import { type Fault, fault, together } from "../fault.js";
import type { Disk } from "../lab/disk.js";
import { missing } from "../lab/requirements.js";
import { runTool } from "../lab/run.js";
import type { Member } from "../runner/crew.js";
import { EXCLUSION, type FaultKind } from "../runner/kinds.js";

/** A new file draws its tokens from the wall clock: if that was set back, they would fall. */
export const CLOCK_JUMPS = "machine clock jumps";
export const DISK_FULL = "disk full";

/** The group whose members share the file. */
export const GROUP = 20_100;
/** These users need no entry in passwd. */
const [MEMBER, STRANGER] = [20_001, 20_002];

const SHORT = { min: 0.05, max: 0.8 };
const LONG = { min: 0.5, max: 2 };
const ONCE = { min: 0.01, max: 0.01 };

export function fileKinds(file: () => string): readonly FaultKind[] {
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
      excludes: [CLOCK_JUMPS],
    }),
    kind("file replaced", (random) => replaced(file(), random), {
      weight: 0.1,
      lasts: ONCE,
      locksOut: true,
      breaks: EXCLUSION,
      because:
        "processes that have the old file open go on with it until their next grant or renewal, beside those on the new one",
      excludes: [CLOCK_JUMPS],
    }),
  ];
}

/** A full disk refuses grants and renewals; existing grants stay. */
export function diskKinds(disk: Disk, file: () => string): readonly FaultKind[] {
  return [
    {
      name: DISK_FULL,
      hits: "files",
      lasts: LONG,
      // SQLite overwrites an existing log from its start. Without the log, it has to make a new
      // one, which needs space.
      make: () =>
        disk.full(() =>
          checkpointed(file())
            .inject()
            .catch(() => {}),
        ),
    },
  ];
}

/** Another process of a worker, as a user inside or outside the file's group. */
export function userKinds(file: () => string): readonly FaultKind[] {
  const kind = (name: string, make: (member: Member) => Fault): FaultKind => ({
    name,
    hits: "files",
    weight: 0.5,
    lasts: LONG,
    sparesStore: true,
    make,
  });
  return [
    kind("worker of another user", (member) => usedBy(file(), member, { uid: MEMBER, gid: GROUP })),
    kind("worker of a user without rights", (member) => usedBy(file(), member, { uid: STRANGER })),
    kind("worker of a user without rights on the wake folder", (member) =>
      together(wakeFolderRefused(file()), usedBy(file(), member, { uid: MEMBER, gid: GROUP })),
    ),
  ];
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
  return fault("the log is checkpointed by another tool", () =>
    runInAnotherTool(file, "PRAGMA busy_timeout = 50; PRAGMA wal_checkpoint(TRUNCATE)"),
  );
}

function journalModeChanged(file: string): Fault {
  return fault("another tool changes the journal mode", () =>
    runInAnotherTool(file, "PRAGMA busy_timeout = 0; PRAGMA journal_mode = DELETE").catch(() => {
      // Refused while others have the file open, as it should be.
    }),
  );
}

/**
 * The shell of SQLite has a library of its own. The library of the driver may be newer: since 3.51 it
 * leaves the log where it is if it finds that another process has lost its locks.
 */
async function runInAnotherTool(file: string, sql: string): Promise<void> {
  if (missing(["sqlite"]) === null) {
    await runTool(["sqlite3", "-batch", file], `${sql};`);
    return;
  }
  const db = await openSqlite(file);
  try {
    db.exec(sql);
  } finally {
    db.close();
  }
}

let links = 0;

/** Another process opens the file by its second name, which Holdfast refuses. */
function hardLinked(file: string, member: Member): Fault {
  const link = `${file}-link-${++links}`;
  let end = async (): Promise<void> => {};
  return fault(
    `${member.client}'s twin uses a second hard link`,
    async () => {
      linkSync(file, link);
      end = await member.startTwin({ url: `sqlite:${link}` });
    },
    async () => {
      await end();
      for (const suffix of ["", "-wal", "-shm"]) rmSync(`${link}${suffix}`, { force: true });
    },
  );
}

function usedBy(
  file: string,
  member: Member,
  user: { readonly uid: number; readonly gid?: number },
): Fault {
  let end = async (): Promise<void> => {};
  return fault(
    `${member.client}'s twin runs as user ${user.uid}`,
    async () => {
      end = await member.startTwin({ url: `sqlite:${file}`, ...user });
    },
    () => end(),
  );
}

function wakeFolderRefused(file: string): Fault {
  const folder = `${file}-wake`;
  let mode: number | null = null;
  return fault(
    "only root may use the wake folder",
    () => {
      mode = statSync(folder, { throwIfNoEntry: false })?.mode ?? null;
      if (mode !== null) chmodIfThere(folder, 0o700);
    },
    () => {
      if (mode !== null) chmodIfThere(folder, mode & 0o7777);
    },
  );
}

/** The last process that waited there removes the folder. */
function chmodIfThere(folder: string, mode: number): void {
  try {
    chmodSync(folder, mode);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
  }
}

/** Replaces the file, as a backup that is restored under running processes does. */
function replaced(file: string, random: Random): Fault {
  const isCopy = random.unit() < 0.5;
  return fault(`the file is replaced by ${isCopy ? "a copy" : "an empty one"}`, async () => {
    const other = `${file}-other`;
    // Copied by another process: a process that uses the file would drop its locks by closing the
    // copy's source.
    if (isCopy) await runTool(["cp", file, other]);
    else writeFileSync(other, "");
    renameSync(other, file);
  });
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
