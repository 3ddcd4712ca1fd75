import { type HolderInfo, modeOf, type RevokedInfo, type WaiterInfo } from "../../core/store.js";
import type { Place } from "./queue.js";
import type { EtcdClient } from "./rpc/client.js";

/** That a grant was revoked, as it is kept for people to see. */
export interface Revoked {
  readonly grantId: string;
  readonly holder: string;
  readonly token: string;
  readonly by: string;
  readonly why: string;
  /** Under which it is kept: its age is the record's. */
  readonly lease: string;
}

/** How long leases of etcd have lived, and will: each asked once. */
export class Lifetimes {
  readonly #client: EtcdClient;
  readonly #asked = new Map<bigint, Promise<{ leftMs: number; agoMs: number }>>();

  constructor(client: EtcdClient) {
    this.#client = client;
  }

  of(lease: bigint): Promise<{ leftMs: number; agoMs: number }> {
    const there = this.#asked.get(lease);
    if (there !== undefined) return there;
    const asked = this.#client.leaseTimeToLive(lease).then(({ ttlS, grantedTtlS }) => ({
      leftMs: Math.max(0, ttlS) * 1_000,
      agoMs: Math.max(0, grantedTtlS - Math.max(0, ttlS)) * 1_000,
    }));
    this.#asked.set(lease, asked);
    return asked;
  }
}

/** By the claimant's clock, which may be ahead of ours. */
const sinceMs = ({ atMs }: Place): number => Math.max(0, Date.now() - atMs);

export async function holderInfo(one: Place, lifetimes: Lifetimes): Promise<HolderInfo> {
  const { holder, permits, token, ended } = one;
  const { leftMs } = await lifetimes.of(ended ? one.closure! : one.lease);
  const mode = modeOf(one);
  return { holder, mode, token, permits, heldMs: sinceMs(one), expiresInMs: leftMs, closed: ended };
}

export async function waiterInfo(one: Place, lifetimes: Lifetimes): Promise<WaiterInfo> {
  const { leftMs } = await lifetimes.of(one.lease);
  const { holder, permits } = one;
  return { holder, mode: modeOf(one), permits, waitingMs: sinceMs(one), expiresInMs: leftMs };
}

export async function revokedInfo(one: Revoked, lifetimes: Lifetimes): Promise<RevokedInfo> {
  const { holder, by, why, token, lease } = one;
  const { agoMs } = await lifetimes.of(BigInt(lease));
  return { holder, token: BigInt(token), by, why, agoMs };
}
