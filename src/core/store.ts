import type { Awaitable } from "./awaitable.js";
import type { Records } from "./records.js";

export type { Awaitable } from "./awaitable.js";

/**
 * The contract between the core and a store. ARCHITECTURE.md has the reasoning for all stores.
 *
 * One rule serves mutex, readers-writer lock and semaphore: a claim is granted when what is in use
 * plus what it claims stays within the limit, and no earlier claim on the name is still waiting.
 * An exclusive lease claims all of LOCK_LIMIT, a shared one 1 of it, a semaphore's k of n.
 *
 * Every method may reply at once or by a promise. A rejection means *unknown*: the step may or may
 * not have happened; only a HoldfastError with `retryable: false` says for sure that it did not.
 */
export interface Store {
  /** The properties of the store, and what it can't do. */
  readonly traits: Traits;

  /**
   * Grants the names, or leaves a ticket (if `queue`), or does neither, in one atomic step. If the grantId
   * already has a grant or a ticket, the claim finds that one *and extends it*; it never makes a second. If
   * the grant of this id has ended, and the store still knows it (it was revoked, or keeps the name closed),
   * the id gets no other grant: the reply is `lost`. An expired ticket is gone wherever it stands in the queue:
   * its claim begins again at the end, or is `lost` if its session has ended.
   *
   * While the ticket stands, the store pushes its grant. It pushes `look`
   * - to a waiter that may have missed a push;
   * - to the first WAITERS_AT_EXPIRY waiters, if the name may be free earlier than their last reply said, and
   *   before their next renewal: after a handover to a short lease, after a renewal with a shorter ttl, and
   *   after a release, if `atLeast` closes the name for less than the lease had left.
   */
  claim(claim: Claim, push: (push: Push) => void): Awaitable<ClaimAnswer>;

  /**
   * Extends grants and tickets, never creates any, and obeys the highest `seq` that it has received.
   * One reply for each, in order; one that is stuck is `unknown` alone.
   */
  renew(renewals: readonly Renewal[]): Awaitable<readonly RenewAnswer[]>;

  /** Drops the grant or the ticket of exactly this grantId, whichever is there; no other. One reply for each, in order. */
  release(releases: readonly Release[]): Awaitable<readonly ReleaseAnswer[]>;

  /**
   * Takes the name from all its holders, whose renewals then get the reply `lost: revoked`. Waiters stay.
   * `inspect` shows the revocation for as long as REVOKED_KEPT says.
   */
  revoke(name: string, by: { holder: string; why: string }): Awaitable<readonly HolderInfo[]>;

  /**
   * Changes the limit of a semaphore in use. Holders stay, even if they have more permits than that; tickets
   * that claim more are dropped. Replies with the limit before; null if the name is not in use, because only
   * a name in use has a limit. A lock stays a lock.
   */
  resize(name: string, limit: number): Awaitable<number | null>;

  /** Null when the name has no holder, no waiter and no recent forced release. */
  inspect(name: string): Awaitable<NameInfo | null>;
  /** Names in use that start with `prefix`, in order of their UTF-8 bytes. */
  list(prefix: string, limit: number): Awaitable<readonly NameInfo[]>;

  /** Where the store can: calls `changed` when the holder may have changed. Returns a function that ends this. */
  observe?(name: string, changed: () => void): () => void;

  /** Records and meters beside the locks. Undefined: the store has none, and `traits.cannot.records` says why. */
  readonly records?: Records;

  /** A `Locks` begins to use the store, and ends that by `close`. Several may share a store. */
  open?(): void;

  /** Closes everything that the store opened itself. May be called again. */
  close(): Awaitable<void>;
}

/** The limit of a lock's name, which is no semaphore. */
export const LOCK_LIMIT = 2 ** 31 - 1;

/**
 * The most waiters that one name may have: one more claim gets the reply `full`. A store that learns of
 * tickets by messages may take some more while these are in flight.
 */
export const MOST_WAITERS = 5_000;

/** This many waiters, from the front of the queue, claim when the holder's lease ends: one of them is enough. */
export const WAITERS_AT_EXPIRY = 3;

/** The core renews a lease or a ticket at least this often in its ttl. */
export const RENEWALS_PER_TTL = 3;

/** `inspect` and `list` return at most this many waiters of a name, from the front of the queue. */
export const WAITERS_SHOWN = 1_000;

/** A request for a grant. */
export interface Claim {
  /** Usually one. Several: all or nothing, in one step, never queued; sorted, without duplicates. */
  readonly names: readonly string[];
  /** Random; one per grant. Proves ownership at renewal and release. */
  readonly grantId: string;
  /** Counts the claims and renewals of this grantId: 1, 2, 3 … */
  readonly seq: number;
  /** How much of `limit` is claimed. */
  readonly permits: number;
  /** LOCK_LIMIT for a lock, the number of permits for a semaphore. */
  readonly limit: number;
  /** The ttl of the lease, and of the ticket. */
  readonly ttlMs: number;
  /** The name stays closed for this long after the grant, whatever becomes of the lease. */
  readonly atLeastMs: number;
  /** The label of the claimant. */
  readonly holder: string;
  /** When busy: leave a ticket, with the claim's ttl. */
  readonly queue: boolean;
  /**
   * The share of the ttl that the core subtracts for clock drift, counted from the claim. A store
   * that counts from an earlier proof subtracts it up to the claim. Default 0.01.
   */
  readonly driftFactor?: number;
}

/** The store's yes to a claim. */
export interface Grant {
  /** The fencing token: higher than all earlier tokens of the name. */
  readonly token: bigint;
  /** The lowest token that still holds the name at the grant, its own included. */
  readonly floor: bigint;
  /** The ttl that the store really gave, counted from the send of request number `seq` at the latest. */
  readonly ttlMs: number;
  /** The request that the grant's present expiry rests on. */
  readonly seq: number;
  /** The claim had waited, and learned of its grant by a notification: not by a claim or renewal of its own. */
  readonly handedOver: boolean;
}

/** A place in the queue. */
export interface Position {
  /** How many waiters are in front. */
  readonly ahead: number;
  /** When a living holder's lease would expire: with no push until then, claim again. */
  readonly freeInMs: number;
  /** The label of one holder; null if nobody holds the name. */
  readonly holder: string | null;
}

/** The reply to a claim. */
export type ClaimAnswer =
  /** One for each name, in order. */
  | { readonly kind: "granted"; readonly grants: readonly Grant[] }
  | { readonly kind: "queued"; readonly position: Position }
  /** Not granted, no ticket left. `name`: the first of the names that is not free. */
  | { readonly kind: "busy"; readonly name: string; readonly position: Position }
  /** The name is in use with another limit: as a lock, or as another semaphore. */
  | { readonly kind: "mismatch"; readonly name: string; readonly limit: number }
  /** The name has MOST_WAITERS waiters already. No ticket was left. */
  | { readonly kind: "full"; readonly name: string; readonly waiting: number }
  | LostAnswer;

/** A message to a waiter whose ticket stands, or to the holder that it became. */
export type Push =
  | { readonly kind: "granted"; readonly grant: Grant }
  /** Something changed: renew the ticket to see. */
  | { readonly kind: "look" }
  /** After the grant: its session has ended, or its record is gone. The core renews the lease at once, and learns why it is lost. */
  | { readonly kind: "lost" };

/** A request to extend a grant or a ticket. */
export interface Renewal {
  /** The name that is held or waited for. */
  readonly name: string;
  /** The grant or ticket to extend. */
  readonly grantId: string;
  /** The number of this request under the grantId. */
  readonly seq: number;
  /** The ttl from now on. */
  readonly ttlMs: number;
}

/** The reply to a renewal. */
export type RenewAnswer =
  /** The claim holds the name, and is now good for `grant.ttlMs` from the send. */
  | { readonly kind: "granted"; readonly grant: Grant }
  | { readonly kind: "queued"; readonly position: Position }
  | LostAnswer
  | { readonly kind: "unknown"; readonly cause: unknown };

/** There is neither a grant nor a ticket. `why`: by whom it was revoked, and for what. */
export interface LostAnswer {
  /** Tells the reply from others. */
  readonly kind: "lost";
  /** `superseded`: somebody else holds the name by now. */
  readonly reason: "expired" | "revoked" | "superseded";
  /** Only with `revoked`. */
  readonly why?: string;
}

/** A request to drop a grant or a ticket. */
export interface Release {
  /** The name to give back. */
  readonly name: string;
  /** The grant or ticket to drop. */
  readonly grantId: string;
  /** Nobody has worked under the grant, or ever will: `atLeast` does not close the name. */
  readonly unused?: boolean;
}

/** The reply to a release. */
export type ReleaseAnswer = "released" | LostAnswer;

/** `permits`: of a semaphore. */
export type ClaimMode = "exclusive" | "shared" | "permits";

/** The mode of a claim with these numbers. */
export function modeOf({ permits, limit }: { permits: number; limit: number }): ClaimMode {
  if (limit !== LOCK_LIMIT) return "permits";
  return permits === LOCK_LIMIT ? "exclusive" : "shared";
}

/** A holder of a name. Times in milliseconds. */
export interface HolderInfo {
  /** The label of the holder. */
  readonly holder: string;
  /** How the name is held. */
  readonly mode: ClaimMode;
  /** The fencing token of the grant. */
  readonly token: bigint;
  /** Permits in use; LOCK_LIMIT for an exclusive lease. */
  readonly permits: number;
  /** Milliseconds since the grant. */
  readonly heldMs: number;
  /** Until the lease expires, or, after its end, until `atLeast` opens the name. */
  readonly expiresInMs: number;
  /** The lease has ended; the name is closed by `atLeast`. */
  readonly closed: boolean;
}

/** A waiter for a name. Times in milliseconds. */
export interface WaiterInfo {
  /** The label of the waiter. */
  readonly holder: string;
  /** How the waiter wants the name. */
  readonly mode: ClaimMode;
  /** Permits that the waiter claims. */
  readonly permits: number;
  /** Milliseconds since its first claim. */
  readonly waitingMs: number;
  /** Until the ticket expires, unless it is renewed. */
  readonly expiresInMs: number;
}

/** A lease that was taken from its holder by force, and why. */
export interface RevokedInfo {
  /** The label of the former holder. */
  readonly holder: string;
  /** The token that was revoked. */
  readonly token: bigint;
  /** The label of the client that revoked it. */
  readonly by: string;
  /** The reason that was given. */
  readonly why: string;
  /** Milliseconds since the revocation. */
  readonly agoMs: number;
}

/** How long a forced release can be seen, and how many of a name at most. */
export const REVOKED_KEPT = { ms: 3_600_000, many: 16 };

/** A name as the store knows it. */
export interface NameInfo {
  /** The name in the store. */
  readonly name: string;
  /** LOCK_LIMIT for a lock, the number of permits for a semaphore. */
  readonly limit: number;
  /** In the order of their tokens. */
  readonly holders: readonly HolderInfo[];
  /** How many wait; 0 where `traits.fair` is false, because waiters have no place in such a store. */
  readonly waiting: number;
  /** The first WAITERS_SHOWN of them, in the order of the queue. */
  readonly waiters: readonly WaiterInfo[];
  /** In the order of the revocations. */
  readonly revoked: readonly RevokedInfo[];
  /**
   * Where single nodes of a quorum differ from what a majority says, and which of them did not answer, in
   * words. They may hold labels of holders: escape them before you print them. Absent: there is nothing to say.
   */
  readonly notes?: readonly string[];
}

/** The properties of a store, as data: docs, tests and refusals come from it. */
export interface Traits {
  /** The name of the store, for messages. */
  readonly store: string;
  /** Whether one process, one machine or a whole network can share the store. */
  readonly scope: "process" | "machine" | "network";
  /**
   * How a lease is kept alive. `lease`: by its own renewals. `session`: by a session that many claims
   * share and that outlives them, so the core repeats an owed release until it succeeds, and a waiter that has lost
   * its ticket claims again under a new grantId.
   */
  readonly liveness: "lease" | "session";
  /** Whether the store notifies waiters, or they poll. */
  readonly waiting: "pushed" | "polled";
  /** Whether waiters have a place in the store, are granted in that order, and can be seen by `inspect` and `list`. */
  readonly fair: boolean;
  /** The shortest ttl, in milliseconds. */
  readonly minTtlMs: number;
  /** The longest ttl, in milliseconds. Default: no limit. */
  readonly maxTtlMs?: number;
  /** Events that leases and tokens survive, in words. */
  readonly survives: readonly string[];
  /** Faults after which the store can grant a name that is held; the words follow "after". */
  readonly grantsTwiceAfter: readonly string[];
  /** At most this many names in one claim; the core takes more names one by one. Default: no limit. */
  readonly namesAtOnce?: number;
  /** The features that the store refuses, with the reason. */
  readonly cannot: Readonly<Partial<Record<Feature, string>>>;
}

/** A feature that a store may refuse. */
export type Feature =
  | "shared"
  | "permits"
  | "many-names"
  | "at-least"
  | "own-ttl"
  | "revoke"
  | "records";
