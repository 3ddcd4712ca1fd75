import { randomBytes } from "node:crypto";
import {
  closeSync,
  existsSync,
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
import { InvalidArgumentError } from "../../core/errors.js";

/*
 * Nothing here opens a database file that may be in use: when a process closes any descriptor of a
 * file, the system drops all locks that the process has on it, those of SQLite included.
 */

export function fileAt(path: string): string {
  if (path !== "" && path !== ":memory:") return realFile(resolve(path));
  throw new InvalidArgumentError(
    "sqlite: needs a file's path, as in sqlite:./locks.db or sqlite:/var/lib/app/locks.db",
  );
}

/** Where the file lies, or will lie when it is made: SQLite's log is beside it there, not beside a link. */
function realFile(path: string): string {
  try {
    return realpathSync(path);
  } catch (error) {
    if (codeOf(error) !== "ENOENT") return path;
  }
  const target = targetOf(path);
  if (target !== null) return realFile(resolve(dirname(path), target));
  const folder = dirname(path);
  return folder === path ? path : join(realFile(folder), basename(path));
}

function targetOf(path: string): string | null {
  try {
    return readlinkSync(path);
  } catch {
    return null;
  }
}

const codeOf = (error: unknown): string | undefined => (error as NodeJS.ErrnoException).code;

const newNameOf = (file: string): string => `${file}-new-`;

/**
 * Makes the file for this user alone, if it is missing. It gets its name only when its descriptor is
 * closed: another thread of this process may lock it as soon as it has one.
 */
export function makeFile(file: string): void {
  if (existsSync(file)) return;
  const made = `${newNameOf(file)}${randomBytes(6).toString("hex")}`;
  create(made);
  try {
    linkSync(made, file);
  } catch (error) {
    // Some file systems have no hard links.
    if (codeOf(error) !== "EEXIST") create(file);
  } finally {
    rmSync(made, { force: true });
  }
}

function create(file: string): void {
  try {
    closeSync(openSync(file, "wx", 0o600));
  } catch (error) {
    if (codeOf(error) !== "EEXIST") throw error;
  }
}

/** How many names the file has, without those under which Holdfast has made it; 0 if there is no file. */
export function countLinks(file: string): number {
  const stats = look(file);
  if (stats === null || !stats.isFile()) return 0;
  if (stats.nlink <= 1) return 1;
  const prefix = newNameOf(basename(file));
  for (const name of readdirSync(dirname(file))) {
    if (!name.startsWith(prefix)) continue;
    // Its maker is about to remove it, or was killed before it could.
    const made = join(dirname(file), name);
    if (look(made)?.ino === stats.ino) rmSync(made, { force: true });
  }
  return look(file)?.nlink ?? 0;
}

export const look = (path: string): Stats | null =>
  statSync(path, { throwIfNoEntry: false }) ?? null;
