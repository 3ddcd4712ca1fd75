import { setImmediate as nextTurn } from "node:timers/promises";
import { isSettled, type SessionClaim, type SessionClaims } from "./claims.js";
import type { Session, SessionKey, SessionPort, SessionProof } from "./session.js";

const KEYS_PER_TURN = 500;

/**
 * Compares the keys under a session with the claims of this process. An orphan, a key that no claim here needs,
 * was written by a request that arrived after its claim was given up: it is deleted, as nobody else would. A
 * claim whose key is missing is lost.
 */
export async function reconcile<Id, Proof extends SessionProof>(
  session: Session<Id, Proof>,
  port: SessionPort<Id, Proof>,
  claims: SessionClaims<Session<Id, Proof>>,
): Promise<void> {
  const missing = new Map<string, SessionClaim<Session<Id, Proof>>>();
  for (const claim of claims.all()) {
    if (isSettled(claim, session)) missing.set(port.claimKey(claim.name, claim.grantId), claim);
  }
  const orphans: SessionKey[] = [];
  let read = 0;
  for (const key of await port.listKeys(session.id)) {
    // Thousands of keys must not block the event loop.
    if (++read % KEYS_PER_TURN === 0) await nextTurn();
    if (key.isClaim) missing.delete(key.key);
    if (claims.isOrphan(key)) orphans.push(key);
  }
  await claims.deleteOrphans(orphans);
  // The list may be out of date, and a claim may have moved to another session since.
  for (const key of await port.missingOf(session.id, [...missing.keys()])) {
    const claim = missing.get(key)!;
    if (claims.has(claim) && isSettled(claim, session)) claims.lose(claim);
  }
}
