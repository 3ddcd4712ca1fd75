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

/** Linux: refers to a file without opening it. Node has no constant for it. */
const O_PATH = 0o10000000;
const { O_RDONLY, O_DIRECTORY, O_NOFOLLOW } = constants;

/** Rights that a mode gives, and the bit by which new entries get the group of their folder. */
const [GROUP_WRITES, OTHERS_WRITE, SET_GROUP] = [0o020, 0o002, 0o2000];
const GROUP_RIGHTS = 0o060;

/** `sun_path` holds 104 bytes on macOS and 108 on Linux. */
const ADDRESS_BYTES = 100;
const LONGEST_NAME_BYTES = 12;

/**
 * The folder beside the database file in which the sockets of waiting processes lie. It is opened only
 * if nobody can write it who can't write the database file, and is then reached by its descriptor:
 * a folder or link that somebody puts in its place afterwards is never used, and no path is too long.
 */
export class WakeFolder {
  readonly #path: string;
  readonly #fd: number;
  readonly #database: Stats;
  readonly #byDescriptor: boolean;

  /** Whether the folder that others find has such an entry. */
  static has(file: string, name: string): boolean {
    return existsSync(join(folderOf(file), name));
  }

  /** Throws if there is none, or if it can't be trusted. */
  static open(file: string): WakeFolder {
    return new WakeFolder(file, false);
  }

  /** Makes it if it is missing; gives it the rights of the database file if it is this user's. */
  static make(file: string): WakeFolder {
    let made = false;
    try {
      mkdirSync(folderOf(file), { mode: 0o700 });
      made = true;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
    }
    try {
      return new WakeFolder(file, true);
    } catch (error) {
      if (made) removeEmpty(folderOf(file));
      throw error;
    }
  }

  private constructor(file: string, toListen: boolean) {
    this.#path = folderOf(file);
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

  /** Calls `use` with a path of this very socket, which stays the same if its entry is replaced. */
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

  /** Does nothing if it is gone. */
  remove(name: string): void {
    try {
      unlinkSync(this.at(name));
    } catch {
      // Somebody else has removed it, or only its owner may.
    }
  }

  close(): void {
    closeSync(this.#fd);
  }

  /** After the last socket, the folder goes too. */
  removeIfEmpty(): void {
    removeEmpty(this.#path);
  }
}

const folderOf = (file: string): string => `${file}-wake`;

/** Windows has no users of this kind, and no such sockets. */
const effectiveUser = (): number => process.geteuid?.() ?? 0;

function removeEmpty(folder: string): void {
  try {
    rmdirSync(folder);
  } catch {
    // Others wait there too, or it is no folder.
  }
}

/** Changes a folder of this user only: those of others are used as they are, or refused. */
function giveRights(fd: number, database: Stats): void {
  const folder = fstatSync(fd);
  if (folder.uid !== effectiveUser()) return;
  const owner = folder.uid === 0 ? database.uid : folder.uid;
  const group = (database.mode & GROUP_RIGHTS) === 0 ? folder.gid : database.gid;
  if (owner !== folder.uid || group !== folder.gid) fchownSync(fd, owner, group);
  fchmodSync(fd, folderMode(database.mode) | (folder.mode & SET_GROUP));
}

/** May be searched by those who may read the file; never writable by all. */
const folderMode = (fileMode: number): number =>
  (fileMode & 0o664) | 0o700 | ((fileMode & 0o044) >> 2);

/**
 * A folder whose writers may write the database file too learns nothing from a grant that is sent
 * there. Any other may have been put there in advance to catch grants.
 */
function refuseUntrusted(folder: Stats, database: Stats, parent: Stats): void {
  const shared = folder.gid === database.gid && (database.mode & GROUP_WRITES) !== 0;
  // Where everybody may make folders, setgid gives the group to those of strangers too.
  const byMember = shared && (parent.mode & OTHERS_WRITE) === 0;
  const ownerIsTrusted = folder.uid === 0 || folder.uid === database.uid || byMember;
  const groupIsTrusted = shared || (folder.mode & GROUP_WRITES) === 0;
  if (ownerIsTrusted && groupIsTrusted && (folder.mode & OTHERS_WRITE) === 0) return;
  throw new Error("users who may not write the database file may write its wake folder");
}

/** Not Linux: paths are bounded, and what is at a path may be replaced by all who may write the folder. */
function refuseWithoutDescriptor(path: string, folder: Stats, toListen: boolean): void {
  if (Buffer.byteLength(path) + 1 + LONGEST_NAME_BYTES > ADDRESS_BYTES) {
    throw new Error(`the path of ${path} is too long for a socket`);
  }
  const writers = folder.mode & (GROUP_WRITES | OTHERS_WRITE);
  if (!toListen || (folder.uid === effectiveUser() && writers === 0)) return;
  throw new Error(`other users may write ${path}`);
}
