import { isLate } from "../../core/clock.js";
import { LAST_REPLY_MS } from "../../core/reply-timeout.js";

/** Whether the promise settles within the time. Rejects as the promise does. */
export async function settlesWithin(
  ms: number,
  promise: Promise<unknown>,
  { unref = false } = {},
): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<false>((resolve) => {
    const after = (delayMs: number, run: () => void): void => {
      timer = setTimeout(run, delayMs);
      if (unref) timer.unref();
    };
    const timedOut = (): void => resolve(false);
    const dueAtMs = performance.now() + ms;
    after(ms, () => {
      // A reply that arrived while the process stood still is read after the timers.
      if (isLate(dueAtMs, performance.now())) after(LAST_REPLY_MS, timedOut);
      else timedOut();
    });
  });
  try {
    return await Promise.race([promise.then(() => true), timeout]);
  } finally {
    clearTimeout(timer);
  }
}

/** The promise's value, or a rejection with `timeoutError()` if it does not settle within the time. */
export async function within<T>(
  ms: number,
  promise: Promise<T>,
  timeoutError: () => Error,
  options?: { unref?: boolean },
): Promise<T> {
  if (await settlesWithin(ms, promise, options)) return promise;
  throw timeoutError();
}
