import { accessSync, constants, type Stats, statfsSync } from "node:fs";
import { dirname } from "node:path";
import { type Finding, megabytes, reasonOf, tryOut } from "../../core/doctor.js";
import type { StoreUrl } from "../../core/url.js";
import { openSqlite } from "./driver.js";
import { explain } from "./errors.js";
import { fileAt, look } from "./file.js";
import { findUnusableLogFile, LOG_SUFFIXES } from "./log-files.js";
import { openSqliteStore } from "./open.js";
import { patiently } from "./patience.js";
import {
  fileSystemTypes,
  refuseSecondPath,
  refuseSharedFileSystem,
  refuseTimeNamespace,
} from "./refusals.js";
import { hasTables, refuseOtherFormat } from "./schema.js";
import { WakeFolder } from "./wake-folder.js";

const LITTLE_SPACE = 16 * 2 ** 20;
const MOST_NAMES = 10_000;

/** What endangers locks in a file. Makes nothing that is not there. */
export async function examineSqlite({ path }: StoreUrl): Promise<readonly Finding[]> {
  const file = fileAt(path);
  const folder = dirname(file);
  const there = look(folder);
  if (there === null || !there.isDirectory()) {
    return [
      {
        about: "file",
        level: "danger",
        what: `there is no folder ${folder}, so the file can't be made: nothing can be locked`,
        advice: "Make the folder, for the users who are to share the locks alone.",
      },
    ];
  }
  const stats = look(file);
  const second = secondPath(file);
  return [
    fileSystem(file),
    ...second,
    clock(),
    ...access(folder, there, file, stats),
    ...wakeFolder(file),
    space(folder),
    // Opened under a second path, the file would get a second log.
    ...(stats === null ? [MISSING] : second.length > 0 ? [] : await contents(file)),
  ];
}

const MISSING: Finding = {
  about: "file",
  level: "note",
  what: "it does not exist yet; who first locks a name makes it, for this user alone",
};

function fileSystem(file: string): Finding {
  const about = "file system";
  const types = fileSystemTypes(file);
  for (const type of types) {
    const refusal = refusalOf(() => refuseSharedFileSystem(type, file));
    if (refusal !== null) return { about, level: "danger", what: refusal };
  }
  if (types.length > 0) return { about, level: "ok", what: "not one that several machines share" };
  return {
    about,
    level: "unknown",
    what: "whether several machines share it, where SQLite's locks are not safe: only Linux tells",
  };
}

function secondPath(file: string): Finding[] {
  const refusal = refusalOf(() => refuseSecondPath(file));
  return refusal === null ? [] : [{ about: "path", level: "danger", what: refusal }];
}

function clock(): Finding {
  const about = "clock";
  const refusal = refusalOf(refuseTimeNamespace);
  if (refusal !== null) return { about, level: "danger", what: refusal };
  return { about, level: "ok", what: "the machine's monotonic clock, which nobody can set" };
}

function access(folder: string, there: Stats, file: string, stats: Stats | null): Finding[] {
  const about = "access";
  const findings: Finding[] = [];
  const { R_OK, W_OK, X_OK } = constants;
  const refusal =
    refusalOf(() => accessSync(folder, W_OK | X_OK)) ??
    (stats === null ? null : refusalOf(() => accessSync(file, R_OK | W_OK)));
  if (refusal !== null) {
    findings.push({
      about,
      level: "danger",
      what: `this user can't lock anything: the file and its folder must be writable (${refusal})`,
      advice: "Give those who share the locks a group that may write both.",
    });
  }
  const log = findUnusableLogFile(file);
  if (log !== null) {
    findings.push({ about, level: "danger", what: log.what, advice: `${log.advice}.` });
  }
  // Windows has other rights than these.
  if (process.platform === "win32") return findings;
  if (allowed(there, OTHERS_WRITE) && !allowed(there, STICKY)) {
    findings.push({
      about,
      level: "danger",
      what: "every user of this machine can delete or replace the file: who uses the old one and who uses the new one then hold the same name",
      advice: `chmod o-w ${folder}`,
    });
  }
  if (stats !== null && allowed(stats, OTHERS_WRITE)) {
    findings.push({
      about,
      level: "danger",
      what: "every user of this machine can write the file: anyone can take, free and delete locks",
      advice: `chmod o-w ${file}`,
    });
  } else if (stats !== null && allowed(stats, GROUP_WRITES)) {
    findings.push(...sharedByGroup(folder, there, file, stats));
  }
  if (findings.length > 0) return findings;
  const owner = stats === null ? "" : ` (${rightsOf(stats)})`;
  return [{ about, level: "ok", what: `this user can write it, and not everybody can${owner}` }];
}

const [OTHERS_WRITE, GROUP_WRITES, GROUP_MAKES, SET_GROUP, STICKY] = [
  0o002, 0o020, 0o030, 0o2000, 0o1000,
] as const;

const allowed = ({ mode }: Stats, bits: number): boolean => (mode & bits) === bits;

const rightsOf = ({ uid, gid, mode }: Stats): string =>
  `user ${uid}, group ${gid}, mode ${(mode & 0o7777).toString(8)}`;

/** Of a file that its group can write: whether the group can also use what SQLite makes beside it. */
function sharedByGroup(folder: string, there: Stats, file: string, stats: Stats): Finding[] {
  const about = "access";
  const findings: Finding[] = [];
  const advice = `chgrp ${stats.gid} ${folder}; chmod 2770 ${folder}`;
  if (there.gid !== stats.gid || !allowed(there, GROUP_MAKES)) {
    findings.push({
      about,
      level: "danger",
      what: `group ${stats.gid} can write the file, but can't make SQLite's log in the folder (${rightsOf(there)})`,
      advice,
    });
  } else if (!allowed(there, SET_GROUP)) {
    findings.push({
      about,
      level: "note",
      what: "the log that other programs make in the folder gets the primary group of their user, and other users can't open it; Holdfast gives its own log the group of the file",
      advice,
    });
  }
  for (const suffix of LOG_SUFFIXES) {
    const log = look(`${file}${suffix}`);
    if (log === null || (log.gid === stats.gid && allowed(log, stats.mode & 0o660))) continue;
    findings.push({
      about,
      level: "danger",
      what: `${file}${suffix} (${rightsOf(log)}) has other rights than the file (${rightsOf(stats)}): some who may write the file can't lock anything`,
      advice: "Stop all processes that use the file once: the last one removes its log.",
    });
  }
  return findings;
}

/** Nothing, unless there is one that is not used. */
function wakeFolder(file: string): Finding[] {
  if (look(`${file}-wake`) === null) return [];
  const refusal = refusalOf(() => WakeFolder.open(file).close());
  if (refusal === null) return [];
  return [
    {
      about: "wake folder",
      level: "note",
      what: `${file}-wake is not used, so waiting processes look every 50 ms: ${refusal}`,
      advice: "Remove it while nobody waits; Holdfast makes another.",
    },
  ];
}

function space(folder: string): Finding {
  const about = "space";
  const { bavail, bsize } = statfsSync(folder);
  const what = `${megabytes(bavail * bsize)} are free`;
  if (bavail * bsize >= LITTLE_SPACE) return { about, level: "ok", what };
  return {
    about,
    level: "danger",
    what: `${what}: when the disk is full, grants and renewals fail, and leases are lost`,
    advice: "Make room.",
  };
}

/** Of a file that is there. */
async function contents(file: string): Promise<Finding[]> {
  const about = "file";
  try {
    const db = await openSqlite(file);
    let ours: boolean;
    const findings: Finding[] = [];
    try {
      db.exec("PRAGMA busy_timeout = 0");
      ours = await patiently(() => {
        const [{ quick_check: health }] = db.prepare("PRAGMA quick_check(1)").all() as [
          { quick_check: string },
        ];
        if (health !== "ok") throw new Error(`it is damaged: ${health}`);
        return hasTables(db);
      });
      if (ours) refuseOtherFormat(db, file);
      findings.push(journal(db.prepare("PRAGMA journal_mode").get() as { journal_mode: string }));
    } finally {
      db.close();
    }
    if (!ours) {
      const what = "an SQLite file without Holdfast's tables; who first locks a name adds them";
      return [...findings, { about, level: "note", what }];
    }
    const store = await openSqliteStore(file);
    const names = (await store.list("", MOST_NAMES)).length;
    const many = names === MOST_NAMES ? " or more" : "";
    return [
      ...findings,
      {
        about,
        level: "ok",
        what: `whole, and of this version's format; names in use: ${names}${many}`,
      },
      await tryOut(store),
    ];
  } catch (error) {
    return [{ about, level: "danger", what: explain(error, file).message }];
  }
}

function journal({ journal_mode: mode }: { journal_mode: string }): Finding {
  const about = "journal";
  if (mode === "wal") return { about, level: "ok", what: "a write-ahead log" };
  return {
    about,
    level: "note",
    what: `mode ${mode}; who first locks a name changes it to a write-ahead log, or is refused if that can't be`,
  };
}

/** Why it can't be; null if it can. */
function refusalOf(step: () => void): string | null {
  try {
    step();
    return null;
  } catch (error) {
    return reasonOf(error);
  }
}
