import { contextOf } from "../core/context.js";
import { guarded } from "../core/events.js";
import type { Locks } from "../locks.js";

/** Gives the logger of the `Locks` an error that the client learns of only as status 503. */
export function logOutage(locks: Locks, what: string, error: unknown): void {
  const { logger } = contextOf(locks).settings;
  const { message } = error as Error;
  if (logger !== undefined) guarded(() => logger.warn(`${what} got 503: ${message}`, { error }));
}
