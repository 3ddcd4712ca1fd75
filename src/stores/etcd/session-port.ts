import type { Clock } from "../../core/clock.js";
import type { SessionClaim } from "../shared/sessions/claims.js";
import type {
  BegunSession,
  Session,
  SessionKey,
  SessionPort,
  SessionProof,
} from "../shared/sessions/session.js";
import { hasFallen, refuseFallen } from "./errors.js";
import type { Keys } from "./keys.js";
import { encodeValue } from "./queue.js";
import type { EtcdClient } from "./rpc/client.js";
import type { Transactions } from "./transactions.js";

export interface EtcdProof extends SessionProof {
  /** Notices that grants under the session were revoked, by their keys, as they were written. */
  readonly notices: ReadonlyMap<string, string>;
}

/** The session's id is its lease in etcd. */
export type EtcdSession = Session<bigint, EtcdProof>;
export type EtcdClaim = SessionClaim<EtcdSession>;

/** Timeout of a keepalive, as a share of the ttl, so that several fit into it. */
const PROOF_TIMEOUT = { share: 1 / 5, leastMs: 200, mostMs: 5_000 };
/** A session that can't be ended expires by itself. */
const END_TIMEOUT_MS = 500;

/** Sessions as leases of etcd. */
export class EtcdSessionPort implements SessionPort<bigint, EtcdProof> {
  readonly #client: EtcdClient;
  readonly #transactions: Transactions;
  readonly #clock: Clock;
  readonly #keys: Keys;
  readonly #clusterMayHaveChanged: () => void;
  /** The last member that answered, and its term. */
  #answeredBy = "";

  /** `clusterMayHaveChanged`: a session has begun, or another member or leader answers it. */
  constructor(
    client: EtcdClient,
    transactions: Transactions,
    clock: Clock,
    keys: Keys,
    clusterMayHaveChanged: () => void = () => {},
  ) {
    this.#client = client;
    this.#transactions = transactions;
    this.#clock = clock;
    this.#keys = keys;
    this.#clusterMayHaveChanged = clusterMayHaveChanged;
  }

  async begin(ttlMs: number): Promise<BegunSession<bigint>> {
    const provedAtMs = this.#clock.elapsedMs();
    const { id, ttlS } = await this.#client.leaseGrant(ttlMs / 1_000);
    const put = { key: this.#keys.session(id), value: encodeValue({}), lease: id };
    const reply = refuseFallen(await this.#transactions.send({ success: [{ put }] }));
    this.#answeredBy = "";
    this.#noteMember(reply);
    return { id, ttlMs: ttlS * 1_000, provedAtMs };
  }

  /**
   * A keepalive alone proves nothing: a leader that was deposed, and does not know it, answers it.
   * With it goes a linearizable read of the session's key. If one member answered both in one term,
   * then that term's leader, which kept the lease alive, was the leader at some moment after both
   * were sent; and a later leader begins the whole ttl anew.
   */
  async prove({ id, ttlMs }: { id: bigint; ttlMs: number }): Promise<EtcdProof | null> {
    const provedAtMs = this.#clock.elapsedMs();
    const { share, leastMs, mostMs } = PROOF_TIMEOUT;
    const timeoutMs = Math.max(leastMs, Math.min(ttlMs * share, mostMs));
    const [kept, read] = await Promise.all([
      this.#client.leaseKeepAlive(id, { timeoutMs }),
      this.#client.range(this.#keys.sessionAndNotices(id), { timeoutMs }),
    ]);
    const [session, ...notices] = read.kvs;
    // In a cluster restored from a snapshot the session may live, and later claims be gone.
    if (session?.key !== this.#keys.session(id) || hasFallen(read)) return null;
    if (kept.ttlS <= 0) throw new Error("etcd knows the session's key, but not its lease; retry");
    if (kept.member !== read.member || kept.term !== read.term) {
      throw new Error("etcd's leader changed while the session was kept alive; retry");
    }
    this.#noteMember(read);
    return { provedAtMs, notices: new Map(notices.map(({ key, value }) => [key, value])) };
  }

  async end(id: bigint): Promise<void> {
    await this.#client.leaseRevoke(id, { timeoutMs: END_TIMEOUT_MS });
  }

  async listKeys(id: bigint): Promise<Iterable<SessionKey>> {
    return this.#keys.readUnder(id, await this.#client.leaseKeys(id));
  }

  claimKey(name: string, grantId: string): string {
    return this.#keys.claim(name, grantId);
  }

  async missingOf(id: bigint, keys: readonly string[]): Promise<readonly string[]> {
    const standing = await this.#transactions.read(keys);
    return keys.filter((key) => standing.get(key)?.lease !== id);
  }

  deleteKeys(keys: readonly string[]): Promise<void> {
    return this.#transactions.delete(keys);
  }

  #noteMember({ member, term }: { member: bigint; term: bigint }): void {
    const answeredBy = `${member} ${term}`;
    if (answeredBy !== this.#answeredBy) this.#clusterMayHaveChanged();
    this.#answeredBy = answeredBy;
  }
}
