import type { LostAnswer, RenewAnswer, Renewal } from "../../core/store.js";
import { SessionExpired, type SessionProof } from "../shared/sessions/session.js";
import { describeFirstHolder } from "./claim-reads.js";
import type { ZooKeeperContext } from "./context.js";
import { toStoreError } from "./errors.js";
import type { Queue } from "./queue.js";
import type { ZooKeeperClaim, ZooKeeperSession } from "./session-port.js";

/**
 * Renewals that were requested together: they share one proof per session, and one read for all tickets of
 * a name. A claim is good while its session is, unless its node is known to be gone.
 */
export class RenewalBatch {
  readonly #context: ZooKeeperContext;
  readonly #renewals: readonly Renewal[];
  readonly #requestedAtMs: number;
  readonly #proofs = new Map<ZooKeeperSession, Promise<SessionProof>>();
  readonly #queues = new Map<string, Promise<Queue>>();

  constructor(context: ZooKeeperContext, renewals: readonly Renewal[]) {
    this.#context = context;
    this.#renewals = renewals;
    this.#requestedAtMs = context.clock.elapsedMs();
  }

  send(): Promise<readonly RenewAnswer[]> {
    return Promise.all(
      this.#renewals.map((renewal) =>
        this.#renew(renewal).catch(
          (cause: unknown): RenewAnswer => ({ kind: "unknown", cause: toStoreError(cause) }),
        ),
      ),
    );
  }

  async #renew({ name, grantId, seq }: Renewal): Promise<RenewAnswer> {
    const { claims, sessions } = this.#context;
    const claim = claims.get(name, grantId);
    if (claim === undefined) return this.#context.whyLost(name, grantId);
    claims.renew(claim, seq, this.#requestedAtMs);
    try {
      await this.#prove(claim.session);
      // It was revoked, or its node was found to be gone.
      if (!claims.has(claim)) return await this.#context.whyLost(name, grantId);
      if (claim.state === "held") return this.#granted(claim);
      return await this.#renewTicket(claim);
    } catch (error) {
      if (!(error instanceof SessionExpired)) throw error;
      sessions.forget(error.session);
      return this.#lose(claim);
    }
  }

  #prove(session: ZooKeeperSession): Promise<SessionProof> {
    const proof = this.#proofs.get(session) ?? session.prove();
    this.#proofs.set(session, proof);
    return proof;
  }

  /** Reads the name behind the proof, as an event may have been missed. */
  async #renewTicket(claim: ZooKeeperClaim): Promise<RenewAnswer> {
    const { name, grantId, session } = claim;
    const read = this.#queues.get(name) ?? session.id.watches.read(name);
    this.#queues.set(name, read);
    const queue = await read;
    if (!this.#context.claims.has(claim)) return this.#context.whyLost(name, grantId);
    if (claim.state === "held") return this.#granted(claim);
    if (queue.get(grantId) === undefined) return this.#lose(claim);
    // The claim's own request, or its handover, is under way: its answer says more.
    if (claim.state === "requested") throw new Error("the claim is being answered; retry");
    await describeFirstHolder(session.id, name, queue);
    return { kind: "queued", position: queue.position(grantId) };
  }

  #granted(claim: ZooKeeperClaim): RenewAnswer {
    return { kind: "granted", grant: this.#context.claims.grantOf(claim, false) };
  }

  #lose(claim: ZooKeeperClaim): Promise<LostAnswer> {
    if (this.#context.claims.has(claim)) this.#context.drop(claim);
    return this.#context.whyLost(claim.name, claim.grantId);
  }
}
