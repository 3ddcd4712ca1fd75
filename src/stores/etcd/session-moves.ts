import type { SessionClaims } from "../shared/sessions/claims.js";
import { ATTEMPTS, tooMuchContentionError } from "../shared/sessions/operations.js";
import type { Sessions } from "../shared/sessions/sessions.js";
import type { Keys } from "./keys.js";
import { createdAt, modifiedAt } from "./rpc/compare.js";
import { EtcdError } from "./rpc/errors.js";
import type { EtcdClaim, EtcdProof, EtcdSession } from "./session-port.js";
import type { Transactions } from "./transactions.js";

/** The state of a claim that was moved to another session. */
interface MoveState {
  /** The latest move, which the next one follows. */
  latest: Promise<unknown>;
  /** A request got no reply: its key may stand under either session. */
  isUnsettled: boolean;
  /** The revision at which its key was last changed, as far as is known. */
  modRevision: bigint;
}

/** Moves claims to the session of another ttl. */
export class SessionMoves {
  readonly #keys: Keys;
  readonly #transactions: Transactions;
  readonly #sessions: Sessions<bigint, EtcdProof>;
  readonly #claims: SessionClaims<EtcdSession>;
  readonly #moves = new WeakMap<EtcdClaim, MoveState>();

  constructor(
    keys: Keys,
    transactions: Transactions,
    sessions: Sessions<bigint, EtcdProof>,
    claims: SessionClaims<EtcdSession>,
  ) {
    this.#keys = keys;
    this.#transactions = transactions;
    this.#sessions = sessions;
    this.#claims = claims;
  }

  /**
   * Moves a claim to the session of this ttl, after earlier moves. False: its key is gone. If this
   * rejects and the claim is not `isMoving` after that, its key stands where it stood.
   */
  move(claim: EtcdClaim, ttlMs: number): Promise<boolean> {
    const move = this.#moveOf(claim);
    const { seq } = claim;
    const run = (): Promise<boolean> => this.#move(claim, move, claim.seq === seq, ttlMs);
    this.#claims.startMove(claim);
    const moved = move.latest.then(run, run);
    move.latest = moved;
    return moved;
  }

  /** Brings a key back that stands under a session that was given up, or is another store's. */
  async bringBack(claim: EtcdClaim, modRevision: bigint): Promise<void> {
    const move = this.#moveOf(claim);
    move.modRevision = modRevision;
    await this.#putUnder(claim, move, claim.session);
  }

  #moveOf(claim: EtcdClaim): MoveState {
    const there = this.#moves.get(claim);
    if (there !== undefined) return there;
    const move = { latest: Promise.resolve(), isUnsettled: false, modRevision: claim.token };
    this.#moves.set(claim, move);
    return move;
  }

  async #move(
    claim: EtcdClaim,
    move: MoveState,
    isLatest: boolean,
    ttlMs: number,
  ): Promise<boolean> {
    // The later renewal decides.
    if (!isLatest) throw new Error("the claim was renewed to another ttl meanwhile");
    this.#claims.startMove(claim);
    try {
      // The core counts the new ttl from the request on, whether this is answered or not.
      const session = await this.#sessions.use(ttlMs, claim.requestedAtMs);
      const isThere = await this.#putUnder(claim, move, session);
      move.isUnsettled = false;
      this.#claims.settle(claim, session);
      return isThere;
    } catch (error) {
      if (!move.isUnsettled) this.#claims.settle(claim);
      throw error;
    }
  }

  /** Compares the key's last change: a request that arrives late can't undo a later one. False: the key is gone. */
  async #putUnder(claim: EtcdClaim, move: MoveState, session: EtcdSession): Promise<boolean> {
    const key = this.#keys.claim(claim.name, claim.grantId);
    // A resize may have changed the value.
    const put = { key, value: "", ignoreValue: true, lease: session.id };
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const txn = {
        compare: [modifiedAt(key, move.modRevision), createdAt(key, 0n, "NOT_EQUAL")],
        success: [{ put }],
        failure: [{ range: { key } }],
      };
      const reply = await this.#transactions.send(txn).catch((error: unknown) => {
        // A server whose quota is used up refuses, and has written nothing.
        const isRefused = error instanceof EtcdError && error.executed === "no";
        if (!isRefused) move.isUnsettled = true;
        throw error;
      });
      if (reply.succeeded) {
        move.modRevision = reply.revision;
        return true;
      }
      const [there] = reply.responses[0]!.range!.kvs;
      if (there === undefined) return false;
      move.modRevision = there.modRevision;
      if (there.lease === session.id) return true;
    }
    throw tooMuchContentionError(claim.name);
  }
}
