import { accessSync, constants, type Stats, statfsSync } from "node:fs";
import { dirname } from "node:path";
import { reasonOf } from "../../core/cause.js";
import {
  check,
  danger,
  type Finding,
  note,
  ok,
  type Trial,
  unknown,
} from "../../doctor/finding.js";
import { megabytes } from "../../doctor/measures.js";
import type { StoreUrl } from "../url.js";
import { loadDriver, openSqlite } from "./driver.js";
import { toStoreError } from "./errors.js";
import {
  describeRights,
  fileAt,
  findUnusableLogFile,
  GROUP_WRITES,
  LOG_SUFFIXES,
  OTHERS_WRITE,
  SET_GROUP,
  statOrNull,
} from "./file.js";
import { openSqliteStore } from "./open.js";
import { retryWhileBusy } from "./retry.js";
import { hasTables, refuseOtherFormat } from "./schema.js";
import {
  fileSystemTypes,
  refuseSecondPath,
  refuseSharedFileSystem,
  refuseTimeNamespace,
} from "./unsafe-file.js";
import { WakeFolder, wakeFolderOf } from "./wake-folder.js";

const LITTLE_SPACE = 16 * 2 ** 20;
const MOST_NAMES = 10_000;

/** A path and what `stat` says of it. */
interface Place {
  readonly path: string;
  readonly stats: Stats;
}

/** Reports what endangers locks in a file. Creates nothing. */
export async function examineSqlite({ path }: StoreUrl, trial: Trial): Promise<readonly Finding[]> {
  // Without one, no process can lock anything here, whatever is found about the file.
  await loadDriver();
  const file = fileAt(path);
  const folder = dirname(file);
  const folderStats = statOrNull(folder);
  if (folderStats === null || !folderStats.isDirectory()) {
    return [
      danger(
        "file",
        `there is no folder ${folder}, so the file can't be created: nothing can be locked`,
        "Make the folder, with rights only for the users that are to share the locks.",
      ),
    ];
  }
  const stats = statOrNull(file);
  const secondPath = checkSecondPath(file);
  return [
    ...(await check("file system", () => checkFileSystem(file))),
    ...secondPath,
    checkClock(),
    ...(await check("access", () =>
      checkAccess({ path: folder, stats: folderStats }, file, stats),
    )),
    ...checkWakeFolder(file),
    ...(await check("space", () => checkSpace(folder))),
    // If it were opened under a second path, the file would get a second log.
    ...(stats === null ? [MISSING] : secondPath.length > 0 ? [] : await checkContents(file, trial)),
  ];
}

const MISSING = note(
  "file",
  "it does not exist yet; the first process that locks a name creates it, for its own user alone",
);

function checkFileSystem(file: string): Finding {
  const types = fileSystemTypes(file);
  for (const type of types) {
    const refusal = refusalOf(() => refuseSharedFileSystem(type, file));
    if (refusal !== null) return danger("file system", refusal);
  }
  if (types.length > 0) return ok("file system", "not one that several machines share");
  return unknown(
    "file system",
    "whether several machines share it, which makes SQLite's locks unsafe: only Linux tells",
  );
}

function checkSecondPath(file: string): Finding[] {
  const refusal = refusalOf(() => refuseSecondPath(file));
  return refusal === null ? [] : [danger("path", refusal)];
}

function checkClock(): Finding {
  const refusal = refusalOf(refuseTimeNamespace);
  if (refusal !== null) return danger("clock", refusal);
  return ok("clock", "the machine's monotonic clock, which nobody can set");
}

function checkAccess(folder: Place, file: string, stats: Stats | null): Finding[] {
  const findings: Finding[] = [];
  const { R_OK, W_OK, X_OK } = constants;
  const refusal =
    refusalOf(() => accessSync(folder.path, W_OK | X_OK)) ??
    (stats === null ? null : refusalOf(() => accessSync(file, R_OK | W_OK)));
  if (refusal !== null) {
    findings.push(
      danger(
        "access",
        `this user can't lock anything: the file and its folder must be writable (${refusal})`,
        "Give the users that share the locks a group that may write both.",
      ),
    );
  }
  const log = findUnusableLogFile(file);
  if (log !== null) findings.push(danger("access", log.what, `${log.advice}.`));
  // Windows has no such rights.
  if (process.platform === "win32") return findings;
  if (allows(folder.stats, OTHERS_WRITE) && !allows(folder.stats, STICKY)) {
    findings.push(
      danger(
        "access",
        "every user of this machine can delete or replace the file: then a process with the old file and one with the new file hold the same name",
        `chmod o-w ${folder.path}`,
      ),
    );
  }
  if (stats !== null && allows(stats, OTHERS_WRITE)) {
    findings.push(
      danger(
        "access",
        "every user of this machine can write the file: anyone can take, free and delete locks",
        `chmod o-w ${file}`,
      ),
    );
  } else if (stats !== null && allows(stats, GROUP_WRITES)) {
    findings.push(...checkGroup(folder, { path: file, stats }));
  }
  if (findings.length > 0) return findings;
  const owner = stats === null ? "" : ` (${describeRights(stats)})`;
  return [ok("access", `this user can write it, and not every user can${owner}`)];
}

const GROUP_CREATES = 0o030;
const STICKY = 0o1000;

const allows = ({ mode }: Stats, bits: number): boolean => (mode & bits) === bits;

/** For a file that its group can write: whether the group can use SQLite's log beside it, too. */
function checkGroup(folder: Place, file: Place): Finding[] {
  const findings: Finding[] = [];
  const { gid, mode } = file.stats;
  const advice = `chgrp ${gid} ${folder.path}; chmod 2770 ${folder.path}`;
  if (folder.stats.gid !== gid || !allows(folder.stats, GROUP_CREATES)) {
    findings.push(
      danger(
        "access",
        `group ${gid} can write the file, but can't create SQLite's log in the folder (${describeRights(folder.stats)})`,
        advice,
      ),
    );
  } else if (!allows(folder.stats, SET_GROUP)) {
    findings.push(
      note(
        "access",
        "a log that another program creates in the folder gets the primary group of its user, and other users can't open it; Holdfast gives its own log the group of the file",
        advice,
      ),
    );
  }
  for (const suffix of LOG_SUFFIXES) {
    const path = `${file.path}${suffix}`;
    const log = statOrNull(path);
    if (log === null || (log.gid === gid && allows(log, mode & 0o660))) continue;
    findings.push(
      danger(
        "access",
        `${path} (${describeRights(log)}) has other rights than the file (${describeRights(file.stats)}): some users that may write the file can't lock anything`,
        "Stop all processes that use the file once: the last one removes its log.",
      ),
    );
  }
  return findings;
}

/** Finds a wake folder that Holdfast refuses to use. */
function checkWakeFolder(file: string): Finding[] {
  const folder = wakeFolderOf(file);
  const refusal = statOrNull(folder) && refusalOf(() => WakeFolder.open(file).close());
  if (refusal === null) return [];
  return [
    note(
      "wake folder",
      `${folder} is not used, so waiting processes poll every 50 ms: ${refusal}`,
      "Remove it while nobody waits; Holdfast creates another.",
    ),
  ];
}

function checkSpace(folder: string): Finding {
  const { bavail, bsize } = statfsSync(folder);
  const what = `${megabytes(bavail * bsize)} are free`;
  if (bavail * bsize >= LITTLE_SPACE) return ok("space", what);
  return danger(
    "space",
    `${what}: when the disk is full, grants and renewals fail, and leases are lost`,
    "Make room.",
  );
}

/** For a file that exists. */
async function checkContents(file: string, trial: Trial): Promise<Finding[]> {
  try {
    const { isOurs, journal } = await readFile(file);
    if (!isOurs) {
      const what =
        "an SQLite file without Holdfast's tables; the first process that locks a name adds them";
      return [journal, note("file", what)];
    }
    const store = await openSqliteStore(file);
    const listed = await store.list("", MOST_NAMES);
    // The list has names with nothing but the record of a forced release, too.
    const names = listed.filter(({ holders, waiting }) => holders.length > 0 || waiting > 0).length;
    const more = listed.length === MOST_NAMES ? " or more" : "";
    return [
      journal,
      ok("file", `undamaged, and of this version's format; names in use: ${names}${more}`),
      await trial(store),
    ];
  } catch (error) {
    return [danger("file", toStoreError(error, file).message)];
  }
}

/** Throws if the file is damaged or has another format. */
async function readFile(file: string): Promise<{ isOurs: boolean; journal: Finding }> {
  const db = await openSqlite(file);
  try {
    db.exec("PRAGMA busy_timeout = 0");
    const isOurs = await retryWhileBusy(() => {
      const [{ quick_check: health }] = db.prepare("PRAGMA quick_check(1)").all() as [
        { quick_check: string },
      ];
      if (health !== "ok") throw new Error(`it is damaged: ${health}`);
      return hasTables(db);
    });
    if (isOurs) refuseOtherFormat(db, file);
    const { journal_mode: mode } = db.prepare("PRAGMA journal_mode").get() as {
      journal_mode: string;
    };
    return { isOurs, journal: judgeJournal(mode) };
  } finally {
    db.close();
  }
}

const judgeJournal = (mode: string): Finding =>
  mode === "wal"
    ? ok("journal", "a write-ahead log")
    : note(
        "journal",
        `mode ${mode}; the first process that locks a name changes it to a write-ahead log, or is refused if that is not possible`,
      );

/** The reason why a step is refused; null if it is not. */
function refusalOf(step: () => void): string | null {
  try {
    step();
    return null;
  } catch (error) {
    return reasonOf(error);
  }
}
