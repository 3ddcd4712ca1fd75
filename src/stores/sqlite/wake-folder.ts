import {
  chmodSync,
  chownSync,
  closeSync,
  constants,
  existsSync,
  fchmodSync,
  fchownSync,
  fstatSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  renameSync,
  rmdirSync,
  type Stats,
  statSync,
  unlinkSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { GROUP_RIGHTS, GROUP_WRITES, OTHERS_WRITE, SET_GROUP } from "./file.js";

/** Linux: refers to a file without opening it. Node has no constant for it. */
const O_PATH = 0o10000000;
const { O_RDONLY, O_DIRECTORY, O_NOFOLLOW } = constants;

/** `sun_path` holds 104 bytes on macOS and 108 on Linux. */
const ADDRESS_BYTES = 100;
const LONGEST_NAME_BYTES = 12;

/**
 * The folder beside the database file with the sockets of waiting processes. It is used only if every
 * user who can write it can also write the database file. After this check it is reached by its
 * descriptor: a folder or link that takes its place later is never used, and no path is too long.
 */
export class WakeFolder {
  readonly #path: string;
  readonly #fd: number;
  readonly #database: Stats;
  readonly #byDescriptor: boolean;

  /** Whether other processes would find such an entry now. */
  static has(file: string, name: string): boolean {
    return existsSync(join(wakeFolderOf(file), name));
  }

  /** To send. Throws if there is no such folder, or if it can't be trusted. */
  static open(file: string): WakeFolder {
    return new WakeFolder(file, false);
  }

  /** To listen: makes the folder if it is missing, and gives it the rights of the database file if it is this user's. */
  static make(file: string): WakeFolder {
    let made = false;
    try {
      mkdirSync(wakeFolderOf(file), { mode: 0o700 });
      made = true;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
    }
    try {
      return new WakeFolder(file, true);
    } catch (error) {
      if (made) removeEmpty(wakeFolderOf(file));
      throw error;
    }
  }

  private constructor(file: string, toListen: boolean) {
    this.#path = wakeFolderOf(file);
    this.#fd = openSync(this.#path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    try {
      this.#database = statSync(file);
      if (toListen) giveRights(this.#fd, this.#database);
      const folder = fstatSync(this.#fd);
      refuseUntrusted(folder, this.#database, statSync(dirname(file)));
      this.#byDescriptor = existsSync(`/proc/self/fd/${this.#fd}/.`);
      if (!this.#byDescriptor) refuseWithoutDescriptor(this.#path, folder, toListen);
    } catch (error) {
      closeSync(this.#fd);
      throw error;
    }
  }

  names(): string[] {
    return readdirSync(this.at("."));
  }

  at(name: string): string {
    return join(this.#byDescriptor ? `/proc/self/fd/${this.#fd}` : this.#path, name);
  }

  /** Calls `use` with a path that leads to this socket, even if its entry is replaced meanwhile. */
  withSocket<T>(name: string, use: (path: string, stats: Stats) => T): T {
    const useSocket = (path: string, stats: Stats): T => {
      if (!stats.isSocket()) throw new Error(`${join(this.#path, name)} is not a socket`);
      return use(path, stats);
    };
    if (!this.#byDescriptor) return useSocket(this.at(name), lstatSync(this.at(name)));
    const fd = openSync(this.at(name), O_PATH | O_NOFOLLOW);
    try {
      return useSocket(`/proc/self/fd/${fd}`, fstatSync(fd));
    } finally {
      closeSync(fd);
    }
  }

  /** Lets all users who may write the database file connect to the socket, and nobody else. */
  shareSocket(name: string): void {
    this.withSocket(name, (path, socket) => {
      const { uid, gid, mode } = this.#database;
      if (socket.uid !== effectiveUser()) throw new Error(`${name} was replaced`);
      const owner = effectiveUser() === 0 ? uid : socket.uid;
      const group = (mode & GROUP_RIGHTS) === 0 ? socket.gid : gid;
      if (owner !== socket.uid || group !== socket.gid) chownSync(path, owner, group);
      chmodSync(path, mode & 0o666);
    });
  }

  rename(from: string, to: string): void {
    renameSync(this.at(from), this.at(to));
  }

  remove(name: string): void {
    try {
      unlinkSync(this.at(name));
    } catch {
      // It is removed already, or only its owner may remove it.
    }
  }

  close(): void {
    closeSync(this.#fd);
  }

  removeIfEmpty(): void {
    removeEmpty(this.#path);
  }
}

export const wakeFolderOf = (file: string): string => `${file}-wake`;

/** Windows has neither such users nor such sockets. */
const effectiveUser = (): number => process.geteuid?.() ?? 0;

function removeEmpty(folder: string): void {
  try {
    rmdirSync(folder);
  } catch {
    // Other processes have sockets there, or it is not a folder.
  }
}

/** Changes only a folder of this user. Those of other users are used as they are, or refused. */
function giveRights(fd: number, database: Stats): void {
  const folder = fstatSync(fd);
  if (folder.uid !== effectiveUser()) return;
  const owner = folder.uid === 0 ? database.uid : folder.uid;
  const group = (database.mode & GROUP_RIGHTS) === 0 ? folder.gid : database.gid;
  if (owner !== folder.uid || group !== folder.gid) fchownSync(fd, owner, group);
  fchmodSync(fd, folderMode(database.mode) | (folder.mode & SET_GROUP));
}

/** The rights of the file, with the right to search for those who may read; never writable by all. */
const folderMode = (fileMode: number): number =>
  (fileMode & 0o664) | 0o700 | ((fileMode & 0o044) >> 2);

/**
 * A user who may write the database file learns nothing new from a grant that is sent here. Any other
 * user may have made the folder in advance to receive grants.
 */
function refuseUntrusted(folder: Stats, database: Stats, parent: Stats): void {
  const shared = folder.gid === database.gid && (database.mode & GROUP_WRITES) !== 0;
  // If everybody may make folders there, setgid gives the group to the folders of strangers too.
  const byMember = shared && (parent.mode & OTHERS_WRITE) === 0;
  const ownerIsTrusted = folder.uid === 0 || folder.uid === database.uid || byMember;
  const groupIsTrusted = shared || (folder.mode & GROUP_WRITES) === 0;
  if (ownerIsTrusted && groupIsTrusted && (folder.mode & OTHERS_WRITE) === 0) return;
  throw new Error("users who may not write the database file may write its wake folder");
}

/** Systems other than Linux: paths are bounded, and every user who may write the folder may replace what a path leads to. */
function refuseWithoutDescriptor(path: string, folder: Stats, toListen: boolean): void {
  if (Buffer.byteLength(path) + 1 + LONGEST_NAME_BYTES > ADDRESS_BYTES) {
    throw new Error(`the path of ${path} is too long for a socket`);
  }
  const writers = folder.mode & (GROUP_WRITES | OTHERS_WRITE);
  if (!toListen || (folder.uid === effectiveUser() && writers === 0)) return;
  throw new Error(`other users may write ${path}`);
}
