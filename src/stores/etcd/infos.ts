import { type HolderInfo, modeOf, type RevokedInfo, type WaiterInfo } from "../../core/store.js";
import type { StoredClaim } from "./queue.js";
import type { Revocation } from "./revocations.js";
import type { EtcdClient } from "./rpc/client.js";

/** How long leases of etcd have lived, and will: each is read once. */
export class Lifetimes {
  readonly #client: EtcdClient;
  readonly #read = new Map<bigint, Promise<{ leftMs: number; agoMs: number }>>();

  constructor(client: EtcdClient) {
    this.#client = client;
  }

  of(lease: bigint): Promise<{ leftMs: number; agoMs: number }> {
    const there = this.#read.get(lease);
    if (there !== undefined) return there;
    const read = this.#client.leaseTimeToLive(lease).then(({ ttlS, grantedTtlS }) => ({
      leftMs: Math.max(0, ttlS) * 1_000,
      agoMs: Math.max(0, grantedTtlS - Math.max(0, ttlS)) * 1_000,
    }));
    this.#read.set(lease, read);
    return read;
  }
}

/** The time since the request, by the claimant's clock, which may be ahead of ours. */
const sinceMs = ({ atMs }: StoredClaim): number => Math.max(0, Date.now() - atMs);

export async function holderInfo(one: StoredClaim, lifetimes: Lifetimes): Promise<HolderInfo> {
  const { holder, permits, token, hasEnded: closed } = one;
  const { leftMs } = await lifetimes.of(closed ? one.atLeastLease! : one.lease);
  const mode = modeOf(one);
  return { holder, mode, token, permits, heldMs: sinceMs(one), expiresInMs: leftMs, closed };
}

export async function waiterInfo(one: StoredClaim, lifetimes: Lifetimes): Promise<WaiterInfo> {
  const { leftMs } = await lifetimes.of(one.lease);
  const { holder, permits } = one;
  return { holder, mode: modeOf(one), permits, waitingMs: sinceMs(one), expiresInMs: leftMs };
}

export async function revokedInfo(one: Revocation, lifetimes: Lifetimes): Promise<RevokedInfo> {
  const { holder, by, why, token, lease } = one;
  const { agoMs } = await lifetimes.of(BigInt(lease));
  return { holder, token: BigInt(token), by, why, agoMs };
}
