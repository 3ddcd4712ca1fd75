import type { Link } from "./link.js";
import { type ClaimData, decodeClaimData, type Queue } from "./queue.js";

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
  const read = await requests.readData(`${layout.name(name)}/${node}`);
  if (read === null) return null;
  const { czxid, ephemeralOwner } = read.stat;
  return { ...decodeClaimData(read.data), token: czxid, owner: ephemeralOwner };
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
