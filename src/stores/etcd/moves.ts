import { createdAt, modifiedAt } from "./compare.js";
import type { Kept } from "./kept.js";
import type { Keys } from "./keys.js";
import { fasterAgain, TRIES } from "./names.js";
import type { EtcdClient } from "./rpc/client.js";
import { EtcdError } from "./rpc/errors.js";
import type { Session } from "./session.js";
import type { Sessions } from "./sessions.js";

/** Claims that change their session, as by `renew` to another ttl. */
export class Moves {
  readonly #client: EtcdClient;
  readonly #keys: Keys;
  readonly #sessions: Sessions;
  readonly #sweepIn: (ms: number) => void;

  constructor(client: EtcdClient, keys: Keys, sessions: Sessions, sweepIn: (ms: number) => void) {
    this.#client = client;
    this.#keys = keys;
    this.#sessions = sessions;
    this.#sweepIn = sweepIn;
  }

  /**
   * To the session of another ttl, one move after the other. False: its key is gone. If it fails and
   * `moving` is false after that, the claim stands where it stood.
   */
  move(kept: Kept, ttlMs: number): Promise<boolean> {
    kept.moving = true;
    const { seq } = kept;
    const move = async (): Promise<boolean> => {
      // A later one decides.
      if (kept.seq !== seq) throw new Error("etcd: it was renewed to another ttl meanwhile");
      kept.moving = true;
      try {
        // The core counts the new ttl from the ask, whether this is answered or not.
        const session = await this.#sessions.use(ttlMs, kept.askedAtMs);
        const there = await this.#putUnder(kept, session);
        kept.session = session;
        kept.unsettled = false;
        this.#sweepIn(session.ttlMs);
        return there;
      } finally {
        kept.moving = kept.unsettled;
      }
    };
    const moved = kept.moved === null ? move() : kept.moved.then(move, move);
    kept.moved = moved;
    return moved;
  }

  /** Found under another session than ours: one that was given up, or is another store's. */
  async bring(kept: Kept): Promise<void> {
    await this.#putUnder(kept, kept.session);
  }

  /** What a session has is told by a leader that may be none; this is read. */
  async isGone(kept: Kept): Promise<boolean> {
    const { session } = kept;
    const { kvs } = await this.#client.range({ key: this.#key(kept) });
    if (kept.moving || kept.session !== session)
      throw new Error("etcd: it moves to another session");
    kept.gone = kvs[0]?.lease !== session.lease;
    return kept.gone;
  }

  /** By its last change: an attempt that comes late can't undo a later one. False: its key is gone. */
  async #putUnder(kept: Kept, session: Session): Promise<boolean> {
    const key = this.#key(kept);
    // A resize may have changed the value.
    const put = { key, value: "", ignoreValue: true, lease: session.lease };
    for (let tries = 0; tries < TRIES; tries++) {
      const txn = {
        compare: [modifiedAt(key, kept.modRevision), createdAt(key, 0n, "NOT_EQUAL")],
        success: [{ put }],
        failure: [{ range: { key } }],
      };
      const { succeeded, revision, responses } = await this.#client
        .txn(txn, { again: true })
        .catch((error: unknown) => {
          if (!isRefused(error)) kept.unsettled = true;
          throw error;
        });
      if (succeeded) {
        kept.modRevision = revision;
        return true;
      }
      const [there] = responses[0]!.range!.kvs;
      if (there === undefined) return false;
      kept.modRevision = there.modRevision;
      if (there.lease === session.lease) return true;
    }
    throw fasterAgain();
  }

  #key({ name, grantId }: Kept): string {
    return this.#keys.claim(name, grantId);
  }
}

/** Nothing was written, as on a server whose quota is used up. */
const isRefused = (error: unknown): boolean =>
  error instanceof EtcdError && error.executed === "no";
