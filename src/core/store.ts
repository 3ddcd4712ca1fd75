/**
 * The contract between the core and a store. ARCHITECTURE.md has the reasoning for all stores.
 *
 * One rule serves mutex, readers-writer lock and semaphore: a claim is granted when what is in use
 * plus what it asks stays within the limit, and no earlier claim on the name is still waiting.
 * An exclusive lease asks for all of LOCK_LIMIT, a shared one for 1 of it, a semaphore's for k of n.
 *
 * Every method may answer at once or by a promise. A rejection means *unknown*: the step may or may
 * not have happened; only a HoldfastError with `retryable: false` says for sure that it did not.
 */
export interface Store {
  readonly traits: Traits;

  /**
   * Grants, or leaves a ticket (`queue`), or neither, in one atomic step. A grantId that already has
   * a grant or a ticket finds it again *and extends it*; it never makes a second one. One whose
   * grant has ended, and is still known (revoked, or closing the name), gets no other: `lost`.
   * While the ticket stands, the store calls `push` when it is granted, or when asking is worthwhile:
   * the first WAITERS_AT_EXPIRY tickets, when the name passes to a lease that ends before their next renewal.
   */
  claim(claim: Claim, push: (push: Push) => void): Awaitable<ClaimAnswer>;

  /** Extends grants and tickets, never creates any, and obeys the highest `seq` that it has heard. One answer for each, in order; one that is stuck is `unknown` alone. */
  renew(renewals: readonly Renewal[]): Awaitable<readonly RenewAnswer[]>;

  /** Drops the grant or the ticket of exactly this grantId, whichever is there; nobody else's. */
  release(releases: readonly Release[]): Awaitable<readonly ReleaseAnswer[]>;

  /**
   * Takes the name from all its holders; their renewals answer `lost: revoked`. Waiters stay. Kept
   * for people to see, as REVOKED_KEPT says.
   */
  revoke(name: string, by: { holder: string; why: string }): Awaitable<readonly HolderInfo[]>;

  /**
   * Changes the limit of a semaphore in use. Holders stay, even if they are more than that; tickets
   * that ask for more are dropped. Answers with the limit that it had; null when it is not in use,
   * for then none is kept. A lock stays a lock.
   */
  resize(name: string, limit: number): Awaitable<number | null>;

  /** Null when nobody holds it or waits, and nobody was made to give it up lately. */
  inspect(name: string): Awaitable<NameInfo | null>;
  /** Names in use that start with `prefix`, in order of their UTF-8 bytes. */
  list(prefix: string, limit: number): Awaitable<readonly NameInfo[]>;

  /** Where the store can tell: calls `changed` when who holds the name may be another, until it is undone. */
  observe?(name: string, changed: () => void): () => void;

  /** Lets go of everything that the store opened itself. May be called again. */
  close(): Awaitable<void>;
}

export type Awaitable<T> = T | Promise<T>;

/** The limit of a name that is no semaphore. */
export const LOCK_LIMIT = 2 ** 31 - 1;

/**
 * The most waiters that one name may have: a claim that would be one more is answered `full`. A store that
 * hears of tickets by messages may take some more while these are on their way.
 */
export const MOST_WAITERS = 5_000;

/** So many waiters, from the front of the queue, ask when the holder's lease ends: one of them is enough. */
export const WAITERS_AT_EXPIRY = 3;

/** The core renews a ticket or a lease before this part of its ttl has passed: a third. */
export const RENEWALS_PER_TTL = 3;

/** `inspect` and `list` return at most this many waiters of a name, from the front of the queue. */
export const WAITERS_SHOWN = 1_000;

export interface Claim {
  /** Usually one. Several: all or nothing, in one step, never queued; sorted, without duplicates. */
  readonly names: readonly string[];
  readonly grantId: string;
  /** Counts the asks and renewals of this grantId: 1, 2, 3 … */
  readonly seq: number;
  readonly permits: number;
  readonly limit: number;
  readonly ttlMs: number;
  /** The name stays closed until the grant + this, whatever becomes of the lease. */
  readonly atLeastMs: number;
  readonly holder: string;
  /** When busy: leave a ticket, with the claim's ttl. */
  readonly queue: boolean;
  /** Clock drift that the core subtracts from the ask on; a store that counts from an earlier proof subtracts it until the ask. 0.01 by default. */
  readonly driftFactor?: number;
}

export interface Grant {
  readonly token: bigint;
  readonly floor: bigint;
  /** What the store really gave, counted from the send of ask number `seq` at the latest. */
  readonly ttlMs: number;
  /** The ask that the grant's present expiry rests on. */
  readonly seq: number;
  /** It waited, and the step that freed the name made it the holder. */
  readonly handedOver: boolean;
}

export interface Position {
  readonly ahead: number;
  /** When a living holder's lease would run out: with no push until then, ask. */
  readonly freeInMs: number;
  readonly holder: string | null;
}

export type ClaimAnswer =
  /** One for each name, in order. */
  | { readonly kind: "granted"; readonly grants: readonly Grant[] }
  | { readonly kind: "queued"; readonly position: Position }
  /** Not granted, no ticket left. `name`: the first of them that is not to be had. */
  | { readonly kind: "busy"; readonly name: string; readonly position: Position }
  /** The name is in use with another limit: as a lock, or as another semaphore. */
  | { readonly kind: "mismatch"; readonly name: string; readonly limit: number }
  /** The name has MOST_WAITERS waiters already. No ticket was left. */
  | { readonly kind: "full"; readonly name: string; readonly waiting: number }
  | LostAnswer;

export type Push =
  | { readonly kind: "granted"; readonly grant: Grant }
  /** Something changed: ask. */
  | { readonly kind: "look" };

export interface Renewal {
  readonly name: string;
  readonly grantId: string;
  readonly seq: number;
  readonly ttlMs: number;
}

export type RenewAnswer =
  /** It holds the name, and is now good for `grant.ttlMs` from the send. */
  | { readonly kind: "granted"; readonly grant: Grant }
  | { readonly kind: "queued"; readonly position: Position }
  | LostAnswer
  | { readonly kind: "unknown"; readonly cause: unknown };

/** There is neither a grant nor a ticket. `why`: by whom it was revoked, and for what. */
export interface LostAnswer {
  readonly kind: "lost";
  readonly reason: "expired" | "revoked" | "superseded";
  readonly why?: string;
}

export interface Release {
  readonly name: string;
  readonly grantId: string;
  /** Nobody has worked under the grant, or ever will: `atLeast` does not close the name. */
  readonly unused?: boolean;
}

export type ReleaseAnswer = "released" | LostAnswer;

/** What a claim is, by its numbers. */
export type ClaimMode = "exclusive" | "shared" | "permits";

export function modeOf({ permits, limit }: { permits: number; limit: number }): ClaimMode {
  if (limit !== LOCK_LIMIT) return "permits";
  return permits === LOCK_LIMIT ? "exclusive" : "shared";
}

export interface HolderInfo {
  readonly holder: string;
  readonly mode: ClaimMode;
  readonly token: bigint;
  readonly permits: number;
  readonly heldMs: number;
  /** Until the lease runs out, or, after its end, until `atLeast` opens the name. */
  readonly expiresInMs: number;
  /** The lease has ended; the name is closed by `atLeast`. */
  readonly closed: boolean;
}

export interface WaiterInfo {
  readonly holder: string;
  readonly mode: ClaimMode;
  readonly permits: number;
  readonly waitingMs: number;
  readonly expiresInMs: number;
}

/** A lease that was taken from its holder by force, and why. */
export interface RevokedInfo {
  readonly holder: string;
  readonly token: bigint;
  readonly by: string;
  readonly why: string;
  readonly agoMs: number;
}

/** For so long it can be seen that a lease was revoked, and at most for so many of a name. */
export const REVOKED_KEPT = { ms: 3_600_000, many: 16 };

export interface NameInfo {
  readonly name: string;
  readonly limit: number;
  /** By token. */
  readonly holders: readonly HolderInfo[];
  /** How many wait. */
  readonly waiting: number;
  /** The first WAITERS_SHOWN of them, in the order of the queue. */
  readonly waiters: readonly WaiterInfo[];
  /** The latest last. */
  readonly revoked: readonly RevokedInfo[];
}

/** What a store is, as data: docs, tests and refusals come from it. */
export interface Traits {
  readonly store: string;
  /** Who can share the store. */
  readonly scope: "process" | "machine" | "network";
  /** `session`: one liveness for many leases; the core keeps deletions that it owes until they are done. */
  readonly liveness: "lease" | "session";
  readonly waiting: "pushed" | "polled";
  readonly fair: boolean;
  readonly minTtlMs: number;
  /** What leases and tokens outlast, in words. */
  readonly survives: readonly string[];
  /** Faults after which the store can grant a name that is held; the words follow "after". */
  readonly grantsTwiceAfter: readonly string[];
  /** Of so many names at most one claim is made; the core takes more one by one. */
  readonly namesAtOnce?: number;
  /** What is refused, and why. */
  readonly cannot: Readonly<Partial<Record<Feature, string>>>;
}

export type Feature = "shared" | "permits" | "many-names" | "at-least" | "own-ttl" | "revoke";
