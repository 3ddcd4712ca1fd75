import { randomBytes } from "node:crypto";
import {
  closeSync,
  fsyncSync,
  openSync,
  realpathSync,
  renameSync,
  rmSync,
  writeSync,
} from "node:fs";
import { basename, dirname, join, relative, resolve, sep } from "node:path";
import { InvalidArgumentError, StoreUnavailableError, UnsupportedError } from "../core/errors.js";
import { checkText, show } from "../core/validate.js";
import { openSqlite, type SqliteDatabase } from "../stores/sqlite/driver.js";
import { toStoreError } from "../stores/sqlite/errors.js";
import { makeFile, statOrNull } from "../stores/sqlite/file.js";
import { retryWhileBusy } from "../stores/sqlite/retry.js";
import { inTransaction } from "../stores/sqlite/transaction.js";
import {
  fileSystemTypes,
  refuseSecondPath,
  sharedFileSystem,
} from "../stores/sqlite/unsafe-file.js";
import type { Fence, Fenced } from "./fence.js";
import { type SqliteFence, sqliteFence } from "./sqlite.js";

const STATE_FILE = ".holdfast-fence.db";
const TEMPORARY = ".holdfast-new-";

/**
 * A fence for the files of a folder. A resource is the path of a file in that folder. `replace` writes a
 * new file and gives it the old one's name while a lock of the operating system is held, so that no process
 * can enter between the check and the write; a process that dies gives up that lock.
 */
export class FileFence implements Fence<undefined> {
  readonly #folder: string;
  readonly #db: SqliteDatabase;
  readonly #numbers: SqliteFence;

  private constructor(folder: string, db: SqliteDatabase) {
    this.#folder = folder;
    this.#db = db;
    this.#numbers = sqliteFence(db);
  }

  /**
   * Opens the fence of a folder, which must exist. It keeps its numbers in `.holdfast-fence.db` there.
   * Rejects with `UnsupportedError` if the folder is on a network file system.
   */
  static async open(folder: string): Promise<FileFence> {
    checkText(folder, "the folder", 1, 4_096);
    if (!statOrNull(folder)?.isDirectory()) {
      throw new InvalidArgumentError(`there is no folder ${show(folder)}: make it first`);
    }
    const real = realpathSync(folder);
    const file = join(real, STATE_FILE);
    refuseShared(file);
    refuseSecondPath(file);
    makeFile(file);
    const db = await openSqlite(file);
    try {
      db.exec("PRAGMA busy_timeout = 0");
      return await retryWhileBusy(() => new FileFence(real, db));
    } catch (error) {
      db.close();
      throw toStoreError(error, file);
    }
  }

  async enter(_tx: undefined, resource: string, lease: Fenced): Promise<void> {
    await this.#numbers.enter(undefined, this.#keyOf(resource), lease);
  }

  async guard(
    _tx: undefined,
    resource: string,
    lease: Fenced,
    options?: { strict?: boolean },
  ): Promise<void> {
    const key = this.#keyOf(resource);
    await this.#locked(() => this.#numbers.guardSync(this.#db, key, lease, options));
  }

  async highest(_tx: undefined, resource: string): Promise<bigint> {
    return this.#numbers.highest(undefined, this.#keyOf(resource));
  }

  async reset(_tx: undefined, resource: string, token: bigint): Promise<void> {
    await this.#numbers.reset(undefined, this.#keyOf(resource), token);
  }

  /**
   * Replaces the content of the file, or makes it. Readers see the old or the new content, never a part, also
   * after a power cut. Rejects with `StaleTokenError` if a later holder has entered: nothing is written then.
   * `mode`: the rights of a new file, default 0o666 less the umask; a file that exists keeps its own.
   */
  async replace(
    resource: string,
    lease: Fenced,
    data: string | Uint8Array,
    options: { mode?: number } = {},
  ): Promise<void> {
    const path = this.#pathOf(resource);
    const temporary = join(dirname(path), `${TEMPORARY}${randomBytes(8).toString("hex")}`);
    const mode = statOrNull(path)?.mode ?? options.mode ?? 0o666;
    // Entering is kept before the file changes: a crash in between must not let earlier holders back in.
    await this.enter(undefined, resource, lease);
    try {
      writeDurably(temporary, data, mode & 0o7777);
      await this.#change(resource, lease, () => renameSync(temporary, path), dirname(path));
    } catch (error) {
      rmSync(temporary, { force: true });
      throw error;
    }
  }

  /** Deletes the file, if it exists. The number stays, so that an earlier holder can't make it again. */
  async remove(resource: string, lease: Fenced): Promise<void> {
    const path = this.#pathOf(resource);
    await this.enter(undefined, resource, lease);
    await this.#change(resource, lease, () => rmSync(path, { force: true }), dirname(path));
  }

  /** Closes the file with the numbers. */
  close(): void {
    this.#db.close();
  }

  async #change(
    resource: string,
    lease: Fenced,
    change: () => void,
    folder: string,
  ): Promise<void> {
    await this.#locked(() => {
      this.#numbers.guardSync(this.#db, this.#keyOf(resource), lease, { strict: true });
      change();
      syncFolder(folder);
    });
  }

  /** The lock of SQLite's write transaction is held by the operating system, for this process. */
  async #locked(step: () => void): Promise<void> {
    try {
      await retryWhileBusy(() => inTransaction(this.#db, step));
    } catch (error) {
      throw toStoreError(error, "of the fence");
    }
  }

  /** The same for all ways to write a path. */
  #keyOf(resource: string): string {
    return relative(this.#folder, this.#pathOf(resource)).split(sep).join("/");
  }

  #pathOf(resource: string): string {
    checkText(resource, "the resource", 1, 255);
    const asked = resolve(this.#folder, resource);
    const parent = statOrNull(dirname(asked)) === null ? null : realpathSync(dirname(asked));
    const path = parent === null ? asked : join(parent, basename(asked));
    const isInside = path.startsWith(this.#folder + sep) && parent !== null;
    const isOurs = basename(path).startsWith(STATE_FILE) || basename(path).startsWith(TEMPORARY);
    if (!isInside || isOurs || statOrNull(path)?.isDirectory()) {
      throw new InvalidArgumentError(
        `the resource is ${show(resource)}; it must be the path of a file in ${this.#folder}, in a folder that exists`,
      );
    }
    refuseShared(path);
    return path;
  }
}

/**
 * Opens a fence for the files of a folder on a local disk.
 *
 * @example
 * ```ts
 * import { readFile } from "node:fs/promises";
 * import { connect } from "holdfast";
 * import { openFileFence } from "holdfast/fence/file";
 *
 * const fence = await openFileFence("data");
 * const locks = await connect("sqlite:locks.db");
 * await locks.withLock("report", { fence, resource: "report.json" }, async (lease) => {
 *   const report = JSON.parse(await readFile("data/report.json", "utf8"));
 *   report.runs++;
 *   await fence.replace("report.json", lease, JSON.stringify(report)); // throws StaleTokenError if stale
 * });
 * ```
 */
export function openFileFence(folder: string): Promise<FileFence> {
  return FileFence.open(folder);
}

function refuseShared(path: string): void {
  for (const type of fileSystemTypes(path)) {
    const name = sharedFileSystem(type);
    if (name === undefined) continue;
    throw new UnsupportedError(
      `${path} lies on ${name}, where locks on files do not reach other machines: a stale holder there could write. Keep the file on a local disk, or use a service that checks the token`,
    );
  }
}

function writeDurably(path: string, data: string | Uint8Array, mode: number): void {
  const bytes = typeof data === "string" ? Buffer.from(data) : data;
  if (!(bytes instanceof Uint8Array)) {
    throw new InvalidArgumentError(
      `the data is ${show(data)}; it must be a string or a Uint8Array`,
    );
  }
  const file = openSync(path, "wx", mode);
  try {
    for (let at = 0; at < bytes.length; ) at += writeSync(file, bytes, at);
    fsyncSync(file);
  } catch (error) {
    throw new StoreUnavailableError(
      `the new content can't be written: ${(error as Error).message}`,
      {
        cause: error,
      },
    );
  } finally {
    closeSync(file);
  }
}

/** The new name of a file is durable when its folder is. */
function syncFolder(folder: string): void {
  const descriptor = openSync(folder, "r");
  try {
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}
