import type { LostAnswer, RenewAnswer, Renewal } from "../../core/store.js";
import { SessionExpired } from "../shared/sessions/session.js";
import type { EtcdContext } from "./context.js";
import { toStoreError } from "./errors.js";
import type { Queue } from "./queue.js";
import { reasonOfNotice } from "./revocations.js";
import type { EtcdClaim, EtcdProof, EtcdSession } from "./session-port.js";
import { whyLost } from "./snapshot.js";
import { isMisplaced } from "./waiters.js";

/**
 * Renewals that were requested together: they share one proof per session, and one read for all
 * tickets. A claim is good while its session is, unless its key is known to be gone.
 */
export class RenewalBatch {
  readonly #context: EtcdContext;
  readonly #renewals: readonly Renewal[];
  readonly #requestedAtMs: number;
  readonly #proofs = new Map<EtcdSession, Promise<EtcdProof>>();
  /** The names of all tickets. */
  readonly #queues: Promise<ReadonlyMap<string, Queue | Error>>;

  constructor(context: EtcdContext, renewals: readonly Renewal[]) {
    this.#context = context;
    this.#renewals = renewals;
    this.#requestedAtMs = context.clock.elapsedMs();
    const tickets = renewals.filter(({ name, grantId }) => {
      const claim = context.claims.get(name, grantId);
      return claim !== undefined && claim.state !== "held";
    });
    this.#queues = context.waiters.read([...new Set(tickets.map(({ name }) => name))]);
    this.#queues.catch(() => {});
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

  async #renew({ name, grantId, seq, ttlMs }: Renewal): Promise<RenewAnswer> {
    const { claims, sessions, waiters } = this.#context;
    const claim = claims.get(name, grantId);
    if (claim === undefined) return whyLost(this.#context, name, grantId);
    const isLatest = claims.renew(claim, seq, this.#requestedAtMs);
    try {
      const mustMove = isLatest && (claim.isMoving || !sessions.isFor(claim.session, ttlMs));
      if (mustMove && !(await this.#moveSession(claim, ttlMs))) return await this.#lose(claim);
      if (claim.isMoving) throw new Error("the claim is on its way to the session of another ttl");
      const revoked = await this.#proveAndRead(claim);
      if (revoked !== null) return revoked;
      // Meanwhile its key may have been found to be gone.
      if (!claims.has(claim)) return await whyLost(this.#context, name, grantId);
      if (claim.state === "held") return this.#granted(claim);
      // A read from before the move is out of date.
      const read = mustMove ? undefined : (await this.#queues).get(name);
      return await this.#renewTicket(claim, read ?? (await waiters.read([name])).get(name)!);
    } catch (error) {
      if (!(error instanceof SessionExpired)) throw error;
      sessions.forget(error.session);
      // The claim may have moved to another session since.
      if (claim.session !== error.session) throw error;
      return this.#lose(claim);
    }
  }

  /** Proves the session, and reads with it whether the grant was revoked. */
  async #proveAndRead(claim: EtcdClaim): Promise<LostAnswer | null> {
    const { claims, keys, transactions } = this.#context;
    const { session } = claim;
    const proof = this.#proofs.get(session) ?? session.prove();
    this.#proofs.set(session, proof);
    const { notices } = await proof;
    const key = keys.notice(claim.session.id, claim.name, claim.grantId);
    const notice = notices.get(key);
    if (notice === undefined) return null;
    claims.drop(claim);
    transactions.delete([key]).catch(() => {});
    return { kind: "lost", reason: "revoked", why: reasonOfNotice(notice) };
  }

  async #renewTicket(claim: EtcdClaim, queue: Queue | Error): Promise<RenewAnswer> {
    const { moves, grants } = this.#context;
    if (queue instanceof Error) throw queue;
    const record = queue.get(claim.grantId);
    if (record === undefined) return this.#lose(claim);
    if (isMisplaced(record, claim)) {
      await moves.bringBack(claim, record.modRevision);
      throw new Error("the ticket stood under another session; it is brought back, retry");
    }
    if (!queue.holds(claim.grantId)) {
      return { kind: "queued", position: queue.position(claim.grantId) };
    }
    const isHeld = await grants.complete(claim, queue.granted(claim.grantId));
    return isHeld ? this.#granted(claim) : this.#lose(claim);
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

  #granted(claim: EtcdClaim): RenewAnswer {
    return { kind: "granted", grant: this.#context.claims.grantOf(claim, false) };
  }

  #lose(claim: EtcdClaim): Promise<LostAnswer> {
    this.#context.claims.drop(claim);
    return whyLost(this.#context, claim.name, claim.grantId);
  }
}
