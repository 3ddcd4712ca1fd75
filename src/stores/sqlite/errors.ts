import { HoldfastError, StoreUnavailableError } from "../../core/errors.js";

const BUSY = 5;
const LOCKED = 6;

/** SQLite's primary result codes, and what to tell the user of them. `sure`: nothing was written, and trying again won't help. */
const EXPLAINED: Record<number, { text: string; sure: boolean }> = {
  [BUSY]: { text: "is locked by another process", sure: false },
  [LOCKED]: { text: "is locked by another statement of this connection", sure: false },
  8: { text: "can't be written: the file, its folder or the file system is read-only", sure: true },
  10: { text: "can't be read or written (I/O error)", sure: false },
  11: { text: "is damaged; restore it, or delete it when nobody uses it", sure: true },
  13: { text: "can't grow: the disk is full", sure: false },
  14: {
    text: "can't be opened: does its folder exist, and may this user write there?",
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

export function explain(error: unknown, file: string): HoldfastError {
  if (HoldfastError.is(error)) return error;
  const known = EXPLAINED[resultCode(error) ?? -1];
  const text = known?.text ?? `failed: ${error instanceof Error ? error.message : String(error)}`;
  return new StoreUnavailableError(`the SQLite file ${file} ${text}`, {
    cause: error,
    retryable: !(known?.sure ?? false),
  });
}
