import { type Position, WAITERS_AT_EXPIRY } from "./store.js";

/** The waiters that claim at a holder's expiry do so this far apart. */
const APART_MS = 5;
/**
 * The waiters in front may have given up, or be dead. So a waiter further back renews its ticket after the
 * holder's expiry, if that comes before its next renewal: this much later for each place, because a long
 * queue must not poll at the pace of a short lease.
 */
const FURTHER_BACK_APART_MS = 100;

/** When a waiter claims, or renews its ticket, because a holder may have expired: of that, no store notifies it. */
export function checkAtExpiry(
  { ahead, freeInMs }: Position,
  nowMs: number,
): { readonly claimAtMs: number; readonly renewAtMs: number } {
  const never = Number.POSITIVE_INFINITY;
  return ahead < WAITERS_AT_EXPIRY
    ? { claimAtMs: nowMs + Math.max(1, freeInMs) + ahead * APART_MS, renewAtMs: never }
    : { claimAtMs: never, renewAtMs: nowMs + freeInMs + ahead * FURTHER_BACK_APART_MS };
}
