import { printable } from "./text.js";

/** A registered symbol, so that two installed copies of Holdfast recognise each other's errors. */
const brand = Symbol.for("holdfast.error");

/** The `code` of a `HoldfastError`. */
export type ErrorCode =
  | "ACQUIRE_TIMEOUT"
  | "LEASE_LOST"
  | "STALE_TOKEN"
  | "STORE_UNAVAILABLE"
  | "INVALID_ARGUMENT"
  | "UNSUPPORTED"
  | "CLOSED"
  | "QUEUE_FULL"
  | "CONFLICT"
  | "IN_PROGRESS"
  | "OTHER_REQUEST"
  | "STORED_FAILURE"
  | "RATE_LIMITED";

/** The base of all errors of Holdfast. */
export class HoldfastError extends Error {
  /** Stays the same between versions: compare this, not the message. */
  readonly code: ErrorCode;
  /** Whether the same call may succeed later. */
  readonly retryable: boolean;

  constructor(code: ErrorCode, message: string, retryable: boolean, cause?: unknown) {
    // The message may contain text of holders, names and servers.
    super(printable(message), cause === undefined ? undefined : { cause });
    this.code = code;
    this.retryable = retryable;
    this.name = new.target.name;
    Object.defineProperty(this, brand, { value: true });
  }

  /** For `JSON.stringify`, which refuses a bigint: tokens as strings. */
  toJSON(): object {
    const fields = Object.entries(this).map(([key, value]) => [
      key,
      typeof value === "bigint" ? String(value) : value,
    ]);
    return { ...Object.fromEntries(fields), name: this.name, message: this.message };
  }

  /** Whether the value is an error of any installed copy of Holdfast. */
  static is(value: unknown): value is HoldfastError {
    return value instanceof Error && brand in value;
  }
}

/** The name stayed busy for the whole `wait`. */
export class AcquireTimeoutError extends HoldfastError {
  /** The name that stayed busy. */
  readonly lockName: string;
  /** How long the caller waited, in milliseconds. */
  readonly waitMs: number;
  /** The holder in the store's last reply; null if there was none. */
  readonly holder: string | null;

  constructor(lockName: string, waitMs: number, holder: string | null) {
    const by = holder === null ? "" : ` by ${holder}`;
    super(
      "ACQUIRE_TIMEOUT",
      waitMs === 0
        ? `${JSON.stringify(lockName)} is held${by}; tried once, because wait is 0`
        : `${JSON.stringify(lockName)} was still held${by} after waiting ${Math.round(waitMs)} ms`,
      true,
    );
    this.lockName = lockName;
    this.waitMs = waitMs;
    this.holder = holder;
  }
}

/** The name has so many waiters that the store, or the queue of a tool in this process, takes no more. */
export class QueueFullError extends HoldfastError {
  /** The name whose queue is full. */
  readonly lockName: string;
  /** How many waited when it refused. */
  readonly waiting: number;

  constructor(lockName: string, waiting: number, where: "store" | "process" = "store") {
    super(
      "QUEUE_FULL",
      `${JSON.stringify(lockName)} has ${waiting} waiters already, and ` +
        (where === "store"
          ? "the store takes no more; try again later, claim once with wait: 0, or spread the work over several names"
          : "the queue of this process takes no more; add more slowly, or let those that wait run first"),
      true,
    );
    this.lockName = lockName;
    this.waiting = waiting;
  }
}

/**
 * Why a lease was lost. `expired`: it could not be renewed in time. `revoked`: by `forceRelease`.
 * `superseded`: the store has granted the name to another. `max-hold`: `maxHold` is over.
 * `released`: it is used after its release. `closed`: its `Locks` was closed.
 */
export type LossReason = "expired" | "revoked" | "superseded" | "max-hold" | "released" | "closed";

/** The lease can no longer be proved. The reason of `lease.signal`. */
export class LeaseLostError extends HoldfastError {
  /** The name that the lease was for. */
  readonly lockName: string;
  /** The token of the lost lease. */
  readonly token: bigint;
  /** Why the lease was lost. */
  readonly reason: LossReason;
  /** The result of `fn`, if `withLock` finds that the lease was lost before `fn` ended. */
  readonly value: unknown;

  constructor(
    lease: { readonly name: string; readonly token: bigint },
    reason: LossReason,
    more: { detail?: string; why?: string; value?: unknown; cause?: unknown } = {},
  ) {
    const why = more.why === undefined ? "" : ` ${more.why}`;
    const detail = `${more.detail ?? LOSS_DETAIL[reason]}${why}`;
    super(
      "LEASE_LOST",
      `the lease on ${JSON.stringify(lease.name)} (token ${lease.token}) is lost: ${detail}`,
      true,
      more.cause,
    );
    this.lockName = lease.name;
    this.token = lease.token;
    this.reason = reason;
    this.value = more.value;
  }
}

/** Each reason of a loss, in words. */
export const LOSS_DETAIL: Record<LossReason, string> = {
  expired: "it could not be renewed in time",
  revoked: "it was released by force",
  superseded: "the store has granted the name to another",
  "max-hold": "maxHold is over",
  released: "it was released",
  closed: "close() was called on its Locks object",
};

/** A fence has refused the token: a later holder has entered the resource. */
export class StaleTokenError extends HoldfastError {
  /** The resource as the fence calls it. */
  readonly resource: string;
  /** The token that was refused. */
  readonly token: bigint;
  /** The highest floor that the fence has seen. */
  readonly highest: bigint;

  constructor(resource: string, token: bigint, highest: bigint, detail?: string) {
    super(
      "STALE_TOKEN",
      detail ??
        `token ${token} is stale for ${JSON.stringify(resource)}: a later holder has entered with ${highest}`,
      false,
    );
    this.resource = resource;
    this.token = token;
    this.highest = highest;
  }
}

/** The store did not reply, or can't be used. Never means that the name is held. */
export class StoreUnavailableError extends HoldfastError {
  constructor(message: string, more: { cause?: unknown; retryable?: boolean } = {}) {
    super("STORE_UNAVAILABLE", message, more.retryable ?? true, more.cause);
  }
}

/** An argument or an option is not valid; the message says which, and what is. */
export class InvalidArgumentError extends HoldfastError {
  constructor(message: string) {
    super("INVALID_ARGUMENT", message, false);
  }
}

/** The store can't do this; the message says why. */
export class UnsupportedError extends HoldfastError {
  constructor(message: string, cause?: unknown) {
    super("UNSUPPORTED", message, false, cause);
  }
}

/** Others have changed the row at every attempt, between its reading and its writing. */
export class ConflictError extends HoldfastError {
  /** The row or record that was to be changed. */
  readonly resource: string;
  /** How often it was tried. */
  readonly attempts: number;

  constructor(resource: string, attempts: number) {
    super(
      "CONFLICT",
      `${resource} was changed by others during ${attempts === 1 ? "the only attempt" : `each of ${attempts} attempts`}; nothing was written: try again later, or use a lock`,
      true,
    );
    this.resource = resource;
    this.attempts = attempts;
  }
}

/** The `Locks` was closed before the call, or while it was pending. */
export class ClosedError extends HoldfastError {
  constructor(what = "Locks object") {
    super("CLOSED", `close() was called on this ${what}: make another one`, false);
  }
}

/** Another caller of `idempotent` works under the same key, and did not finish within `wait`. */
export class InProgressError extends HoldfastError {
  /** The key as it was given to `idempotent`. */
  readonly key: string;

  constructor(key: string, cause: unknown) {
    super(
      "IN_PROGRESS",
      `another caller works under the key ${JSON.stringify(key)}: call again with the same key to get its result, or wait longer`,
      true,
      cause,
    );
    this.key = key;
  }
}

/** A key of `idempotent` was used before, for a request with another fingerprint. */
export class OtherRequestError extends HoldfastError {
  /** The key as it was given to `idempotent`. */
  readonly key: string;

  constructor(key: string) {
    super(
      "OTHER_REQUEST",
      `the key ${JSON.stringify(key)} was used for another request: its fingerprint differs. Use a new key for a new request`,
      false,
    );
    this.key = key;
  }
}

/** The work of this key has failed before, and `idempotent` has kept the failure. */
export class StoredFailureError extends HoldfastError {
  /** The key as it was given to `idempotent`. */
  readonly key: string;
  /** The error as it was thrown then. */
  readonly failure: { readonly name: string; readonly message: string; readonly code?: string };

  constructor(key: string, failure: { name: string; message: string; code?: string }) {
    super(
      "STORED_FAILURE",
      `the work under the key ${JSON.stringify(key)} has failed, and the failure is kept: ${failure.name}: ${failure.message}`,
      false,
    );
    this.key = key;
    this.failure = failure;
  }
}

/** A rate limiter did not allow the units within `wait`. Nothing was taken. */
export class RateLimitedError extends HoldfastError {
  /** The name of the limiter. */
  readonly limiter: string;
  /** When the same request can succeed, if nobody else takes. */
  readonly retryAfterMs: number;

  /** `isBehind`: its wait was over while earlier calls of the same process still waited. */
  constructor(limiter: string, units: number, retryAfterMs: number, isBehind = false) {
    const ms = Math.ceil(retryAfterMs);
    super(
      "RATE_LIMITED",
      `the limiter ${JSON.stringify(limiter)} ` +
        (isBehind
          ? `did not come to this call for ${units} units within its wait, because earlier calls of this process wait for theirs: try again, at the earliest in ${ms} ms`
          : `does not have ${units} units for the next ${ms} ms, which is longer than the wait: try again after that`),
      true,
    );
    this.limiter = limiter;
    this.retryAfterMs = retryAfterMs;
  }
}
