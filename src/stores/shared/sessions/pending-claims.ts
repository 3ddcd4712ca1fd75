import type { Clock } from "../../../core/clock.js";
import type { Awaitable, Claim, ClaimAnswer, Push } from "../../../core/store.js";
import { LOST } from "../lost.js";
import type { ClaimRequest, SessionClaim, SessionClaims } from "./claims.js";
import { type Session, SessionExpired, type SessionProof } from "./session.js";
import type { Sessions } from "./sessions.js";

/** A claim that is not answered yet. */
export interface PendingClaim {
  readonly claim: Claim;
  /** The latest request for it. */
  request: ClaimRequest;
  /** Settles when all earlier claims of this process on the name are answered; null: there are none. */
  readonly earlier: Promise<void> | null;
}

/** The operations of a store that claims use. */
export interface ClaimPort<S> {
  /** Claims under the session, behind the `earlier` claims. `own`: one for each name, in order. */
  attempt(pending: PendingClaim, own: readonly SessionClaim<S>[]): Promise<ClaimAnswer>;
  /** Whether the error may mean that the session has expired. */
  mayBeExpired(error: unknown): boolean;
}

/**
 * The claims that are not answered yet. Each is made under a living session, and knows the earlier ones on its
 * name, because a server serves concurrent requests in any order.
 */
export class PendingClaims<Id, Proof extends SessionProof> {
  readonly #clock: Clock;
  readonly #sessions: Sessions<Id, Proof>;
  readonly #claims: SessionClaims<Session<Id, Proof>>;
  readonly #port: ClaimPort<Session<Id, Proof>>;
  /** By name: settles when all claims on it that may wait are answered. */
  readonly #answered = new Map<string, Promise<void>>();
  /** By grantId. */
  readonly #pending = new Map<string, { pending: PendingClaim; answer: Promise<ClaimAnswer> }>();

  constructor(
    clock: Clock,
    sessions: Sessions<Id, Proof>,
    claims: SessionClaims<Session<Id, Proof>>,
    port: ClaimPort<Session<Id, Proof>>,
  ) {
    this.#clock = clock;
    this.#sessions = sessions;
    this.#claims = claims;
    this.#port = port;
  }

  claim(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    const { names, grantId, seq } = claim;
    const request = { seq, requestedAtMs: this.#clock.elapsedMs(), push };
    const there = this.#pending.get(grantId);
    if (there !== undefined) {
      // Sends no second request, which would only load a slow server.
      this.#repeat(there.pending, request);
      return there.answer;
    }
    // Only a claim that may wait has a place in the order.
    const name = claim.queue && names.length === 1 ? names[0]! : null;
    const earlier = name === null ? null : (this.#answered.get(name) ?? null);
    const pending: PendingClaim = { claim, request, earlier };
    const answer = this.#claim(pending).finally(() => this.#pending.delete(grantId));
    this.#pending.set(grantId, { pending, answer });
    if (name !== null) this.#putInOrder(name, earlier, answer);
    return answer;
  }

  /** Later claims on the name come after this one. */
  #putInOrder(name: string, earlier: Promise<void> | null, answer: Promise<ClaimAnswer>): void {
    const toEarlier = (): Promise<void> | null => earlier;
    const answered: Promise<void> = answer.then(toEarlier, toEarlier).then(() => {
      if (this.#answered.get(name) === answered) this.#answered.delete(name);
    });
    this.#answered.set(name, answered);
  }

  #repeat(pending: PendingClaim, request: ClaimRequest): void {
    const { names, grantId } = pending.claim;
    if (request.seq > pending.request.seq) pending.request = request;
    for (const name of names) {
      const claim = this.#claims.get(name, grantId);
      if (claim !== undefined) this.#claims.repeat(claim, request);
    }
  }

  /** Claims under the session of the ttl, and once more if that session turns out to be gone. */
  async #claim(pending: PendingClaim): Promise<ClaimAnswer> {
    for (let isRetry = false; ; isRetry = true) {
      const { ttlMs } = pending.claim;
      // Usually the session exists, so nothing has to be awaited.
      const session = this.#sessions.fresh(ttlMs) ?? (await this.#sessions.use(ttlMs));
      try {
        return await this.#claimUnder(session, pending);
      } catch (error) {
        const expired = await this.#expiredSession(session, error);
        if (isRetry || expired === null) throw error;
        this.#sessions.forget(expired);
      }
    }
  }

  #claimUnder(session: Session<Id, Proof>, pending: PendingClaim): Awaitable<ClaimAnswer> {
    const { claim, request } = pending;
    const { names, grantId, driftFactor } = claim;
    // After this answer, the core claims again under another id.
    if (names.some((name) => this.#claims.wasSwept(name, grantId))) return LOST;
    const own = names.map((name) => this.#claims.add(name, grantId, session, request, driftFactor));
    return this.#port.attempt(pending, own);
  }

  /** The expired session that made a claim fail; null: it failed for another reason. */
  async #expiredSession(session: Session<Id, Proof>, error: unknown) {
    if (error instanceof SessionExpired) return error.session;
    if (!this.#port.mayBeExpired(error)) return null;
    return session.prove().then(
      () => null,
      (cause: unknown) => (cause instanceof SessionExpired ? session : null),
    );
  }
}
