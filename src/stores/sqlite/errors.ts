import { HoldfastError, StoreUnavailableError } from "../../core/errors.js";
import { findUnusableLogFile } from "./file.js";

/** SQLite's primary result codes. */
const CODES = {
  busy: 5,
  locked: 6,
  readOnly: 8,
  inputOutput: 10,
  corrupt: 11,
  full: 13,
  cantOpen: 14,
  notADatabase: 26,
};

/** Node's file functions fail with these where SQLite would fail with its own codes. */
const CODES_OF_SYSTEM_ERRORS: Record<string, number> = {
  EROFS: CODES.readOnly,
  ENOSPC: CODES.full,
  ENOENT: CODES.cantOpen,
  EACCES: CODES.cantOpen,
  EISDIR: CODES.cantOpen,
  ENOTDIR: CODES.cantOpen,
};

/** The problem with the file for each code. `isFinal`: nothing was written, and a retry won't help. */
const PROBLEMS: Record<number, { text: string; isFinal: boolean }> = {
  [CODES.busy]: {
    text: "is locked by another process; retry, or end the transaction that it keeps open",
    isFinal: false,
  },
  [CODES.locked]: {
    text: "is locked by another statement of this connection; give the store a connection of its own",
    isFinal: false,
  },
  [CODES.readOnly]: {
    text: "can't be written: the file, its folder or the file system is read-only",
    isFinal: true,
  },
  [CODES.inputOutput]: {
    text: "can't be read or written (I/O error): check the disk",
    isFinal: false,
  },
  [CODES.corrupt]: {
    text: "is damaged; stop all processes that use it, then restore or delete it",
    isFinal: true,
  },
  [CODES.full]: { text: "can't grow: the disk is full; make room", isFinal: false },
  [CODES.cantOpen]: {
    text: "can't be opened: is it a file, does its folder exist, and may this user write there?",
    isFinal: true,
  },
  [CODES.notADatabase]: { text: "is not an SQLite database; name another file", isFinal: true },
};

/** SQLite's own messages: `all` of `@photostructure/sqlite` leaves the number out. */
const CODES_OF_MESSAGES: Record<string, number> = {
  "database is locked": CODES.busy,
  "attempt to write a readonly database": CODES.readOnly,
  "disk I/O error": CODES.inputOutput,
  "database disk image is malformed": CODES.corrupt,
  "database or disk is full": CODES.full,
  "unable to open database file": CODES.cantOpen,
};

/** `node:sqlite` and `@photostructure/sqlite` give the number, better-sqlite3 the name. */
function resultCode(error: unknown): number | null {
  const { errcode, code, message } = (error ?? {}) as Record<string, unknown>;
  if (typeof errcode === "number") return errcode & 0xff;
  if (code === "ERR_SQLITE_ERROR") return CODES_OF_MESSAGES[String(message)] ?? null;
  if (code === "SQLITE_BUSY") return CODES.busy;
  return CODES_OF_SYSTEM_ERRORS[String(code)] ?? null;
}

export const isBusy = (error: unknown): boolean => hasCode(error, CODES.busy);

export const isFull = (error: unknown): boolean => hasCode(error, CODES.full);

/** On an open connection this code means that SQLite can't open the log. */
export const isCantOpen = (error: unknown): boolean => hasCode(error, CODES.cantOpen);

/** On an open connection this code may also mean that the log is open for reading alone. */
export const isReadOnly = (error: unknown): boolean => hasCode(error, CODES.readOnly);

const hasCode = (error: unknown, code: number): boolean =>
  [error, (error as Error).cause].some((one) => resultCode(one) === code);

/** Whether the error is about the file, and not about a statement or its values. */
export const isFileProblem = (error: unknown): boolean => (resultCode(error) ?? -1) in PROBLEMS;

/** `file` follows the words "the SQLite file". */
export function toStoreError(error: unknown, file: string): HoldfastError {
  if (HoldfastError.is(error)) return error;
  const code = resultCode(error) ?? -1;
  const mayBeLog = code === CODES.readOnly || code === CODES.cantOpen;
  const log = mayBeLog ? findUnusableLogFile(file) : null;
  const known =
    log === null
      ? PROBLEMS[code]
      : { text: `can't be used: ${log.what}. ${log.advice}`, isFinal: true };
  const text = known?.text ?? `failed: ${error instanceof Error ? error.message : String(error)}`;
  return new StoreUnavailableError(`the SQLite file ${file} ${text}`, {
    cause: error,
    retryable: !(known?.isFinal ?? false),
  });
}
