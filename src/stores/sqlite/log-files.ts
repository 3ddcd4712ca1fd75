import { accessSync, constants, lchownSync } from "node:fs";
import { look } from "./file.js";

export const LOG_SUFFIXES = ["-wal", "-shm"] as const;

const GROUP_RIGHTS = 0o060;

/**
 * Gives the log files the group of the database file: SQLite gives them its mode, but the group is
 * that of the user who happens to make them, and the others of the database file's group can't open them.
 */
export function shareLogFiles(file: string): void {
  const database = look(file);
  if (database === null || (database.mode & GROUP_RIGHTS) === 0) return;
  for (const suffix of LOG_SUFFIXES) {
    const log = look(`${file}${suffix}`);
    if (log === null || log.gid === database.gid || log.uid !== process.geteuid?.()) continue;
    try {
      lchownSync(`${file}${suffix}`, log.uid, database.gid);
    } catch {
      // This user is no member of the group.
    }
  }
}

/** A log file that this user can't use, and what helps; null if there is none. */
export function findUnusableLogFile(file: string): { what: string; advice: string } | null {
  for (const suffix of LOG_SUFFIXES) {
    const path = `${file}${suffix}`;
    const log = look(path);
    if (log === null || canUse(path)) continue;
    const mode = (log.mode & 0o777).toString(8);
    return {
      what: `this user can't read and write ${path} (user ${log.uid}, group ${log.gid}, mode ${mode})`,
      advice:
        "To share the file between users, give the folder the group of the file and the setgid bit " +
        "(chgrp GROUP FOLDER; chmod 2770 FOLDER), let all users be members of the group, and stop " +
        "all processes that use the file once: the last one removes its log",
    };
  }
  return null;
}

function canUse(path: string): boolean {
  try {
    accessSync(path, constants.R_OK | constants.W_OK);
    return true;
  } catch {
    return false;
  }
}
