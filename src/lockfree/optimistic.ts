import { retryConflicts } from "../core/conflicts.js";
import { ConflictError, InvalidArgumentError } from "../core/errors.js";
import { type Runtime, systemRuntime } from "../core/runtime.js";
import {
  checkNumber,
  checkOptions,
  checkSignal,
  type Duration,
  orElse,
  parseDuration,
  show,
} from "../core/validate.js";

/** The steps that `optimistic` repeats, and how often. */
export interface OptimisticOptions<State, Result> {
  /** Reads the value and its version. Called once for each attempt. */
  readonly read: () => State | Promise<State>;
  /**
   * Writes if the version is still that one. Returns false if it is another: a conflict. Any other value is
   * the result, also 0 and undefined: return `rowCount === 1`, not `rowCount`. An error ends the loop, because
   * it is not known whether the write was done.
   */
  readonly write: (state: State, attempt: number) => Result | false | Promise<Result | false>;
  /** How often it is tried again after a conflict. Default 8. */
  readonly retries?: number | undefined;
  /** The longest pause after the first conflict (2 ms), which doubles up to `max` (100 ms). Each pause is a random share of it. */
  readonly backoff?:
    | { readonly first?: Duration | undefined; readonly max?: Duration | undefined }
    | undefined;
  /** Ends the loop before the next read, write or pause; a write that was sent is waited for. */
  readonly signal?: AbortSignal | undefined;
  /** Counts attempts and conflicts; the same object may serve many calls. */
  readonly stats?: ConflictStats | undefined;
  /** The name of the changed value in errors. Default "the value". */
  readonly resource?: string | undefined;
}

/** Counts how often writers meet, for a decision between this and a lock. */
export class ConflictStats {
  /** Calls that ended with a result. Those that ended with an error, or by their signal, are in no count of calls. */
  written = 0;
  /** Calls that gave up after their last attempt. */
  givenUp = 0;
  /** Writes that were tried. */
  attempts = 0;
  /** Writes that came too late. */
  conflicts = 0;

  /** The share of attempts that met a conflict, from 0 to 1. From about a half on, a lock does less work. */
  get conflictRate(): number {
    return this.attempts === 0 ? 0 : this.conflicts / this.attempts;
  }
}

const OPTIONS = ["read", "write", "retries", "backoff", "signal", "stats", "resource"];

/**
 * Changes a value without a lock: reads it, and writes only if nobody has changed it since; otherwise it begins
 * again, after a random pause that grows. Resolves to the result of `write`. Rejects with `ConflictError` if
 * others were faster at every attempt, with the error of `read` or `write`, and with the signal's reason.
 *
 * @example
 * ```ts
 * import { optimistic } from "holdfast/lockfree";
 *
 * let row = { count: 5, version: 1 };
 * const left = await optimistic({
 *   read: () => row,
 *   write: (seen) => {
 *     if (row.version !== seen.version) return false; // somebody else was faster
 *     row = { count: seen.count - 1, version: seen.version + 1 };
 *     return { count: row.count };
 *   },
 *   retries: 8,
 * });
 * ```
 */
export async function optimistic<State, Result>(
  options: OptimisticOptions<State, Result>,
): Promise<Result> {
  return optimisticOn(systemRuntime(), options);
}

/** Like `optimistic`, with your own clock and randomness, for tests. */
export async function optimisticOn<State, Result>(
  runtime: Pick<Runtime, "clock" | "random">,
  options: OptimisticOptions<State, Result>,
): Promise<Result> {
  checkOptions(options, "the options of optimistic", OPTIONS);
  const { read, write, stats } = options;
  if (typeof read !== "function" || typeof write !== "function") {
    throw new InvalidArgumentError(
      `read is ${show(read)} and write is ${show(write)}; both must be functions`,
    );
  }
  const done = await retryConflicts(
    ruleOf(options),
    async (attempt) => {
      const state = await read();
      options.signal?.throwIfAborted();
      if (stats !== undefined) stats.attempts++;
      const result = await write(state, attempt);
      if (result !== false) return { result };
      if (stats !== undefined) stats.conflicts++;
      return null;
    },
    (attempts) => {
      if (stats !== undefined) stats.givenUp++;
      return new ConflictError(options.resource ?? "the value", attempts);
    },
    runtime,
  );
  if (stats !== undefined) stats.written++;
  return done.result;
}

function ruleOf<S, R>({ retries, backoff, signal, stats }: OptimisticOptions<S, R>) {
  const pauses = orElse(backoff, {});
  checkOptions(pauses, "the options of backoff", ["first", "max"]);
  if (stats !== undefined && !(stats instanceof ConflictStats)) {
    throw new InvalidArgumentError(`stats is ${show(stats)}; it must be new ConflictStats()`);
  }
  return {
    retries: checkNumber(orElse(retries, 8), "retries", { min: 0, max: 1_000, integer: true }),
    firstMs: parseDuration(orElse(pauses.first, 2), "backoff.first", { min: 0 }),
    maxMs: parseDuration(orElse(pauses.max, 100), "backoff.max", { min: 0 }),
    signal: checkSignal(signal),
  };
}
