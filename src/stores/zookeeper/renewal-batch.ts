import type { LostAnswer, RenewAnswer, Renewal } from "../../core/store.js";
import { LOST } from "../shared/lost.js";
import { RenewalBatch } from "../shared/sessions/renewal-batch.js";
import { SessionExpired, type SessionProof } from "../shared/sessions/session.js";
import { describeFirstHolder } from "./claim-reads.js";
import type { ZooKeeperContext } from "./context.js";
import type { Link } from "./link.js";
import type { Queue } from "./queue.js";
import type { ZooKeeperClaim } from "./session-port.js";

/** Renewals that were requested together: they also share one read for all tickets of a name. */
export class ZooKeeperRenewalBatch extends RenewalBatch<Link, SessionProof> {
  readonly #context: ZooKeeperContext;
  readonly #queues = new Map<string, Promise<Queue>>();

  constructor(context: ZooKeeperContext, renewals: readonly Renewal[]) {
    super(context, renewals);
    this.#context = context;
  }

  protected async extend(claim: ZooKeeperClaim): Promise<LostAnswer | null> {
    try {
      await this.prove(claim.session);
      return null;
    } catch (error) {
      if (!(error instanceof SessionExpired)) throw error;
      this.#context.sessions.forget(claim.session);
      this.#context.claims.drop(claim);
      // The reason is not read: the reply might come only after another client was granted the name.
      return LOST;
    }
  }

  protected async renewTicket(claim: ZooKeeperClaim): Promise<RenewAnswer> {
    const { claims } = this.#context;
    const { name, grantId, session } = claim;
    const read = this.#queues.get(name) ?? session.id.watches.read(name);
    this.#queues.set(name, read);
    const queue = await read;
    if (!claims.has(claim)) return this.#context.whyLost(name, grantId);
    if (claim.state === "held") return this.granted(claim);
    // The claim's own request is under way, and its reply says more.
    if (claim.token === 0n) throw new Error("the claim is being answered; retry");
    if (queue.get(grantId) === undefined) return this.lose(claim);
    if (queue.holds(grantId)) {
      const isHeld = await this.#context.complete(claim, queue, claim.token);
      return isHeld ? this.granted(claim) : this.lose(claim);
    }
    await describeFirstHolder(session.id, name, queue);
    return { kind: "queued", position: queue.position(grantId) };
  }
}
