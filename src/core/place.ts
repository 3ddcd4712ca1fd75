import { StoreUnavailableError } from "./errors.js";

/** A value that is written only if nobody has changed it since it was read. */
export interface VersionedPlace<Value, Next = Value, Version = unknown> {
  /** The name of the value in errors. Default "the value". */
  readonly resource?: string | undefined;
  /** Reads value and version in one step. Null: there is nothing, and `write` can't make it. */
  read(): Promise<{ readonly value: Value; readonly version: Version } | null>;
  /**
   * Writes if the version is still that one, and resolves to the value that is there now. Resolves to false if
   * the version is another, and rejects if it is not known whether the write was done.
   */
  write(next: Next, version: Version): Promise<Value | false>;
}

/** The error of a write that may have been executed: to repeat the call could make the change twice. */
export const unknownOutcome = (
  resource: string,
  why: string,
  cause?: unknown,
): StoreUnavailableError =>
  new StoreUnavailableError(
    `${why}. ${resource} may have been written: read it before you make the change again`,
    { cause, retryable: false },
  );
