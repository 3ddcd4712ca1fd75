import { pause } from "./pause.js";
import { type Runtime, systemRuntime } from "./runtime.js";

/** How a compare-and-set is repeated. */
export interface ConflictRule {
  /** How often it is tried again. */
  readonly retries: number;
  /** The longest pause after the first conflict. It doubles with each conflict, up to `maxMs`. */
  readonly firstMs: number;
  readonly maxMs: number;
  readonly signal?: AbortSignal | undefined;
}

/**
 * Repeats an attempt that resolves to null because another write came first. Each pause is a random share of the
 * longest one (full jitter), so that writers that collided once do not collide again. Rejects with `exhausted()`
 * when the last attempt has failed.
 */
export async function retryConflicts<T>(
  { retries, firstMs, maxMs, signal }: ConflictRule,
  attempt: (number: number) => Promise<T | null>,
  exhausted: (attempts: number) => Error,
  { clock, random }: Pick<Runtime, "clock" | "random"> = systemRuntime(),
): Promise<T> {
  for (let i = 1; ; i++) {
    signal?.throwIfAborted();
    const done = await attempt(i);
    if (done !== null) return done;
    if (i > retries) throw exhausted(i);
    const longestMs = Math.min(maxMs, firstMs * 2 ** Math.min(i - 1, 30));
    await pause(clock, random.unit() * longestMs, signal);
  }
}
