import { type Grant, LOCK_LIMIT } from "../../core/store.js";

/** The numbers of a grant in a message: each may be anything, because anybody may have written it. */
export interface PushedNumbers {
  readonly token?: unknown;
  readonly floor?: unknown;
  readonly ttlMs?: unknown;
  readonly seq?: unknown;
}

const TOKEN = /^[1-9]\d{0,18}$/;

/** The grant that a push carries; null if no store makes such a grant: then the message is ignored. */
export function readPushedGrant({ token, floor, ttlMs, seq }: PushedNumbers): Grant | null {
  if (!isToken(token) || !isToken(floor) || BigInt(floor) > BigInt(token)) return null;
  if (!isNumberUpTo(ttlMs, Number.MAX_SAFE_INTEGER)) return null;
  // 2³¹ requests of one acquire are more than a lifetime of renewals.
  if (!isNumberUpTo(seq, LOCK_LIMIT) || !Number.isInteger(seq)) return null;
  return { token: BigInt(token), floor: BigInt(floor), ttlMs, seq, handedOver: true };
}

const isToken = (value: unknown): value is string => typeof value === "string" && TOKEN.test(value);

const isNumberUpTo = (value: unknown, most: number): value is number =>
  typeof value === "number" && value > 0 && value <= most;
