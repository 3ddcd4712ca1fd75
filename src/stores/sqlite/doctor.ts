import { accessSync, constants, type Stats, statfsSync, statSync } from "node:fs";
import { dirname } from "node:path";
import { type Finding, megabytes, reasonOf, tryOut } from "../../core/doctor.js";
import type { StoreUrl } from "../../core/url.js";
import { openSqlite } from "./driver.js";
import { explain } from "./errors.js";
import {
  fileAt,
  fileSystemType,
  openSqliteStore,
  refuseSharedFileSystem,
  refuseTimeNamespace,
} from "./open.js";
import { patiently } from "./patience.js";
import { hasTables, refuseOtherFormat } from "./schema.js";

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
  return [
    fileSystem(folder, file),
    clock(),
    ...access(folder, there, file, stats),
    space(folder),
    ...(stats === null ? [MISSING] : await contents(file)),
  ];
}

const MISSING: Finding = {
  about: "file",
  level: "note",
  what: "it does not exist yet; who first locks a name makes it, for this user alone",
};

const look = (path: string): Stats | null => statSync(path, { throwIfNoEntry: false }) ?? null;

function fileSystem(folder: string, file: string): Finding {
  const about = "file system";
  const type = fileSystemType(folder);
  const refusal = refusalOf(() => refuseSharedFileSystem(type, file));
  if (refusal !== null) return { about, level: "danger", what: refusal };
  if (type !== null) return { about, level: "ok", what: "not one that several machines share" };
  return {
    about,
    level: "unknown",
    what: "whether several machines share it, where SQLite's locks are not safe: only Linux tells",
  };
}

function clock(): Finding {
  const about = "clock";
  const refusal = refusalOf(refuseTimeNamespace);
  if (refusal !== null) return { about, level: "danger", what: refusal };
  return { about, level: "ok", what: "the machine's monotonic clock, which nobody can set" };
}

function access(folder: string, { mode }: Stats, file: string, stats: Stats | null): Finding[] {
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
  // Windows has other rights than these.
  if (process.platform === "win32") return findings;
  const [others, sticky] = [0o002, 0o1000];
  if ((mode & others) !== 0 && (mode & sticky) === 0) {
    findings.push({
      about,
      level: "danger",
      what: "every user of this machine can delete or replace the file: who uses the old one and who uses the new one then hold the same name",
      advice: `chmod o-w ${folder}`,
    });
  }
  if (stats !== null && (stats.mode & others) !== 0) {
    findings.push({
      about,
      level: "danger",
      what: "every user of this machine can write the file: anyone can take, free and delete locks",
      advice: `chmod o-w ${file}`,
    });
  }
  if (findings.length > 0) return findings;
  return [{ about, level: "ok", what: "this user can write it, and not everybody can" }];
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
