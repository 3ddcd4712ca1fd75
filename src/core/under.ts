import { InvalidArgumentError, LeaseLostError } from "./errors.js";
import type { ReleaseResult } from "./lease.js";
import { checkOneOf, orElse, show } from "./validate.js";

/** What work can be done under: a lease, or several as one. */
export interface Held {
  readonly signal: AbortSignal;
  assertHeld(): void;
  release(): Promise<ReleaseResult>;
  /** Before anybody has worked under it. */
  abandon?(): Promise<ReleaseResult>;
}

export type OnLost = "throw" | "return";

export const checkOnLost = (value: OnLost | undefined): OnLost =>
  checkOneOf(orElse(value, "throw"), "onLost", ["throw", "return"]);

type Work<Held, T> = (held: Held) => T | Promise<T>;

/** Options may be left out before `fn`. */
export function optionsAndFn<Options, Held, T>(
  first: Options | undefined | Work<Held, T>,
  second: Work<Held, T> | undefined,
  of: string,
): [Options, Work<Held, T>] {
  if (typeof first === "function" && second !== undefined) {
    throw new InvalidArgumentError(`${of} takes its options before the function`);
  }
  const [options, fn] =
    typeof first === "function" ? [undefined, first as Work<Held, T>] : [first, second];
  if (typeof fn === "function") return [orElse(options, {} as Options), fn];
  throw new InvalidArgumentError(`fn is ${show(fn)}; ${of} needs a function to run`);
}

/**
 * Runs `enter` and then `fn`, and gives the lease back; results, errors and losses come out as what
 * they are. When it fails before `fn`, nobody has worked under the lease.
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
      await enter();
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
  throw again(loss, { value, cause: loss });
}

function lossOf({ signal }: Held): LeaseLostError | null {
  return signal.aborted ? (signal.reason as LeaseLostError) : null;
}

/** If what `fn` threw was our own abort, the loss is the news and the error its cause. */
function lossBehind(error: unknown, held: Held): unknown {
  const loss = lossOf(held);
  if (loss === null || error === loss) return error;
  return isAbortOf(error, loss) ? again(loss, { cause: error }) : error;
}

/** Thrown because the signal has aborted, by us or by something that was given it. */
export const isAbortOf = (error: unknown, reason: unknown): boolean =>
  error === reason ||
  (error instanceof Error && (error.name === "AbortError" || error.cause === reason));

/** The same loss, in the same words: they say by whom it was revoked, and why. */
function again(loss: LeaseLostError, more: { value?: unknown; cause: unknown }): LeaseLostError {
  const error = new LeaseLostError({ name: loss.lockName, token: loss.token }, loss.reason, more);
  error.message = loss.message;
  return error;
}
