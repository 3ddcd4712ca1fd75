import type { Lease } from "./lease.js";
import { printable } from "./text.js";

/** By registered symbol, so that two installed copies of Holdfast recognise each other's errors. */
const brand = Symbol.for("holdfast.error");

export type ErrorCode =
  | "ACQUIRE_TIMEOUT"
  | "LEASE_LOST"
  | "STALE_TOKEN"
  | "STORE_UNAVAILABLE"
  | "INVALID_ARGUMENT"
  | "UNSUPPORTED"
  | "CLOSED"
  | "QUEUE_FULL";

export class HoldfastError extends Error {
  /** Stable: compare this, not the message. */
  readonly code: ErrorCode;
  /** Whether the same call may succeed later. */
  readonly retryable: boolean;

  constructor(code: ErrorCode, message: string, retryable: boolean, cause?: unknown) {
    // Holders, names and servers have their say in it.
    super(printable(message), cause === undefined ? undefined : { cause });
    this.code = code;
    this.retryable = retryable;
    this.name = new.target.name;
    Object.defineProperty(this, brand, { value: true });
  }

  /** With tokens as text: `JSON.stringify` refuses a bigint. */
  toJSON(): object {
    const fields = Object.entries(this).map(([key, value]) => [
      key,
      typeof value === "bigint" ? String(value) : value,
    ]);
    return { ...Object.fromEntries(fields), name: this.name, message: this.message };
  }

  static is(value: unknown): value is HoldfastError {
    return value instanceof Error && brand in value;
  }
}

/** Held by others for as long as the call was willing to wait. */
export class AcquireTimeoutError extends HoldfastError {
  readonly lockName: string;
  readonly waitMs: number;
  /** Who held it when last seen. */
  readonly holder: string | null;

  constructor(lockName: string, waitMs: number, holder: string | null) {
    const by = holder === null ? "" : ` by ${holder}`;
    super(
      "ACQUIRE_TIMEOUT",
      waitMs === 0
        ? `${JSON.stringify(lockName)} is held${by}; asked once (wait: 0)`
        : `${JSON.stringify(lockName)} was still held${by} after waiting ${Math.round(waitMs)} ms`,
      true,
    );
    this.lockName = lockName;
    this.waitMs = waitMs;
    this.holder = holder;
  }
}

/** So many wait for the name already that the store takes no more waiters. */
export class QueueFullError extends HoldfastError {
  readonly lockName: string;
  /** How many waited when the store refused. */
  readonly waiting: number;

  constructor(lockName: string, waiting: number) {
    super(
      "QUEUE_FULL",
      `${JSON.stringify(lockName)} has ${waiting} waiters already, and the store takes no more; ` +
        "try again later, ask once with wait: 0, or spread the work over several names",
      true,
    );
    this.lockName = lockName;
    this.waiting = waiting;
  }
}

/** `released`: by its own holder, who goes on using it. `closed`: with its `Locks`. */
export type LossReason = "expired" | "revoked" | "superseded" | "max-hold" | "released" | "closed";

export class LeaseLostError extends HoldfastError {
  readonly lockName: string;
  readonly token: bigint;
  readonly reason: LossReason;
  /** What `fn` returned, when `withLock` finds that the lease was lost on the way. */
  readonly value: unknown;

  constructor(
    lease: Pick<Lease, "name" | "token">,
    reason: LossReason,
    more: { detail?: string; why?: string; value?: unknown; cause?: unknown } = {},
  ) {
    const why = more.why === undefined ? "" : ` ${more.why}`;
    const detail = `${more.detail ?? explain[reason]}${why}`;
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

const explain: Record<LossReason, string> = {
  expired: "it could not be renewed in time",
  revoked: "it was released by force",
  superseded: "the store has granted the name to another",
  "max-hold": "maxHold is over",
  released: "it was released",
  closed: "its locks were closed",
};

/** A fence refused: a later holder has entered the resource. */
export class StaleTokenError extends HoldfastError {
  readonly resource: string;
  readonly token: bigint;
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

/** The store did not answer, or can't be used. Never means that the name is held. */
export class StoreUnavailableError extends HoldfastError {
  constructor(message: string, more: { cause?: unknown; retryable?: boolean } = {}) {
    super("STORE_UNAVAILABLE", message, more.retryable ?? true, more.cause);
  }
}

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

/** The `Locks` was closed while this was pending, or before. */
export class ClosedError extends HoldfastError {
  constructor() {
    super("CLOSED", "these locks are closed", false);
  }
}
