import { setTimeout as pause } from "node:timers/promises";
import { isBusy } from "./errors.js";

/** A file that other processes keep locked for longer than this makes the store unavailable. */
export const BUSY_TIMEOUT_MS = 4_000;

/**
 * Retries while the file is locked, or while `isRetryable` says so. SQLite's own busy timeout would
 * block the event loop.
 */
export async function retryWhileBusy<T>(
  step: () => T,
  isRetryable: (error: unknown) => boolean = () => false,
): Promise<T> {
  const untilMs = performance.now() + BUSY_TIMEOUT_MS;
  for (;;) {
    try {
      return step();
    } catch (error) {
      const mayRetry = isBusy(error) || isRetryable(error);
      if (!mayRetry || performance.now() > untilMs) throw error;
      await pause(5 + Math.random() * 10);
    }
  }
}
