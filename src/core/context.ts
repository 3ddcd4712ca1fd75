import type { Agenda } from "./agenda.js";
import { ClosedError, InvalidArgumentError } from "./errors.js";
import type { Requests } from "./requests.js";
import type { Runtime } from "./runtime.js";
import type { Settings } from "./settings.js";
import type { Store } from "./store.js";
import { show } from "./validate.js";
import type { Watchdog } from "./watchdog.js";

/** The parts of one `Locks` that its waiters, leases and primitives share. */
export interface Context {
  readonly store: Store;
  readonly settings: Settings;
  readonly runtime: Runtime;
  /** Every lease that is neither lost nor released is on it, besides waiters and owed releases. */
  readonly agenda: Agenda;
  readonly requests: Requests;
  readonly watchdog: Watchdog;
  /** Aborts when the `Locks` begins to close. */
  readonly closing: AbortSignal;
  /** Waiters that are neither granted nor given up: `close` ends them. */
  readonly waiters: Set<{ close(): void }>;
}

export function assertOpen({ closing }: Context): void {
  if (closing.aborted) throw new ClosedError();
}

const contexts = new WeakMap<object, Context>();

export const registerContext = (locks: object, context: Context): void => {
  contexts.set(locks, context);
};

/**
 * For tools that are built on a `Locks`, and need more of its store than the interface has. Throws
 * InvalidArgumentError if the value was not made by `connect` or `createLocks` of this copy of Holdfast.
 */
export function contextOf(locks: object): Context {
  const context = contexts.get(locks);
  if (context !== undefined) return context;
  throw new InvalidArgumentError(
    `locks is ${show(locks)}; pass the object that connect() or createLocks() of this copy of Holdfast returned`,
  );
}
