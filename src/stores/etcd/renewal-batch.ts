import type { LostAnswer, RenewAnswer, Renewal } from "../../core/store.js";
import { RenewalBatch } from "../shared/sessions/renewal-batch.js";
import type { EtcdContext } from "./context.js";
import type { Queue } from "./queue.js";
import { reasonOfNotice } from "./revocations.js";
import type { EtcdClaim, EtcdProof } from "./session-port.js";
import { isMisplaced } from "./waiters.js";

/** Renewals that were requested together: they also share one read for all tickets. */
export class EtcdRenewalBatch extends RenewalBatch<bigint, EtcdProof> {
  readonly #context: EtcdContext;
  /** The names of all tickets. */
  readonly #queues: Promise<ReadonlyMap<string, Queue | Error>>;
  /** Claims that moved to another session: reads from before that are out of date. */
  readonly #moved = new Set<EtcdClaim>();

  constructor(context: EtcdContext, renewals: readonly Renewal[]) {
    super(context, renewals);
    this.#context = context;
    const tickets = renewals.filter(({ name, grantId }) => {
      const claim = context.claims.get(name, grantId);
      return claim !== undefined && claim.state !== "held";
    });
    this.#queues = context.waiters.read([...new Set(tickets.map(({ name }) => name))]);
    this.#queues.catch(() => {});
  }

  protected async extend(
    claim: EtcdClaim,
    ttlMs: number,
    isLatest: boolean,
  ): Promise<LostAnswer | null> {
    const { sessions } = this.#context;
    if (isLatest && (claim.isMoving || !sessions.isFor(claim.session, ttlMs))) {
      this.#moved.add(claim);
      if (!(await this.#moveSession(claim, ttlMs))) return this.lose(claim);
    }
    if (claim.isMoving) throw new Error("the claim is on its way to the session of another ttl");
    return this.#proveAndRead(claim);
  }

  protected async renewTicket(claim: EtcdClaim): Promise<RenewAnswer> {
    const { moves, grants, waiters } = this.#context;
    const { name, grantId } = claim;
    const read = this.#moved.has(claim) ? undefined : (await this.#queues).get(name);
    const queue = read ?? (await waiters.read([name])).get(name)!;
    if (queue instanceof Error) throw queue;
    const record = queue.get(grantId);
    if (record === undefined) return this.lose(claim);
    if (isMisplaced(record, claim)) {
      await moves.bringBack(claim, record.modRevision);
      throw new Error("the ticket stood under another session; it is brought back, retry");
    }
    if (!queue.holds(grantId)) return { kind: "queued", position: queue.position(grantId) };
    const isHeld = await grants.complete(claim, queue.granted(grantId));
    return isHeld ? this.granted(claim) : this.lose(claim);
  }

  /** Proves the session, and reads with it whether the grant was revoked. */
  async #proveAndRead(claim: EtcdClaim): Promise<LostAnswer | null> {
    const { claims, keys, transactions } = this.#context;
    const { notices } = await this.prove(claim.session);
    const key = keys.notice(claim.session.id, claim.name, claim.grantId);
    const notice = notices.get(key);
    if (notice === undefined) return null;
    claims.drop(claim);
    transactions.delete([key]).catch(() => {});
    return { kind: "lost", reason: "revoked", why: reasonOfNotice(notice) };
  }

  /** False: the claim is gone. A server that is full refuses new sessions, and the old one is still good. */
  async #moveSession(claim: EtcdClaim, ttlMs: number): Promise<boolean> {
    try {
      return await this.#context.moves.move(claim, ttlMs);
    } catch (error) {
      if (claim.isMoving) throw error;
      return true;
    }
  }
}
