import { setTimeout as pause } from "node:timers/promises";
import { isBusy } from "./errors.js";

/** How long a file that others keep locked is tried again before the store counts as unavailable. */
export const PATIENCE_MS = 4_000;

/** Tries again while the file is busy, or `isWorthIt` says so, without blocking the event loop as SQLite's own timeout would. */
export async function patiently<T>(
  step: () => T,
  isWorthIt: (error: unknown) => boolean = () => false,
): Promise<T> {
  const untilMs = performance.now() + PATIENCE_MS;
  for (;;) {
    try {
      return step();
    } catch (error) {
      const again = isBusy(error) || isBusy((error as Error).cause) || isWorthIt(error);
      if (!again || performance.now() > untilMs) throw error;
      await pause(5 + Math.random() * 10);
    }
  }
}
