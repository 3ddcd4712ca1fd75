import { type Claim, type ClaimAnswer, MOST_WAITERS } from "../../core/store.js";
import type { Revoked } from "./infos.js";
import type { Kept } from "./kept.js";
import type { Keys } from "./keys.js";
import { becauseOf, type Names } from "./names.js";
import { type Claimed, claimedOf, type Place, Queue } from "./queue.js";
import type { KeyValue, Op, OpAnswer } from "./rpc/messages.js";

/** What a claim saw of its names, in one transaction: as they were at one revision. */
export interface Seen {
  readonly queues: readonly Queue[];
  readonly kvs: readonly (readonly KeyValue[])[];
  /** Its own, of each. */
  readonly revoked: readonly (Revoked | null)[];
  readonly revision: bigint;
}

/** Of each, who is there, and whether its own claim was revoked. */
export function readsOf(keys: Keys, all: readonly Kept[]): Op[] {
  return all.flatMap(({ name, grantId }) => [
    { range: keys.name(name) },
    { range: { key: keys.revocation(name, grantId) } },
  ]);
}

/** As `readsOf` was answered. */
export function seenBy(
  { keys, names }: { keys: Keys; names: Names },
  all: readonly Kept[],
  responses: readonly OpAnswer[],
  revision: bigint,
): Seen {
  const kvs = all.map((_, i) => responses[2 * i]!.range!.kvs);
  const queues = kvs.map((some) => new Queue(keys, some, revision));
  const revoked = all.map((_, i) => names.revocations(responses[2 * i + 1]!.range!.kvs)[0] ?? null);
  return { queues, kvs, revoked, revision };
}

/** Its own claims, if they stand already; or what ends it, name by name. Null: it may enter, or queue. */
export function found(
  claim: Claim,
  all: readonly Kept[],
  { queues, revoked }: Seen,
): ClaimAnswer | null {
  let waits = false;
  let standing = 0;
  for (const [i, kept] of all.entries()) {
    const queue = queues[i]!;
    const why = revoked[i];
    if (why) return { kind: "lost", reason: "revoked", why: becauseOf(why) };
    const mine = queue.get(kept.grantId);
    if (mine?.ended) return { kind: "lost", reason: queue.isHeld ? "superseded" : "expired" };
    if (mine !== undefined) {
      standing++;
      if (!queue.holds(kept.grantId)) waits = true;
      continue;
    }
    const { limit } = queue;
    if (limit !== null && limit !== claim.limit) {
      return { kind: "mismatch", name: kept.name, limit };
    }
    if (!queue.fits(claim.permits)) {
      if (!claim.queue) return { kind: "busy", name: kept.name, position: queue.position() };
      const waiting = queue.waiters().length;
      if (waiting >= MOST_WAITERS) return { kind: "full", name: kept.name, waiting };
    }
  }
  if (standing < all.length) return null;
  if (!waits) return { kind: "granted", grants: [] };
  return { kind: "queued", position: queues[0]!.position(all[0]!.grantId) };
}

export function mayEnter({ grantId, permits }: Claim, queue: Queue): boolean {
  return queue.get(grantId) !== undefined || queue.fits(permits);
}

/** It stands under another session than it should. */
export const isElsewhere = (place: Place | undefined, { session }: Kept): boolean =>
  place !== undefined && !place.ended && place.lease !== session.lease;

/** A grant, by the queue in which it was made. */
export interface Where {
  readonly token: bigint;
  readonly floor: bigint;
  readonly claimed: Claimed;
  readonly modRevision: bigint;
}

export function whereIn(queue: Queue, { grantId }: Kept): Where {
  const place = queue.get(grantId)!;
  const { token, modRevision } = place;
  return { token, floor: queue.floor(), claimed: claimedOf(place), modRevision };
}
