import type { Logger } from "./events.js";
import type { Duration } from "./validate.js";

/** How a lock is held: alone, or together with other `shared` holders. */
export type Mode = "exclusive" | "shared";

/** Options of a `Locks`. Those that a call has too are its defaults. */
export interface LocksOptions {
  /** How long a lease lasts without renewal. Default 30 s, or the longest that the store can keep if that is less. */
  ttl?: Duration | undefined;
  /** How long to wait for a busy name; `0` claims once, `Infinity` waits for ever. Default 10 s. */
  wait?: Duration | undefined;
  /** Clock drift allowed per ttl: a share of the ttl and milliseconds, subtracted from the lease. Default `{ factor: 0.01, ms: 2 }`. */
  drift?: { factor?: number | undefined; ms?: number | undefined } | undefined;
  /** The signal aborts this long before the lease's deadline. Default a tenth of each call's ttl. */
  abortBefore?: Duration | undefined;
  /** How long one request may take before its outcome counts as unknown. Default 5 s. */
  commandTimeout?: Duration | undefined;
  /**
   * Pauses between claims on a store that can't push: each is twice as long as the one before, from `min` to `max`, and
   * shortened by a random share of at most `jitter` (0 to 1), but not below `min`. Default
   * `{ min: 50, max: 1000, jitter: 0.5 }`, in milliseconds.
   */
  poll?:
    | {
        min?: Duration | undefined;
        max?: Duration | undefined;
        jitter?: number | undefined;
      }
    | undefined;
  /**
   * Pause after a request of unknown outcome, shortened by a random share of at most `jitter` (0 to 1). Default
   * `{ pause: 200, jitter: 0.5 }`, in milliseconds.
   */
  retry?: { pause?: Duration | undefined; jitter?: number | undefined } | undefined;
  /** A label for people. Default `host:pid`, with `#2` and so on for further `Locks` of the process. */
  holder?: string | undefined;
  /** Separates users of one store: 1 to 64 letters, digits, `_`, `.`, `-`. Default `"default"`. */
  namespace?: string | undefined;
  /** `"correctness"` demands `fenced: true` on every store, and refuses `onUnavailable: "run"`. Default `"efficiency"`. */
  purpose?: "efficiency" | "correctness" | undefined;
  /** You promise that the resource checks tokens, so that two holders at once do no harm. Default `false`. */
  fenced?: boolean | undefined;
  /** When the store can't be used, `withLock` throws, or runs without the lock. Default `"throw"`. */
  onUnavailable?: OnUnavailable | undefined;
  /** Closes these locks when the process gets a signal to end, or has nothing left to do. Default `false`. */
  releaseOnExit?: boolean | ReleaseOnExit | undefined;
  /** Added to every token, for moving to a store whose tokens start lower; below 2^62. Default `0n`. */
  tokenOffset?: bigint | undefined;
  /** Gets a line for every event. Default: none. */
  logger?: Logger | undefined;
}

/** Whether `withLock` throws or runs without the lock when the store is unavailable. */
export type OnUnavailable = "throw" | "run";

/** Options of `releaseOnExit`. */
export interface ReleaseOnExit {
  /** The signals that close the locks. Default SIGTERM, SIGINT and SIGHUP. */
  signals?: readonly NodeJS.Signals[] | undefined;
  /** How long work may take to stop after its signal has aborted, before its name is released. Default 5 s. */
  grace?: Duration | undefined;
}

/** Options of one acquire. */
export interface AcquireOptions {
  /** How long the lease lasts without renewal. Default: that of the `Locks`. */
  ttl?: Duration | undefined;
  /** How long to wait for a busy name; `0` claims once. Default: that of the `Locks`. */
  wait?: Duration | undefined;
  /** Ends the wait when it aborts; has no effect on a lease once granted. Default: none. */
  signal?: AbortSignal | undefined;
  /** How the name is held: alone, or together with other shared leases. Default `"exclusive"`. */
  mode?: Mode | undefined;
  /** Whether the watchdog renews the lease. Default `true`. */
  renew?: boolean | undefined;
  /** The longest time that the lease is held; then the signal aborts and the lease expires. Default `Infinity`. */
  maxHold?: Duration | undefined;
  /** The name stays closed for this long after the grant, even if released earlier. Default 0. */
  atLeast?: Duration | undefined;
  /** Text for people, shown beside the holder. Default: none. */
  note?: string | undefined;
  /** Inside a `withLock` of the same name that is reentrant too, shares its lease. Default `false`. */
  reentrant?: boolean | undefined;
  /** The signal aborts this long before the lease's deadline. Default: that of the `Locks`; else a tenth of this call's ttl. */
  abortBefore?: Duration | undefined;
}

export const LOCKS_OPTIONS = [
  "ttl",
  "wait",
  "drift",
  "abortBefore",
  "commandTimeout",
  "poll",
  "retry",
  "holder",
  "namespace",
  "purpose",
  "fenced",
  "onUnavailable",
  "releaseOnExit",
  "tokenOffset",
  "logger",
] as const;

export const ACQUIRE_OPTIONS = [
  "ttl",
  "wait",
  "signal",
  "mode",
  "renew",
  "maxHold",
  "atLeast",
  "note",
  "reentrant",
  "abortBefore",
] as const;

type AcquireOption = (typeof ACQUIRE_OPTIONS)[number];

/** The acquire options of a primitive that sets some of them itself. */
export const acquireOptionsBut = (...settled: AcquireOption[]): readonly AcquireOption[] =>
  ACQUIRE_OPTIONS.filter((option) => !settled.includes(option));
