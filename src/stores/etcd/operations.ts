import { StoreUnavailableError } from "../../core/errors.js";
import { type HolderInfo, type NameInfo, REVOKED_KEPT } from "../../core/store.js";
import { infoOf, type RevocationStep, SessionOperations } from "../shared/sessions/operations.js";
import { holderInfo, Lifetimes, revokedInfo, waiterInfo } from "./infos.js";
import type { Keys } from "./keys.js";
import { encodeClaim, encodeValue, Queue, type StoredClaim } from "./queue.js";
import { decodeRevocations, type Revocation } from "./revocations.js";
import type { EtcdClient } from "./rpc/client.js";
import { createdAt, modifiedAt, unchangedSince } from "./rpc/compare.js";
import type { KeyValue, Op } from "./rpc/messages.js";
import { OPS_PER_TXN, type Transactions } from "./transactions.js";

/** The most holders that one step revokes: each takes three operations, and old records are deleted as well. */
const REVOKED_PER_TXN = 20;
const KEYS_PER_PAGE = 1_000;

interface NameRead {
  readonly queue: Queue;
  readonly revocations: readonly Revocation[];
}

/** The requests of people about a name: revoke, resize, inspect, list. They need no claim of this process. */
export class Operations extends SessionOperations<StoredClaim, NameRead> {
  readonly #client: EtcdClient;
  readonly #transactions: Transactions;
  readonly #keys: Keys;

  constructor(client: EtcdClient, transactions: Transactions, keys: Keys) {
    super(REVOKED_PER_TXN);
    this.#client = client;
    this.#transactions = transactions;
    this.#keys = keys;
  }

  async inspect(name: string): Promise<NameInfo | null> {
    const { queue, revocations } = await this.read(name);
    return this.#info(name, queue, revocations, new Lifetimes(this.#client));
  }

  async list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    const lifetimes = new Lifetimes(this.#client);
    const infos: Promise<NameInfo | null>[] = [];
    for await (const [name, kvs] of this.#namesWith(prefix)) {
      const queue = this.#queueOf(kvs);
      if (queue !== null) infos.push(this.#info(name, queue, [], lifetimes));
      if (infos.length === limit) break;
    }
    return (await Promise.all(infos)).filter((info) => info !== null);
  }

  protected async read(name: string): Promise<NameRead> {
    const success = [{ range: this.#keys.name(name) }, { range: this.#keys.revoked(name) }];
    const { responses, revision } = await this.#transactions.send({ success });
    const [claims, revoked] = responses.map(({ range }) => range!.kvs);
    const queue = new Queue(this.#keys, claims, revision);
    return { queue, revocations: decodeRevocations(this.#keys, revoked!) };
  }

  /** The step fails if one of them was released, or renewed to another ttl, meanwhile. */
  protected async revokeInOneStep(
    name: string,
    holders: readonly StoredClaim[],
    { revocations }: NameRead,
    by: RevocationStep,
  ): Promise<readonly HolderInfo[] | null> {
    const lifetimes = new Lifetimes(this.#client);
    const infos = await Promise.all(holders.map((one) => holderInfo(one, lifetimes)));
    return (await this.#revoke(name, holders, revocations, by)) ? infos : null;
  }

  protected async resizeInOneStep(
    name: string,
    { queue }: NameRead,
    limit: number,
  ): Promise<boolean> {
    const ops = this.#resizeOps(name, queue, limit);
    if (ops.length > OPS_PER_TXN) {
      throw new StoreUnavailableError(
        `${ops.length} claims stand in ${JSON.stringify(name)}, and etcd changes at most ` +
          `${OPS_PER_TXN} in one step: resize it when it is less used`,
        { retryable: false },
      );
    }
    // A put must not bring back a key that has gone.
    const puts = ops.flatMap(({ put }) => put ?? []);
    const { succeeded } = await this.#transactions.send({
      compare: [
        unchangedSince(this.#keys.name(name), queue.revision),
        ...puts.map(({ key }) => createdAt(key, 0n, "NOT_EQUAL")),
      ],
      success: ops,
    });
    return succeeded;
  }

  /** One name after the other, with all its keys. */
  async *#namesWith(prefix: string): AsyncGenerator<readonly [string, readonly KeyValue[]]> {
    const { key, rangeEnd } = this.#keys.names(prefix);
    let name: string | null = null;
    let kvs: KeyValue[] = [];
    for (let next = key; ; ) {
      const page = await this.#client.range({ key: next, rangeEnd, limit: KEYS_PER_PAGE });
      for (const kv of page.kvs) {
        const { name: nameOfKey } = this.#keys.read(kv.key);
        if (name !== null && nameOfKey !== name) yield [name, kvs];
        if (nameOfKey !== name) kvs = [];
        name = nameOfKey;
        kvs.push(kv);
      }
      if (!page.more) break;
      next = `${page.kvs.at(-1)!.key}\0`;
    }
    if (name !== null) yield [name, kvs];
  }

  /** Null if a value in it is not Holdfast's. The other names are still listed. */
  #queueOf(kvs: readonly KeyValue[]): Queue | null {
    try {
      return new Queue(this.#keys, kvs, 1n);
    } catch {
      return null;
    }
  }

  /** False: one of the claims has changed. */
  async #revoke(
    name: string,
    holders: readonly StoredClaim[],
    revocations: readonly Revocation[],
    by: { holder: string; why: string },
  ): Promise<boolean> {
    const { id: lease } = await this.#client.leaseGrant(REVOKED_KEPT.ms / 1_000);
    const excess = Math.max(0, revocations.length + holders.length - REVOKED_KEPT.many);
    const oldest = revocations.slice(0, excess);
    const { succeeded, responses } = await this.#transactions.send({
      compare: holders.map((one) => modifiedAt(this.#keys.inQueue(name, one), one.modRevision)),
      success: [
        ...holders.flatMap((one) => this.#revocationOps(name, one, by, lease)),
        ...oldest.map(({ grantId }) => ({ delete: { key: this.#keys.revocation(name, grantId) } })),
      ],
      failure: [{ range: { key: this.#keys.revocation(name, holders[0]!.grantId) } }],
    });
    if (succeeded) {
      this.#endLeases(oldest, revocations.slice(excess));
      return true;
    }
    // The request was sent twice, and the first attempt was executed.
    const [done] = decodeRevocations(this.#keys, responses[0]!.range!.kvs);
    if (done?.lease === String(lease)) return true;
    this.#client.leaseRevoke(lease).catch(() => {});
    return false;
  }

  /** Records the revocation, opens the name, deletes the claim and leaves a notice for its session. */
  #revocationOps(
    name: string,
    { grantId, token, holder, hasEnded, lease: session }: StoredClaim,
    { holder: by, why }: { holder: string; why: string },
    lease: bigint,
  ): Op[] {
    const record = { by, why, holder, token: String(token), lease: String(lease) };
    const key = this.#keys.revocation(name, grantId);
    const ended = [
      { put: { key, value: encodeValue(record), lease } },
      { delete: this.#keys.claimAndAtLeast(name, grantId) },
    ];
    if (hasEnded) return ended;
    const notice = this.#keys.notice(session, name, grantId);
    return [...ended, { put: { key: notice, value: encodeValue({ by, why }), lease: session } }];
  }

  /** Ends the leases of deleted records, unless a record that stays was written in the same step. */
  #endLeases(deleted: readonly Revocation[], staying: readonly Revocation[]): void {
    const needed = new Set(staying.map(({ lease }) => lease));
    for (const lease of new Set(deleted.map((one) => one.lease))) {
      if (!needed.has(lease)) this.#client.leaseRevoke(BigInt(lease)).catch(() => {});
    }
  }

  /** Holders stay, marked as such; tickets for more than the new limit are dropped. */
  #resizeOps(name: string, queue: Queue, limit: number): Op[] {
    const holders = new Set(queue.holders());
    return [...holders, ...queue.waiters()].flatMap((one): Op[] => {
      const isHolder = holders.has(one);
      const key = this.#keys.claim(name, one.grantId);
      if (!isHolder && one.permits > limit) return [{ delete: { key } }];
      const value = isHolder ? { ...one, limit, held: true } : { ...one, limit };
      const puts: Op[] = [];
      if (!one.hasEnded) puts.push({ put: { key, value: encodeClaim(value), ignoreLease: true } });
      if (one.atLeastLease !== null) {
        const atLeast = this.#keys.atLeast(name, one.grantId);
        const valueAtLeast = encodeClaim(value, one.token);
        puts.push({ put: { key: atLeast, value: valueAtLeast, ignoreLease: true } });
      }
      return puts;
    });
  }

  #info(
    name: string,
    queue: Queue,
    revocations: readonly Revocation[],
    lifetimes: Lifetimes,
  ): Promise<NameInfo | null> {
    return infoOf(name, queue, revocations, {
      holder: (one) => holderInfo(one, lifetimes),
      waiter: (one) => waiterInfo(one, lifetimes),
      revoked: (one) => revokedInfo(one, lifetimes),
    });
  }
}
