import { type HolderInfo, modeOf, type WaiterInfo } from "../../core/store.js";
import type { Link } from "./link.js";
import { type ClaimData, decodeClaimData, type Queue, type StoredClaim } from "./queue.js";
import type { NodeData } from "./turn-requests.js";

/** A claim's node with its data. */
export interface DescribedClaim extends ClaimData {
  readonly token: bigint;
  /** The session that it is under. */
  readonly owner: bigint;
}

/** Reads the data of a claim; null: it is gone. */
export async function describeClaim(
  { requests, layout }: Link,
  name: string,
  node: string,
): Promise<DescribedClaim | null> {
  const path = `${layout.name(name)}/${node}`;
  return toDescribed(await requests.readData(path), path);
}

/** Null: the claim is gone. */
export function toDescribed(read: NodeData | null, path: string): DescribedClaim | null {
  if (read === null) return null;
  const { czxid, ephemeralOwner } = read.stat;
  return { ...decodeClaimData(read.data, path), token: czxid, owner: ephemeralOwner };
}

/** By the claimant's clock, which may be ahead of ours. */
export const sinceMs = ({ atMs }: { readonly atMs: number }): number =>
  Math.max(0, Date.now() - atMs);

/** ZooKeeper does not tell how long a session has left: at most a ttl, as far as its holder relies on it. */
export function toHolderInfo(claim: StoredClaim, data: DescribedClaim): HolderInfo {
  const { holder, token, ttlMs: expiresInMs } = data;
  const [mode, heldMs] = [modeOf(claim), sinceMs(data)];
  return { holder, mode, token, permits: claim.permits, heldMs, expiresInMs, closed: false };
}

export function toWaiterInfo(claim: StoredClaim, data: DescribedClaim): WaiterInfo {
  const { holder, ttlMs: expiresInMs } = data;
  const [mode, waitingMs] = [modeOf(claim), sinceMs(data)];
  return { holder, mode, permits: claim.permits, waitingMs, expiresInMs };
}

/** Reads the label of the first holder into the queue: positions tell it. False: that holder has gone. */
export async function describeFirstHolder(
  link: Link,
  name: string,
  queue: Queue,
): Promise<boolean> {
  const holder = queue.holders()[0];
  if (holder === undefined || holder.holder !== "") return true;
  const described = await describeClaim(link, name, holder.node);
  if (described !== null) queue.describe(holder.node, described);
  return described !== null;
}

/** The lowest token that holds the name: holders are in the order of their tokens, and the first ones may have gone. */
export async function readFloor(
  link: Link,
  name: string,
  queue: Queue,
  own: { readonly grantId: string; readonly token: bigint },
): Promise<bigint> {
  for (const { grantId, node } of queue.holders()) {
    if (grantId === own.grantId) break;
    const claim = await describeClaim(link, name, node);
    if (claim !== null) return claim.token;
  }
  return own.token;
}
