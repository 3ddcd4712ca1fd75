import { HoldfastError, StoreUnavailableError } from "../../core/errors.js";
import { findUnusableLogFile } from "./log-files.js";

const BUSY = 5;
const LOCKED = 6;
const READ_ONLY = 8;
const CANT_OPEN = 14;

/** SQLite's primary result codes, and what to tell the user of them. `sure`: nothing was written, and trying again won't help. */
const EXPLAINED: Record<number, { text: string; sure: boolean }> = {
  [BUSY]: { text: "is locked by another process", sure: false },
  [LOCKED]: { text: "is locked by another statement of this connection", sure: false },
  [READ_ONLY]: {
    text: "can't be written: the file, its folder or the file system is read-only",
    sure: true,
  },
  10: { text: "can't be read or written (I/O error)", sure: false },
  11: { text: "is damaged; restore it, or delete it when nobody uses it", sure: true },
  13: { text: "can't grow: the disk is full", sure: false },
  [CANT_OPEN]: {
    text: "can't be opened: is it a file, does its folder exist, and may this user write there?",
    sure: true,
  },
  26: { text: "is not an SQLite database", sure: true },
};

/** `node:sqlite` and its like give the number, others (better-sqlite3) the name. */
function resultCode(error: unknown): number | null {
  const { errcode, code } = (error ?? {}) as { errcode?: unknown; code?: unknown };
  if (typeof errcode === "number") return errcode & 0xff;
  return code === "SQLITE_BUSY" ? BUSY : null;
}

export const isBusy = (error: unknown): boolean => resultCode(error) === BUSY;

/** Of an opened database: its log can't be opened. */
export const isUnopenable = (error: unknown): boolean =>
  [error, (error as Error).cause].some((one) => resultCode(one) === CANT_OPEN);

export function explain(error: unknown, file: string): HoldfastError {
  if (HoldfastError.is(error)) return error;
  const code = resultCode(error) ?? -1;
  const log = code === READ_ONLY || code === CANT_OPEN ? findUnusableLogFile(file) : null;
  const known =
    log === null
      ? EXPLAINED[code]
      : { text: `can't be used: ${log.what}. ${log.advice}`, sure: true };
  const text = known?.text ?? `failed: ${error instanceof Error ? error.message : String(error)}`;
  return new StoreUnavailableError(`the SQLite file ${file} ${text}`, {
    cause: error,
    retryable: !(known?.sure ?? false),
  });
}
