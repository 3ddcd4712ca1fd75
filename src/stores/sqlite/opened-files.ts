import { statSync } from "node:fs";
import { StoreUnavailableError } from "../../core/errors.js";
import { LOG_SUFFIXES } from "./log-files.js";

const IF_THERE = { throwIfNoEntry: false } as const;

/**
 * The database file and its log as this process has opened them. One that is deleted or replaced is
 * no longer the one that others open, and what SQLite locks in it keeps nobody out.
 */
export class OpenedFiles {
  readonly #file: string;
  readonly #opened: readonly OpenedFile[];
  #refusal: StoreUnavailableError | null = null;

  /** After the first transaction, which has opened all of them. */
  constructor(file: string) {
    this.#file = file;
    this.#opened = ["", ...LOG_SUFFIXES].map((suffix) => new OpenedFile(`${file}${suffix}`));
  }

  /** Once refused, always refused: others may have been granted names in between. */
  refuseIfReplaced(): void {
    for (const one of this.#opened) this.#refuseIf(one);
  }

  /** For steps that neither grant nor confirm anything: a look at the log costs as much again, twice. */
  refuseIfDatabaseReplaced(): void {
    this.#refuseIf(this.#opened[0]!);
  }

  #refuseIf(file: OpenedFile): void {
    if (this.#refusal !== null) throw this.#refusal;
    if (file.isReplaced()) this.refuse(`${file.path} was deleted or replaced while in use`);
  }

  refuse(what: string): never {
    this.#refusal = new StoreUnavailableError(
      `the SQLite file ${this.#file} can't be used any more: ${what}, so others may hold the same ` +
        "names. Stop all processes that use the file, then connect again",
      { retryable: false },
    );
    throw this.#refusal;
  }
}

class OpenedFile {
  readonly path: string;
  readonly #dev: number | undefined;
  readonly #ino: number | undefined;

  constructor(path: string) {
    this.path = path;
    const stats = statSync(path, IF_THERE);
    this.#dev = stats?.dev;
    this.#ino = stats?.ino;
  }

  isReplaced(): boolean {
    const stats = statSync(this.path, IF_THERE);
    return stats?.ino !== this.#ino || stats?.dev !== this.#dev;
  }
}
