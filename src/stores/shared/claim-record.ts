import type { StoreClock } from "../../core/clock.js";
import type { Grant } from "../../core/store.js";

/** A claim as a store keeps it: a ticket until it has a token, then a grant. */
export interface ClaimRecord {
  readonly name: string;
  readonly grantId: string;
  /** Its place in the order of all claims on the name. */
  readonly place: number;
  readonly permits: number;
  /** The same for all claims on the name. */
  limit: number;
  readonly atLeastMs: number;
  readonly holder: string;
  /** The time at which it was queued, granted or revoked, whichever came last. */
  sinceMs: number;
  /** The highest request number that the store has received for this grantId. */
  seq: number;
  ttlMs: number;
  expiresAtMs: number;
  /** 0n: still a ticket. */
  token: bigint;
  floor: bigint;
  /**
   * The time until which `atLeast` keeps the name closed, even after the lease; 0: not at all. By the wall clock,
   * which survives a restart.
   */
  closedUntilMs: number;
  ended: "no" | "released" | "revoked";
  /** The client that revoked the claim, and its reason. */
  endedBy: string;
  endedWhy: string;
}

/** The claims of a store: a map, or a table inside a transaction. */
export interface Claims {
  /** The claims on a name by place. First come, first served: all grants come before all tickets. */
  inOrder(name: string): Iterable<ClaimRecord>;
  /** The claim of this grantId that has not ended. */
  find(name: string, grantId: string): ClaimRecord | undefined;
  /** How many tickets stand before this place. */
  ticketsBefore(name: string, place: number): number;
  lastPlace(name: string): number;
  add(record: ClaimRecord): void;
  save(record: ClaimRecord): void;
  remove(record: ClaimRecord): void;
  /** `last = max(last + 1, least)`. All names share one `last`: tokens rise for each name, and no name leaves a counter behind. */
  drawToken(least: bigint): bigint;
}

export function toGrant(record: ClaimRecord, handedOver: boolean): Grant {
  const { token, floor, ttlMs, seq } = record;
  return { token, floor, ttlMs, seq, handedOver };
}

/** When a claim ends. */
type Times = Pick<ClaimRecord, "sinceMs" | "atLeastMs" | "expiresAtMs" | "closedUntilMs">;

/** Whether the lease or the ticket has expired, and `atLeast` does not keep the name closed. */
export const isOver = (record: Times, nowMs: number, clock: StoreClock): boolean =>
  record.expiresAtMs <= nowMs && closedForMs(record, nowMs, clock) <= 0;

/** Time until the record no longer blocks other claims, if nobody extends or releases it. */
export function endsInMs(record: Times, nowMs: number, clock: StoreClock): number {
  const leaseMs = record.expiresAtMs - nowMs;
  return record.closedUntilMs === 0
    ? leaseMs
    : Math.max(leaseMs, closedForMs(record, nowMs, clock));
}

/**
 * Time until `atLeast` opens the name, by the wall clock, which survives a restart of the machine. Never
 * longer than `atLeast`, because that clock may have been ahead at the grant.
 */
export function closedForMs(record: Times, nowMs: number, clock: StoreClock): number {
  if (record.closedUntilMs === 0) return 0;
  const sinceGrantMs = Math.max(0, nowMs - record.sinceMs);
  return Math.min(record.closedUntilMs - clock.wallMs(), record.atLeastMs - sinceGrantMs);
}
