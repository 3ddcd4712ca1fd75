import type { LeaseLostError } from "./errors.js";
import type { ClaimMode } from "./store.js";
import type { Duration } from "./validate.js";

/** `held`: proved. `jeopardy`: renewal is failing, the lease is still good. `lost`: can no longer be proved. */
export type LeaseState = "held" | "jeopardy" | "lost" | "released";

/** `unknown`: the store did not answer; if it did not hear either, the name is free after the ttl. */
export type ReleaseResult = "released" | "lost" | "unknown";

export interface LeaseEvents {
  jeopardy: (cause: unknown) => void;
  recovered: () => void;
  lost: (error: LeaseLostError) => void;
}

/** The right to hold a name for a while, renewed by the watchdog until released or lost. */
export interface Lease extends AsyncDisposable {
  readonly name: string;
  /** The fencing token: higher than that of every earlier grant of the name. */
  readonly token: bigint;
  /** The lowest token that still held the name when this one was granted. */
  readonly floor: bigint;
  readonly holder: string;
  readonly mode: ClaimMode;
  /** Of a semaphore; 1 for a lock. */
  readonly permits: number;
  readonly state: LeaseState;
  /** Until the signal aborts, if no renewal succeeds. */
  readonly remainingMs: number;
  /** Aborts with a LeaseLostError as soon as the lease is lost. */
  readonly signal: AbortSignal;
  /** Throws LeaseLostError unless held. Reads the clock, so it is right after a stalled event loop too. */
  assertHeld(): void;
  /** A listener of `lost` that comes after the loss is called in a microtask. What a listener throws is an uncaught exception. */
  on<E extends keyof LeaseEvents>(event: E, listener: LeaseEvents[E]): this;
  off<E extends keyof LeaseEvents>(event: E, listener: LeaseEvents[E]): this;
  /** Good for `ttl` from now, and renewed with that ttl from then on. */
  renew(ttl?: Duration): Promise<void>;
  /** Gives the name back. Idempotent; never rejects. */
  release(): Promise<ReleaseResult>;
  toJSON(): { name: string; token: string; floor: string; holder: string; mode: ClaimMode };
}
