import { readdirSync, type Stats, statSync } from "node:fs";
import { StoreUnavailableError } from "../../core/errors.js";
import { LOG_SUFFIXES, statOrNull } from "./file.js";

/**
 * Notices that the database file or its log is no longer the one that this process has opened. SQLite
 * goes on with the deleted file, whose locks keep nobody out.
 */
export class ReplacementCheck {
  readonly #file: string;
  readonly #database: OpenedFile;
  readonly #logs: readonly OpenedFile[];
  #refusal: StoreUnavailableError | null = null;

  /**
   * Call it after the first transaction, which opens all these files. All connections of a process share
   * one -shm: while an earlier connection is open, or closed and not yet collected by its driver, a new
   * one goes on with a deleted -shm, and other processes make another.
   */
  constructor(file: string) {
    this.#file = file;
    this.#database = new OpenedFile(file);
    this.#logs = LOG_SUFFIXES.map((suffix) => new OpenedFile(`${file}${suffix}`));
    const unopened = findUnopened(this.#logs);
    if (unopened !== undefined) {
      this.refuse(`${unopened.path} was deleted or replaced while this process used it`);
    }
  }

  /** Throws once the file was replaced, and ever after: others may have been granted names since. */
  refuseIfReplaced(): void {
    this.refuseIfDatabaseReplaced();
    for (const log of this.#logs) this.#refuseIf(log);
  }

  /** For steps that neither grant nor confirm anything: checking the log too takes three times as long. */
  refuseIfDatabaseReplaced(): void {
    if (this.#refusal !== null) throw this.#refusal;
    this.#refuseIf(this.#database);
  }

  #refuseIf(file: OpenedFile): void {
    if (file.isReplaced()) this.refuse(`${file.path} was deleted or replaced while in use`);
  }

  refuse(reason: string): never {
    this.#refusal = new StoreUnavailableError(
      `the SQLite file ${this.#file} can't be used any more: ${reason}, so others may hold the same ` +
        "names. Stop all processes that use the file, then connect again",
      { retryable: false },
    );
    throw this.#refusal;
  }
}

/** A file as it was when this was made. */
export class OpenedFile {
  readonly path: string;
  readonly #dev: number | undefined;
  readonly #ino: number | undefined;

  constructor(path: string) {
    this.path = path;
    const stats = statOrNull(path);
    this.#dev = stats?.dev;
    this.#ino = stats?.ino;
  }

  isReplaced(): boolean {
    return !this.is(statOrNull(this.path));
  }

  is(stats: Stats | null): boolean {
    return stats?.ino === this.#ino && stats?.dev === this.#dev;
  }
}

/** The first of these files for which this process has no descriptor; known on Linux only. */
function findUnopened(files: readonly OpenedFile[]): OpenedFile | undefined {
  let descriptors: Stats[];
  try {
    descriptors = readdirSync("/proc/self/fd").flatMap(statDescriptor);
  } catch {
    return undefined;
  }
  return files.find((file) => !descriptors.some((one) => file.is(one)));
}

function statDescriptor(number: string): Stats[] {
  try {
    return [statSync(`/proc/self/fd/${number}`)];
  } catch {
    // Closed since it was listed.
    return [];
  }
}
