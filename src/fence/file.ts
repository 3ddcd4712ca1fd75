import { randomBytes } from "node:crypto";
import {
  closeSync,
  fchmodSync,
  fchownSync,
  fstatSync,
  fsyncSync,
  openSync,
  realpathSync,
  renameSync,
  rmSync,
  type Stats,
  writeSync,
} from "node:fs";
import { basename, dirname, join, relative, resolve, sep } from "node:path";
import {
  HoldfastError,
  InvalidArgumentError,
  StoreUnavailableError,
  UnsupportedError,
} from "../core/errors.js";
import { checkNumber, checkOptions, checkText, orElse, show } from "../core/validate.js";
import { openSqlite, type SqliteDatabase } from "../stores/sqlite/driver.js";
import { toStoreError } from "../stores/sqlite/errors.js";
import { fileAt, makeFile, statOrNull } from "../stores/sqlite/file.js";
import { OpenedFile } from "../stores/sqlite/replacement-check.js";
import { retryWhileBusy } from "../stores/sqlite/retry.js";
import { inTransaction, rollBack } from "../stores/sqlite/transaction.js";
import {
  fileSystemTypes,
  refuseSecondPath,
  sharedFileSystem,
} from "../stores/sqlite/unsafe-file.js";
import {
  checkFenced,
  checkResource,
  type Entry,
  type Fence,
  type Fenced,
  hasEntered,
  isStrict,
  refuseUnlessEntered,
} from "./fence.js";
import type { FencedResource, FenceListOptions } from "./shared/list.js";
import { type SqliteFence, sqliteFence } from "./sqlite.js";

const STATE_FILE = ".holdfast-fence.db";
const TEMPORARY = ".holdfast-new-";
/** All rights that a file can have. */
const RIGHTS = { min: 0, max: 0o7777, integer: true };

interface GuardedFile {
  /** Without links. */
  readonly path: string;
  /** The path in the folder, under which the number is kept. */
  readonly key: string;
}

/**
 * A fence for the files of a folder. A resource is the path of a file in that folder. `replace` writes a
 * new file and gives it the old one's name while a lock of the operating system is held, so that no process
 * can enter between the check and the write; a process that dies gives up that lock.
 */
export class FileFence implements Fence<undefined> {
  readonly #folder: string;
  readonly #db: SqliteDatabase;
  #isClosed = false;
  readonly #state: OpenedFile;
  readonly #numbers: SqliteFence;

  private constructor(folder: string, db: SqliteDatabase, state: OpenedFile) {
    this.#folder = folder;
    this.#db = db;
    this.#state = state;
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
    // Before it is opened: a file that is exchanged in between counts as replaced.
    const state = new OpenedFile(file);
    const db = await openSqlite(file);
    try {
      db.exec("PRAGMA busy_timeout = 0");
      return await retryWhileBusy(() => {
        // EXTRA also syncs the folder when the journal is deleted: otherwise, a power cut can bring the journal
        // back, and with it the number from before.
        db.exec("PRAGMA synchronous = EXTRA");
        return new FileFence(real, db, state);
      });
    } catch (error) {
      db.close();
      throw toStoreError(error, file);
    }
  }

  async enter(_tx: undefined, resource: string, lease: Fenced): Promise<void> {
    await this.#enter(this.#fileOf(resource).key, lease);
  }

  async guard(
    _tx: undefined,
    resource: string,
    lease: Fenced,
    options?: { strict?: boolean },
  ): Promise<void> {
    const { key } = this.#fileOf(resource);
    if (isStrict(options))
      await this.#reading(() => refuseUnlessEntered(...this.#entry(key, lease)));
    else await this.#enter(key, lease);
  }

  async highest(_tx: undefined, resource: string): Promise<bigint> {
    const { key } = this.#fileOf(resource);
    return this.#reading(() => this.#numbers.highestSync(this.#db, key));
  }

  /** The files that it has guarded, in the order of their UTF-8 bytes. */
  async list(options?: FenceListOptions): Promise<readonly FencedResource[]> {
    return this.#reading(() => this.#numbers.listSync(options));
  }

  async reset(_tx: undefined, resource: string, token: bigint): Promise<void> {
    const { key } = this.#fileOf(resource);
    this.#refuseIfReplaced();
    await this.#numbers.reset(undefined, key, token);
  }

  /**
   * Replaces the content of the file, or makes it. Readers see the old or the new content, never a part, also
   * after a power cut. Rejects with `StaleTokenError` if a later holder has entered: nothing is written then.
   * `mode`: the rights of a new file, default 0o666 less the umask; a file that exists keeps its own,
   * and its owner and group as far as this user may set them.
   */
  async replace(
    resource: string,
    lease: Fenced,
    data: string | Uint8Array,
    options: { mode?: number } = {},
  ): Promise<void> {
    checkOptions(options, "the options of replace", ["mode"]);
    const newMode = checkNumber(orElse(options.mode, 0o666), "mode", RIGHTS);
    const file = this.#fileOf(resource);
    const temporary = join(dirname(file.path), `${TEMPORARY}${randomBytes(8).toString("hex")}`);
    // Entering is kept before the file changes: a crash in between must not let earlier holders back in.
    await this.#enter(file.key, lease);
    try {
      writeDurably(temporary, data, statOrNull(file.path), newMode);
      await this.#change(file, lease, () => renameSync(temporary, file.path));
    } catch (error) {
      rmSync(temporary, { force: true });
      throw error;
    }
  }

  /** Deletes the file, if it exists. The number stays, so that an earlier holder can't make it again. */
  async remove(resource: string, lease: Fenced): Promise<void> {
    const file = this.#fileOf(resource);
    await this.#enter(file.key, lease);
    await this.#change(file, lease, () => rmSync(file.path, { force: true }));
  }

  /** Closes the file with the numbers. A second call does nothing. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#db.close();
  }

  async #enter(key: string, lease: Fenced): Promise<void> {
    if (await this.#reading(() => hasEntered(...this.#entry(key, lease)))) return;
    await this.#retry(() =>
      inTransaction(this.#db, () => {
        this.#refuseIfReplaced();
        this.#numbers.guardSync(this.#db, key, lease);
      }),
    );
  }

  async #change({ path, key }: GuardedFile, lease: Fenced, change: () => void): Promise<void> {
    await this.#reading(() => {
      refuseUnlessEntered(...this.#entry(key, lease));
      try {
        change();
        syncFolder(dirname(path));
      } catch (error) {
        throw new StoreUnavailableError(
          `${path} can't be changed: ${(error as Error).message}. Read it to see whether the change was made`,
          { cause: error },
        );
      }
    });
  }

  /** The arguments of a check; throws `InvalidArgumentError` for a lease that is none. */
  #entry(key: string, lease: Fenced): [Entry, bigint | null] {
    const entry = { resource: key, ...checkFenced(key, lease) };
    return [entry, this.#numbers.highestOrNullSync(this.#db, key)];
  }

  /**
   * Runs a step that reads numbers while no process can change them: the lock of SQLite's write transaction is
   * held by the operating system. The transaction ends by a rollback, which always succeeds. A commit would
   * fail while another process reads, even with nothing to write, and the step would be repeated.
   */
  #reading<T>(step: () => T): Promise<T> {
    return this.#retry(() => {
      this.#db.exec("BEGIN IMMEDIATE");
      try {
        this.#refuseIfReplaced();
        return step();
      } finally {
        rollBack(this.#db);
      }
    });
  }

  async #retry<T>(step: () => T): Promise<T> {
    try {
      return await retryWhileBusy(step);
    } catch (error) {
      if (!HoldfastError.is(error)) this.#refuseIfReplaced();
      throw toStoreError(error, this.#state.path);
    }
  }

  /** SQLite goes on with a deleted file, whose lock and numbers nobody else sees. */
  #refuseIfReplaced(): void {
    if (!this.#state.isReplaced()) return;
    throw new StoreUnavailableError(
      `${this.#state.path} was deleted or replaced while in use, so other processes may use other numbers. Stop all processes that write to the folder, then open the fence again`,
      { retryable: false },
    );
  }

  /** The same path and key for all ways to write a path, also through links. */
  #fileOf(resource: string): GuardedFile {
    checkResource(resource);
    try {
      return this.#examine(resource);
    } catch (error) {
      if (HoldfastError.is(error)) throw error;
      const message = `the file ${show(resource)} in ${this.#folder} can't be examined: ${(error as Error).message}`;
      throw new StoreUnavailableError(message, { cause: error, retryable: false });
    }
  }

  #examine(resource: string): GuardedFile {
    const path = fileAt(resolve(this.#folder, resource));
    const isInside =
      path.startsWith(this.#folder + sep) && statOrNull(dirname(path))?.isDirectory() === true;
    const isOurs = basename(path).startsWith(STATE_FILE) || basename(path).startsWith(TEMPORARY);
    if (!isInside || isOurs || statOrNull(path)?.isDirectory()) {
      throw new InvalidArgumentError(
        `the resource is ${show(resource)}; it must be the path of a file in ${this.#folder}, in a folder that exists`,
      );
    }
    this.#refuseOtherFence(path);
    refuseShared(path);
    return { path, key: relative(this.#folder, path).split(sep).join("/") };
  }

  /** Two fences for one file would each have a number of their own. */
  #refuseOtherFence(path: string): void {
    for (let folder = dirname(path); folder !== this.#folder; folder = dirname(folder)) {
      if (statOrNull(join(folder, STATE_FILE)) === null) continue;
      throw new InvalidArgumentError(
        `${path} is in ${folder}, which has a fence of its own: open that one for it`,
      );
    }
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

/** `former`: the file that is replaced. Its rights are kept, on which the umask has no effect. */
function writeDurably(
  path: string,
  data: string | Uint8Array,
  former: Stats | null,
  newMode: number,
): void {
  const bytes = typeof data === "string" ? Buffer.from(data) : data;
  if (!(bytes instanceof Uint8Array)) {
    throw new InvalidArgumentError(
      `the data is ${show(data)}; it must be a string or a Uint8Array`,
    );
  }
  let file: number | null = null;
  try {
    file = openSync(path, "wx", (former?.mode ?? newMode) & RIGHTS.max);
    if (former !== null) keepRights(file, former);
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
    if (file !== null) closeSync(file);
  }
}

/** Only root may give a file to another user, and others may give it to their own groups. */
function keepRights(file: number, { uid, gid, mode }: Stats): void {
  const made = fstatSync(file);
  if (made.uid !== uid || made.gid !== gid) {
    for (const owner of [uid, made.uid]) {
      try {
        fchownSync(file, owner, gid);
        break;
      } catch {
        // This user may not.
      }
    }
  }
  // Afterwards, because a new owner takes setuid and setgid away.
  fchmodSync(file, mode & RIGHTS.max);
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
