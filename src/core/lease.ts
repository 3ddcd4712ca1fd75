import type { LeaseLostError } from "./errors.js";
import type { SequencerOptions } from "./sequencer.js";
import type { ClaimMode } from "./store.js";
import type { Duration } from "./validate.js";

/**
 * `held`: proved. `jeopardy`: renewal is failing, the lease is still good. `lost`: can no longer be
 * proved. `released`: given back.
 */
export type LeaseState = "held" | "jeopardy" | "lost" | "released";

/**
 * `released`: the name is free. `lost`: the lease was lost before. `unknown`: the store did not reply;
 * if the release has not reached it, the name is free after the ttl.
 */
export type ReleaseResult = "released" | "lost" | "unknown";

/** The events of `lease.on`, and the arguments of their listeners. */
export interface LeaseEvents {
  /** A renewal failed, or got no reply in time. The lease is still good. */
  jeopardy: (cause: unknown) => void;
  /** A renewal succeeded after `jeopardy`. */
  recovered: () => void;
  /** The lease is lost: stop the work. */
  lost: (error: LeaseLostError) => void;
}

/** The right to hold a name for a while, renewed by the watchdog until released or lost. */
export interface Lease extends AsyncDisposable {
  /** The name that is locked. */
  readonly name: string;
  /** The fencing token: higher than that of every earlier grant of the name. */
  readonly token: bigint;
  /** The lowest token that still held the name when this one was granted. */
  readonly floor: bigint;
  /** A label for people: host, process, and `note`. */
  readonly holder: string;
  /** `exclusive` or `shared` for a lock, `permits` for a semaphore. */
  readonly mode: ClaimMode;
  /** How many permits of a semaphore it holds; 1 for a lock. */
  readonly permits: number;
  /** Reads the clock, so it is right after a stalled event loop too. */
  readonly state: LeaseState;
  /** Milliseconds until the signal aborts, if no renewal succeeds. */
  readonly remainingMs: number;
  /** Aborts with a `LeaseLostError` as soon as the lease is lost. */
  readonly signal: AbortSignal;
  /** Throws `LeaseLostError` unless held. Reads the clock, so it is right after a stalled event loop too. */
  assertHeld(): void;
  /**
   * Adds a listener, which is called in the asynchronous context of this call. A listener of `lost`
   * that comes after the loss is called in a microtask. An error that a listener throws is an uncaught
   * exception.
   */
  on<E extends keyof LeaseEvents>(event: E, listener: LeaseEvents[E]): this;
  /** Removes a listener. */
  off<E extends keyof LeaseEvents>(event: E, listener: LeaseEvents[E]): this;
  /**
   * Renews now. The lease is good for `ttl` (default: as before) from now, and is renewed with that
   * ttl from then on. Rejects with `LeaseLostError` when the lease is lost, `StoreUnavailableError`
   * when the renewal fails or gets no reply within `commandTimeout`, and `InvalidArgumentError`.
   */
  renew(ttl?: Duration): Promise<void>;
  /** Releases the name. Idempotent; never rejects. */
  release(): Promise<ReleaseResult>;
  /**
   * The lease as text that travels with requests, for `readSequencer` and `checkSequencer` of
   * `holdfast/fence`: name, mode, token, floor, holder and time, signed if you pass a `key`. Throws
   * `LeaseLostError` unless held, and `InvalidArgumentError` for a bad key.
   */
  sequencer(options?: SequencerOptions): string;
  /** For `JSON.stringify`, which refuses a bigint: tokens as strings. */
  toJSON(): { name: string; token: string; floor: string; holder: string; mode: ClaimMode };
}
