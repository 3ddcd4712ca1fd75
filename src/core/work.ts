import { unlessAborted } from "./abort.js";
import { InvalidArgumentError, LeaseLostError } from "./errors.js";
import type { ReleaseResult } from "./lease.js";
import { checkOneOf, orElse, show } from "./validate.js";

/** A lease, or several as one, under which work can be done. */
export interface Held {
  readonly signal: AbortSignal;
  assertHeld(): void;
  release(): Promise<ReleaseResult>;
  /** Releases it before any work has run under it. */
  abandon?(): Promise<ReleaseResult>;
}

/** When the work succeeds but its lease was lost: reject with `LeaseLostError`, or return the result. */
export type OnLost = "throw" | "return";

export const checkOnLost = (value: OnLost | undefined): OnLost =>
  checkOneOf(orElse(value, "throw"), "onLost", ["throw", "return"]);

type Work<L, T> = (lease: L) => T | Promise<T>;

/** Reads the arguments of a call whose options may be left out before `fn`. */
export function optionsAndFn<Options, L, T>(
  first: Options | undefined | Work<L, T>,
  second: Work<L, T> | undefined,
  of: string,
): [Options, Work<L, T>] {
  if (typeof first === "function" && second !== undefined) {
    throw new InvalidArgumentError(`${of} takes its options before the function`);
  }
  const [options, fn] =
    typeof first === "function" ? [undefined, first as Work<L, T>] : [first, second];
  checkWork(fn, of);
  return [orElse(options, {} as Options), fn!];
}

/** Throws InvalidArgumentError unless `fn` is a function; `of` is what would run it. */
export function checkWork(fn: unknown, of: string): void {
  if (typeof fn === "function") return;
  throw new InvalidArgumentError(`fn is ${show(fn)}; ${of} needs a function to run`);
}

/**
 * Runs `enter` and then `fn`, and releases the lease. Returns the result, or throws the error of `fn`
 * or the loss. When it fails before `fn`, nobody has worked under the lease.
 */
export async function workUnder<T>(
  held: Held,
  onLost: OnLost,
  fn: () => Promise<T>,
  enter?: () => Promise<void>,
): Promise<T> {
  let value: T;
  try {
    held.assertHeld();
    if (enter !== undefined) {
      // A fence that never replies must not delay the loss.
      await unlessAborted(enter(), held.signal);
      held.assertHeld();
    }
  } catch (error) {
    await (held.abandon?.() ?? held.release());
    throw lossBehind(error, held);
  }
  try {
    value = await fn();
  } catch (error) {
    await held.release();
    throw lossBehind(error, held);
  }
  await held.release();
  const loss = lossOf(held);
  if (loss === null || onLost === "return") return value;
  throw copyLoss(loss, { value, cause: loss });
}

function lossOf({ signal }: Held): LeaseLostError | null {
  return signal.aborted ? (signal.reason as LeaseLostError) : null;
}

/** If `fn` threw our own abort, the loss becomes the error, and the thrown error its cause. */
function lossBehind(error: unknown, held: Held): unknown {
  const loss = lossOf(held);
  if (loss === null || error === loss) return error;
  return isAbortOf(error, loss) ? copyLoss(loss, { cause: error }) : error;
}

/** Whether the error was thrown because the signal aborted, by us or by code that got the signal. */
export const isAbortOf = (error: unknown, reason: unknown): boolean =>
  error === reason ||
  (error instanceof Error && (error.name === "AbortError" || error.cause === reason));

/** A copy of the loss with the same message, which names the client that revoked it, and why. */
function copyLoss(loss: LeaseLostError, more: { value?: unknown; cause: unknown }): LeaseLostError {
  const error = new LeaseLostError({ name: loss.lockName, token: loss.token }, loss.reason, more);
  error.message = loss.message;
  return error;
}
