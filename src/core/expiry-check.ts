import { type Position, WAITERS_AT_EXPIRY } from "./store.js";

/** The waiters that claim at a holder's expiry do so this far apart. */
const APART_MS = 5;
/**
 * After the holder's expiry, a waiter further back renews its ticket this much later for each place, if that comes
 * before its next renewal: the waiters in front may have given up or be dead. The places are apart, because a long
 * queue must not poll at the pace of a short lease.
 */
const FURTHER_BACK_APART_MS = 100;

/** When a waiter claims or renews its ticket because a holder may have expired, of which no store notifies it. */
export function checkAtExpiry(
  { ahead, freeInMs }: Position,
  nowMs: number,
): { readonly claimAtMs: number; readonly renewAtMs: number } {
  const never = Number.POSITIVE_INFINITY;
  return ahead < WAITERS_AT_EXPIRY
    ? { claimAtMs: nowMs + Math.max(1, freeInMs) + ahead * APART_MS, renewAtMs: never }
    : { claimAtMs: never, renewAtMs: nowMs + freeInMs + ahead * FURTHER_BACK_APART_MS };
}
