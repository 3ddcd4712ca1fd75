import type { Claim, ClaimAnswer, LostAnswer } from "../../core/store.js";
import type { Keys } from "./keys.js";
import { Queue } from "./queue.js";
import { decodeRevocations, reasonOf } from "./revocations.js";
import type { TxnReply } from "./rpc/client.js";
import type { Op } from "./rpc/messages.js";
import type { Transactions } from "./transactions.js";

/** A name as it was read for one claim. */
interface NameSnapshot {
  readonly queue: Queue;
  /** Why the claim's own grant was revoked; null: it was not. */
  readonly revokedBecause: string | null;
}

/** The names of a claim as one transaction read them, all at one revision. */
export type Snapshot = readonly NameSnapshot[];

type Names = Pick<Claim, "names" | "grantId">;

/** Reads each name, and whether the claim's own grant on it was revoked. */
export function snapshotReads(keys: Keys, { names, grantId }: Names): Op[] {
  return names.flatMap((name) => [
    { range: keys.name(name) },
    { range: { key: keys.revocation(name, grantId) } },
  ]);
}

/** The snapshot from a reply whose last operations are the `snapshotReads`. */
export function toSnapshot(keys: Keys, { names }: Names, reply: TxnReply): Snapshot {
  const { responses, revision } = reply;
  const first = responses.length - 2 * names.length;
  return names.map((_, i) => {
    const [claims, revoked] = [responses[first + 2 * i]!, responses[first + 2 * i + 1]!];
    const queue = new Queue(keys, claims.range!.kvs, revision);
    const [own] = decodeRevocations(keys, revoked.range!.kvs);
    return { queue, revokedBecause: own === undefined ? null : reasonOf(own) };
  });
}

/** The answer to a claim that stands already, or is refused, name by name; null: it is to be added. */
export function answerFrom(claim: Claim, snapshot: Snapshot): ClaimAnswer | "granted" | null {
  const { names, grantId } = claim;
  let standing = 0;
  let isWaiting = false;
  for (const [i, name] of names.entries()) {
    const { queue, revokedBecause } = snapshot[i]!;
    const own = queue.get(grantId);
    if (revokedBecause !== null || own?.hasEnded) return queue.lostAnswer(grantId, revokedBecause);
    if (own === undefined) {
      const refusal = queue.refusalOf(claim, name);
      if (refusal !== null) return refusal;
      continue;
    }
    standing++;
    if (!queue.holds(grantId)) isWaiting = true;
  }
  if (standing < names.length) return null;
  return isWaiting ? { kind: "queued", position: snapshot[0]!.queue.position(grantId) } : "granted";
}

/**
 * Reads why a claim is neither granted nor waiting. One request for all that want to know it in this
 * turn of the event loop: after an outage, many releases find nothing.
 */
export async function whyLost(
  { keys, transactions }: { readonly keys: Keys; readonly transactions: Transactions },
  name: string,
  grantId: string,
): Promise<LostAnswer> {
  const claim = { names: [name], grantId };
  const reads = { success: snapshotReads(keys, claim) };
  const reply = await transactions.sendBatched(claim.names, reads, true);
  const { queue, revokedBecause } = toSnapshot(keys, claim, reply)[0]!;
  return queue.lostAnswer(grantId, revokedBecause);
}
