import type { LostAnswer, RenewAnswer, Renewal } from "../../../core/store.js";
import type { SessionClaim, SessionClaims } from "./claims.js";
import { type Session, SessionExpired, type SessionProof } from "./session.js";
import type { Sessions } from "./sessions.js";

/** The objects of a store that renewals use. */
export interface RenewalContext<Id, Proof extends SessionProof> {
  readonly clock: { elapsedMs(): number };
  readonly claims: SessionClaims<Session<Id, Proof>>;
  readonly sessions: Sessions<Id, Proof>;
  /** Reads why a claim is neither granted nor waiting. */
  whyLost(name: string, grantId: string): Promise<LostAnswer>;
  /** Converts errors that a retry can't fix into errors of ours that are not retryable. */
  toStoreError(error: unknown): unknown;
}

/**
 * Renewals that were requested together: they share one proof per session. A claim is good while its session is,
 * unless its key is known to be gone.
 */
export abstract class RenewalBatch<Id, Proof extends SessionProof> {
  readonly #context: RenewalContext<Id, Proof>;
  readonly #renewals: readonly Renewal[];
  readonly #requestedAtMs: number;
  readonly #proofs = new Map<Session<Id, Proof>, Promise<Proof>>();

  constructor(context: RenewalContext<Id, Proof>, renewals: readonly Renewal[]) {
    this.#context = context;
    this.#renewals = renewals;
    this.#requestedAtMs = context.clock.elapsedMs();
  }

  send(): Promise<readonly RenewAnswer[]> {
    return Promise.all(
      this.#renewals.map((renewal) =>
        this.#renew(renewal).catch((error: unknown): RenewAnswer => {
          return { kind: "unknown", cause: this.#context.toStoreError(error) };
        }),
      ),
    );
  }

  /** Extends the claim by a proof of its session. `isLatest`: no later renewal of it is known. Null: it was extended. */
  protected abstract extend(
    claim: SessionClaim<Session<Id, Proof>>,
    ttlMs: number,
    isLatest: boolean,
  ): Promise<LostAnswer | null>;

  /** Reads the name behind the proof, as an event may have been missed. */
  protected abstract renewTicket(claim: SessionClaim<Session<Id, Proof>>): Promise<RenewAnswer>;

  protected prove(session: Session<Id, Proof>): Promise<Proof> {
    const proof = this.#proofs.get(session) ?? session.prove();
    this.#proofs.set(session, proof);
    return proof;
  }

  protected granted(claim: SessionClaim<Session<Id, Proof>>): RenewAnswer {
    return { kind: "granted", grant: this.#context.claims.grantOf(claim, false) };
  }

  protected lose(claim: SessionClaim<Session<Id, Proof>>): Promise<LostAnswer> {
    this.#context.claims.drop(claim);
    return this.#context.whyLost(claim.name, claim.grantId);
  }

  async #renew({ name, grantId, seq, ttlMs }: Renewal): Promise<RenewAnswer> {
    const { claims, sessions } = this.#context;
    const claim = claims.get(name, grantId);
    if (claim === undefined) return this.#context.whyLost(name, grantId);
    const isLatest = claims.renew(claim, seq, this.#requestedAtMs);
    try {
      const lost = await this.extend(claim, ttlMs, isLatest);
      if (lost !== null) return lost;
      // Meanwhile it may have been revoked, or its key was found to be gone.
      if (!claims.has(claim)) return await this.#context.whyLost(name, grantId);
      return claim.state === "held" ? this.granted(claim) : await this.renewTicket(claim);
    } catch (error) {
      if (!(error instanceof SessionExpired)) throw error;
      sessions.forget(error.session);
      // The claim may have moved to another session since.
      if (claim.session !== error.session) throw error;
      return this.lose(claim);
    }
  }
}
