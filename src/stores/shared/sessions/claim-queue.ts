import {
  type Claim,
  type ClaimAnswer,
  type LostAnswer,
  MOST_WAITERS,
  type Position,
} from "../../../core/store.js";

/** A claim on a name, as it is in the store. */
export interface StandingClaim {
  readonly grantId: string;
  /** Its place in the order of creation, and its token. */
  readonly token: bigint;
  readonly permits: number;
  readonly limit: number;
  readonly holder: string;
  readonly ttlMs: number;
  readonly atLeastMs: number;
  /** Whether it was granted under another limit, and stays. */
  readonly held?: boolean;
  /** Whether the claim is over, and only `atLeast` keeps the name closed. */
  readonly hasEnded: boolean;
  /** The store's lease that keeps the name closed by `atLeast`, if the claim was granted; otherwise null. */
  readonly atLeastLease: unknown;
}

/**
 * The claims on one name, in the order of their creation. As many from the front as fit together hold the
 * name. No claim overtakes another, so a granted claim stays granted until it is removed, and tokens are in
 * the order of the grants.
 */
export class ClaimQueue<C extends StandingClaim> {
  /** By grantId, in order. */
  protected claims = new Map<string, C>();

  get size(): number {
    return this.claims.size;
  }

  get(grantId: string): C | undefined {
    return this.claims.get(grantId);
  }

  get limit(): number | null {
    for (const { limit } of this.claims.values()) return limit;
    return null;
  }

  /** The last claim that has not ended: it is likely to stay longest. If all have ended, the last of them. */
  get last(): C | undefined {
    const claims = [...this.claims.values()];
    return claims.findLast(({ hasEnded }) => !hasEnded) ?? claims.at(-1);
  }

  holders(): C[] {
    const holders: C[] = [];
    let inUse = 0;
    for (const claim of this.claims.values()) {
      const { held, atLeastLease, permits, limit } = claim;
      if (held !== true && atLeastLease === null && inUse + permits > limit) break;
      inUse += permits;
      holders.push(claim);
    }
    return holders;
  }

  waiters(): C[] {
    return [...this.claims.values()].slice(this.holders().length);
  }

  /** Whether another claim, for this many permits, would be granted. */
  fits(permits: number): boolean {
    const holders = this.holders();
    const inUse = holders.reduce((sum, one) => sum + one.permits, 0);
    const limit = this.limit ?? Number.POSITIVE_INFINITY;
    return holders.length === this.size && inUse + permits <= limit;
  }

  /** Whether the claim is granted, and not over. */
  holds(grantId: string): boolean {
    return this.holders().some((one) => one.grantId === grantId && !one.hasEnded);
  }

  /** Why the claim can be neither granted nor queued; null if it can. */
  refusalOf(claim: Claim, name: string): ClaimAnswer | null {
    const { limit } = this;
    if (limit !== null && limit !== claim.limit) return { kind: "mismatch", name, limit };
    if (this.fits(claim.permits)) return null;
    if (!claim.queue) return { kind: "busy", name, position: this.position() };
    const waiting = this.waiters().length;
    return waiting >= MOST_WAITERS ? { kind: "full", name, waiting } : null;
  }

  /** Why the claim is neither granted nor waiting. `revokedBecause`: why it was revoked, if it was. */
  lostAnswer(grantId: string, revokedBecause: string | null): LostAnswer {
    if (revokedBecause !== null) return { kind: "lost", reason: "revoked", why: revokedBecause };
    const isTaken = this.holders().some((one) => !one.hasEnded && one.grantId !== grantId);
    return { kind: "lost", reason: isTaken ? "superseded" : "expired" };
  }

  /** The lowest token that holds the name. */
  floor(): bigint {
    return this.holders().find(({ hasEnded }) => !hasEnded)!.token;
  }

  /** The position of this ticket, or of one that would be added. */
  position(grantId?: string): Position {
    const holders = this.holders();
    const waiters = this.waiters();
    const at = waiters.findIndex((one) => one.grantId === grantId);
    const freeInMs = holders.map(({ hasEnded, ttlMs, atLeastMs }) =>
      hasEnded ? atLeastMs : ttlMs,
    );
    return {
      ahead: at === -1 ? waiters.length : at,
      freeInMs: Math.min(...freeInMs, Number.POSITIVE_INFINITY),
      holder: holders[0]?.holder ?? null,
    };
  }
}
