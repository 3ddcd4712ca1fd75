import { type HolderInfo, LOCK_LIMIT, type NameInfo, type WaiterInfo } from "./store.js";

/**
 * The holders and waiters of a name, as `inspect` and `list` show them. Times are whole
 * milliseconds. `JSON.stringify` writes tokens as strings.
 */
export interface NameStatus extends Omit<NameInfo, "limit"> {
  /** The number of permits of a semaphore; null for a lock. */
  readonly limit: number | null;
}

/** Puts a store's record of a name into the user's terms. */
export function statusOf(info: NameInfo, tokenOffset: bigint): NameStatus {
  return {
    name: info.name,
    limit: info.limit === LOCK_LIMIT ? null : info.limit,
    holders: info.holders.map((one) => holderOf(one, tokenOffset)),
    waiting: info.waiting,
    waiters: info.waiters.map((one) => ({
      ...one,
      permits: permitsOf(one),
      waitingMs: Math.round(one.waitingMs),
      expiresInMs: Math.round(one.expiresInMs),
    })),
    revoked: info.revoked.map((one) =>
      jsonable({ ...one, token: one.token + tokenOffset, agoMs: Math.round(one.agoMs) }),
    ),
    ...(info.notes === undefined ? {} : { notes: info.notes }),
  };
}

export function holderOf(holder: HolderInfo, tokenOffset: bigint): HolderInfo {
  return jsonable({
    ...holder,
    token: holder.token + tokenOffset,
    permits: permitsOf(holder),
    heldMs: Math.round(holder.heldMs),
    expiresInMs: Math.round(holder.expiresInMs),
  });
}

/** A lock's holder has one lease, whatever number of permits that takes in the store. */
const permitsOf = ({ mode, permits }: HolderInfo | WaiterInfo): number =>
  mode === "permits" ? permits : 1;

/** `JSON.stringify` refuses a bigint. The method is not enumerable: it is no field of the status. */
function jsonable<T extends { readonly token: bigint }>(one: T): T {
  return Object.defineProperty(one, "toJSON", {
    value: () => ({ ...one, token: String(one.token) }),
  });
}
