import { randomBytes } from "node:crypto";
import {
  accessSync,
  closeSync,
  constants,
  existsSync,
  lchownSync,
  linkSync,
  openSync,
  readdirSync,
  readlinkSync,
  realpathSync,
  rmSync,
  type Stats,
  statSync,
} from "node:fs";
import { basename, dirname, join, resolve } from "node:path";

/*
 * Nothing here opens a database file that may be in use: when a process closes any descriptor of a
 * file, the system drops all locks that the process has on it, those of SQLite included.
 */

/** The files that SQLite keeps beside the database file while it is open. */
export const LOG_SUFFIXES = ["-wal", "-shm"] as const;

export const GROUP_RIGHTS = 0o060;
export const GROUP_WRITES = 0o020;
export const OTHERS_WRITE = 0o002;
/** New entries get the group of their folder. */
export const SET_GROUP = 0o2000;

export const describeRights = ({ uid, gid, mode }: Stats): string =>
  `user ${uid}, group ${gid}, mode ${(mode & 0o7777).toString(8)}`;

/** The real path of the database file. */
export const fileAt = (path: string): string => realPath(resolve(path));

/**
 * The real path, also of a file that has yet to be made: SQLite's log lies beside the file, not beside a link to it.
 */
function realPath(path: string): string {
  try {
    return realpathSync(path);
  } catch (error) {
    if (codeOf(error) !== "ENOENT") return path;
  }
  const target = linkTarget(path);
  if (target !== null) return realPath(resolve(dirname(path), target));
  const folder = dirname(path);
  return folder === path ? path : join(realPath(folder), basename(path));
}

function linkTarget(path: string): string | null {
  try {
    return readlinkSync(path);
  } catch {
    return null;
  }
}

const codeOf = (error: unknown): string | undefined => (error as NodeJS.ErrnoException).code;

export const statOrNull = (path: string): Stats | null =>
  statSync(path, { throwIfNoEntry: false }) ?? null;

const temporaryPrefix = (file: string): string => `${file}-new-`;

/**
 * Makes the file for this user alone, if it is missing. The file gets its name after its descriptor is
 * closed: as soon as it has the name, another thread of this process may lock it.
 */
export function makeFile(file: string): void {
  if (existsSync(file)) return;
  const temporary = `${temporaryPrefix(file)}${randomBytes(6).toString("hex")}`;
  create(temporary);
  try {
    linkSync(temporary, file);
  } catch (error) {
    // Some file systems have no hard links.
    if (codeOf(error) !== "EEXIST") create(file);
  } finally {
    rmSync(temporary, { force: true });
  }
}

function create(file: string): void {
  try {
    closeSync(openSync(file, "wx", 0o600));
  } catch (error) {
    if (codeOf(error) !== "EEXIST") throw error;
  }
}

/** How many hard links the file has, without the temporary ones of `makeFile`; 0 if there is no file. */
export function countLinks(file: string): number {
  const stats = statOrNull(file);
  if (stats === null || !stats.isFile()) return 0;
  if (stats.nlink <= 1) return 1;
  const prefix = temporaryPrefix(basename(file));
  for (const name of readdirSync(dirname(file))) {
    if (!name.startsWith(prefix)) continue;
    // The process that made it is about to remove it, or was killed before it could.
    const temporary = join(dirname(file), name);
    if (statOrNull(temporary)?.ino === stats.ino) rmSync(temporary, { force: true });
  }
  return statOrNull(file)?.nlink ?? 0;
}

/**
 * Gives the log files the group of the database file. SQLite gives them its mode, but the primary group
 * of the user whose process makes them, and then other members of the file's group can't open them.
 */
export function shareLogFiles(file: string): void {
  const database = statOrNull(file);
  if (database === null || (database.mode & GROUP_RIGHTS) === 0) return;
  for (const suffix of LOG_SUFFIXES) {
    const log = statOrNull(`${file}${suffix}`);
    if (log === null || log.gid === database.gid || log.uid !== process.geteuid?.()) continue;
    try {
      lchownSync(`${file}${suffix}`, log.uid, database.gid);
    } catch {
      // This user is not a member of the group.
    }
  }
}

/** Finds a log file that this user can't read and write, and says what to do about it; null if there is none. */
export function findUnusableLogFile(file: string): { what: string; advice: string } | null {
  for (const suffix of LOG_SUFFIXES) {
    const path = `${file}${suffix}`;
    const log = statIfAllowed(path);
    if (log === null || canReadAndWrite(path)) continue;
    return {
      what: `this user can't read and write ${path} (${describeRights(log)})`,
      advice:
        "To share the file between users, give the folder the group of the file and the setgid bit " +
        "(chgrp GROUP FOLDER; chmod 2770 FOLDER), let all users be members of the group, and stop " +
        "all processes that use the file once: the last one removes its log",
    };
  }
  return null;
}

/** Null if the file is missing, or is in a folder that this user may not search. */
function statIfAllowed(path: string): Stats | null {
  try {
    return statOrNull(path);
  } catch {
    return null;
  }
}

function canReadAndWrite(path: string): boolean {
  try {
    accessSync(path, constants.R_OK | constants.W_OK);
    return true;
  } catch {
    return false;
  }
}
