import type { LossReason } from "./errors.js";
import type { ClaimMode } from "./store.js";

/** The fields of every event of one acquire, and of the lease that it gets. */
export interface AcquireFields {
  /** The number of the acquire in this thread. Each name of `acquireAll` has a number of its own. */
  id: number;
  /** The kind of store, such as `Redis`, `PostgreSQL behind a pooler` or `memory`: docs/metrics.md lists them. */
  store: string;
  /** The name, as the user gave it. */
  name: string;
  /** How the name is wanted or held. */
  mode: ClaimMode;
}

/** The fields of every event of a lease. */
export interface LeaseFields extends AcquireFields {
  /** The fencing token of the lease. */
  token: bigint;
}

/** Every kind of request to a store, as the event `request` names it. */
export const COMMANDS = [
  "claim",
  "renew",
  "release",
  "inspect",
  "list",
  "revoke",
  "resize",
  "close",
  "read",
  "write",
  "take",
] as const;
export type Command = (typeof COMMANDS)[number];

/** Every event, with its fixed fields. Published on `holdfast:<event>`. */
export interface Events {
  /** A call of `acquire` or the like has begun. */
  asked: AcquireFields & { holder: string; permits: number };
  /** A lease was granted after `waitMs`; `handedOver` if the caller had waited, and was notified of its grant. */
  granted: LeaseFields & { holder: string; waitMs: number; handedOver: boolean };
  /** An acquire has ended without a lease. */
  "not-granted": AcquireFields & {
    holder: string;
    waitMs: number;
    reason: "busy" | "timeout" | "aborted" | "unavailable" | "closed" | "refused";
  };
  /**
   * A renewal was confirmed; `ttlMs` is the new ttl. `remainingShare` is the time that was left before the lease
   * would have been lost, as a share of the ttl less drift and `abortBefore`: from 1 down to 0.
   */
  renewed: LeaseFields & { ttlMs: number; remainingShare: number };
  /** A renewal failed, or got no reply in time; it is repeated. */
  "renewal-failed": LeaseFields & { remainingMs: number; cause: string };
  /** Renewals fail; the lease is good for `remainingMs` more. */
  jeopardy: LeaseFields & { remainingMs: number; cause: string };
  /** A renewal succeeded after jeopardy. */
  recovered: LeaseFields;
  /** The lease can no longer be proved. */
  lost: LeaseFields & { reason: LossReason; heldMs: number };
  /** The holder has released its lease. */
  released: LeaseFields & { heldMs: number; outcome: "released" | "unknown" };
  /** A name was taken by force: by whom, from whom, and why. */
  revoked: {
    store: string;
    name: string;
    mode: ClaimMode;
    token: bigint;
    holder: string;
    by: string;
    why: string;
  };
  /** `onUnavailable: "run"`: work went on without the lock. */
  unprotected: { store: string; name: string; mode: ClaimMode; holder: string; cause: string };
  /** A fence has refused a token. */
  "stale-token": { resource: string; token: bigint; highest: bigint };
  /**
   * A store has replied to a request after `ms`, the request has failed, or it got no reply in time: a
   * later one is not published. A batch is one request.
   */
  request: {
    store: string;
    command: Command;
    ms: number;
    outcome: "replied" | "failed" | "timeout";
  };
  /** The timer of leases and waiters fired `lateMs` late: the event loop was blocked, or the process stopped. */
  stalled: { lateMs: number };
}

/** Events that are only published: a fence, a request and a timer belong to no one logger. */
export type UnloggedEvent = "stale-token" | "request" | "stalled";
export type LoggedEvent = Exclude<keyof Events, UnloggedEvent>;
