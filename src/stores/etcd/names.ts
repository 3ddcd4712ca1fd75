import { StoreUnavailableError } from "../../core/errors.js";
import {
  type HolderInfo,
  LOCK_LIMIT,
  type LostAnswer,
  type NameInfo,
  REVOKED_KEPT,
  WAITERS_SHOWN,
} from "../../core/store.js";
import { modifiedAt, stillThere, unchangedSince } from "./compare.js";
import { holderInfo, Lifetimes, type Revoked, revokedInfo, waiterInfo } from "./infos.js";
import type { Keys } from "./keys.js";
import {
  claimedOf,
  isNumeral,
  notOurs,
  type Place,
  Queue,
  readValue,
  withFormat,
  written,
} from "./queue.js";
import type { EtcdClient } from "./rpc/client.js";
import type { KeyValue, Op } from "./rpc/messages.js";

/** Etcd refuses a transaction of more than 128 operations. */
export const OPS_AT_ONCE = 100;
/** Four operations each, and what is pruned. */
const REVOKED_AT_ONCE = 20;
const PAGE = 1_000;
/** Somebody was faster so often: it is asked again later. */
export const TRIES = 20;

/** Names as anybody sees and changes them, not only who claims them. */
export class Names {
  readonly #client: EtcdClient;
  readonly #keys: Keys;

  constructor(client: EtcdClient, keys: Keys) {
    this.#client = client;
    this.#keys = keys;
  }

  async read(name: string): Promise<{ queue: Queue; revoked: Revoked[]; revision: bigint }> {
    const { responses, revision } = await this.#txn({
      success: [{ range: this.#keys.name(name) }, { range: this.#keys.revoked(name) }],
    });
    const queue = new Queue(this.#keys, responses[0]!.range!.kvs, revision);
    return { queue, revoked: this.revocations(responses[1]!.range!.kvs), revision };
  }

  /** There is neither a grant nor a ticket of it. */
  async whyLost(name: string, grantId: string): Promise<LostAnswer> {
    const { queue, revoked } = await this.read(name);
    const own = revoked.find((one) => one.grantId === grantId);
    if (own !== undefined) return { kind: "lost", reason: "revoked", why: becauseOf(own) };
    const taken = queue.holders().some((one) => !one.ended && one.grantId !== grantId);
    return { kind: "lost", reason: taken ? "superseded" : "expired" };
  }

  /** From those who hold it now, not from who comes after them. */
  async revoke(name: string, by: { holder: string; why: string }): Promise<readonly HolderInfo[]> {
    const lifetimes = new Lifetimes(this.#client);
    const infos: HolderInfo[] = [];
    let { queue } = await this.read(name);
    const left = new Set(queue.holders().map(({ grantId }) => grantId));
    for (let tries = 0; tries < TRIES; tries++) {
      const holders = queue.holders().filter(({ grantId }) => left.has(grantId));
      if (holders.length === 0) return infos;
      const some = holders.slice(0, REVOKED_AT_ONCE);
      const told = await Promise.all(some.map((one) => holderInfo(one, lifetimes)));
      // Otherwise somebody has given it up, or renewed it to another ttl, meanwhile.
      if (await this.#revoke(name, some, by)) {
        infos.push(...told);
        tries = 0;
      }
      ({ queue } = await this.read(name));
    }
    throw fasterAgain();
  }

  async resize(name: string, limit: number): Promise<number | null> {
    for (let tries = 0; tries < TRIES; tries++) {
      const { queue, revision } = await this.read(name);
      const before = queue.limit;
      if (before === null || before === LOCK_LIMIT || before === limit) return before;
      const ops = this.#resizing(name, queue, limit);
      if (ops.length > OPS_AT_ONCE) {
        throw new StoreUnavailableError(
          `${ops.length} claims stand in ${JSON.stringify(name)}, and etcd changes at most ` +
            `${OPS_AT_ONCE} in one step: resize it when it is less used`,
          { retryable: false },
        );
      }
      const { succeeded } = await this.#txn({
        compare: [unchangedSince(this.#keys.name(name), revision), ...stillThere(ops)],
        success: ops,
      });
      if (succeeded) return before;
    }
    throw fasterAgain();
  }

  async inspect(name: string): Promise<NameInfo | null> {
    const { queue, revoked } = await this.read(name);
    return this.#info(name, queue, revoked, new Lifetimes(this.#client));
  }

  async list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    const lifetimes = new Lifetimes(this.#client);
    const infos: Promise<NameInfo | null>[] = [];
    for await (const [name, kvs] of this.#byName(prefix)) {
      const queue = this.#queueOf(kvs);
      if (queue !== null) infos.push(this.#info(name, queue, [], lifetimes));
      if (infos.length === limit) break;
    }
    return (await Promise.all(infos)).filter((info) => info !== null);
  }

  /** The keys of one name after the other. */
  async *#byName(prefix: string): AsyncGenerator<readonly [string, readonly KeyValue[]]> {
    const { key, rangeEnd } = this.#keys.names(prefix);
    let name: string | null = null;
    let kvs: KeyValue[] = [];
    for (let next = key; ; ) {
      const page = await this.#client.range({ key: next, rangeEnd, limit: PAGE });
      for (const kv of page.kvs) {
        const { name: of } = this.#keys.read(kv.key);
        if (name !== null && of !== name) yield [name, kvs];
        if (of !== name) kvs = [];
        name = of;
        kvs.push(kv);
      }
      if (!page.more) break;
      next = `${page.kvs.at(-1)!.key}\0`;
    }
    if (name !== null) yield [name, kvs];
  }

  /** Null: something in it is not ours. The other names are still listed. */
  #queueOf(kvs: readonly KeyValue[]): Queue | null {
    try {
      return new Queue(this.#keys, kvs, 1n);
    } catch {
      return null;
    }
  }

  async #revoke(
    name: string,
    holders: readonly Place[],
    { holder, why }: { holder: string; why: string },
  ): Promise<boolean> {
    const { id: lease } = await this.#client.leaseGrant(REVOKED_KEPT.ms / 1_000);
    const { revoked } = await this.read(name);
    const oldest = revoked.slice(
      0,
      Math.max(0, revoked.length + holders.length - REVOKED_KEPT.many),
    );
    const notice = withFormat({ by: holder, why });
    const ops = holders.flatMap((one): Op[] => {
      const { grantId, token } = one;
      const record = {
        by: holder,
        why,
        holder: one.holder,
        token: String(token),
        lease: String(lease),
      };
      const key = this.#keys.revocation(name, grantId);
      const shown = { put: { key, value: withFormat(record), lease } };
      const opened = { delete: { key: this.#keys.closure(name, grantId) } };
      if (one.ended) return [shown, opened];
      return [
        shown,
        opened,
        { delete: { key: this.#keys.claim(name, grantId) } },
        {
          put: {
            key: this.#keys.notice(one.lease, name, grantId),
            value: notice,
            lease: one.lease,
          },
        },
      ];
    });
    const { succeeded, responses } = await this.#txn({
      compare: holders.map((one) => modifiedAt(this.keyOf(name, one), one.modRevision)),
      success: [
        ...ops,
        ...oldest.map(({ grantId }) => ({ delete: { key: this.#keys.revocation(name, grantId) } })),
      ],
      failure: [{ range: { key: this.#keys.revocation(name, holders[0]!.grantId) } }],
    });
    if (succeeded) {
      this.#endLeases(oldest, revoked.slice(oldest.length));
      return true;
    }
    // It was sent twice, and the first has done it.
    const [done] = this.revocations(responses[0]!.range!.kvs);
    if (done?.lease === String(lease)) return true;
    this.#client.leaseRevoke(lease).catch(() => {});
    return false;
  }

  /** Of records that are gone, unless one that stays was written in the same step. */
  #endLeases(gone: readonly Revoked[], staying: readonly Revoked[]): void {
    const needed = new Set(staying.map(({ lease }) => lease));
    for (const lease of new Set(gone.map((one) => one.lease))) {
      if (!needed.has(lease)) this.#client.leaseRevoke(BigInt(lease)).catch(() => {});
    }
  }

  /** Who is in stays in, marked; who asks for more than there will be is dropped. */
  #resizing(name: string, queue: Queue, limit: number): Op[] {
    const holders = new Set(queue.holders());
    return [...holders, ...queue.waiters()].flatMap((one): Op[] => {
      const key = this.#keys.claim(name, one.grantId);
      if (!holders.has(one) && one.permits > limit) return [{ delete: { key } }];
      const claimed = { ...claimedOf(one), limit, ...(holders.has(one) ? { held: true } : {}) };
      const closure = {
        key: this.#keys.closure(name, one.grantId),
        value: withFormat({ ...claimed, at: String(one.token) }),
        ignoreLease: true,
      };
      return [
        ...(one.ended ? [] : [{ put: { key, value: written(claimed), ignoreLease: true } }]),
        ...(one.closure === null ? [] : [{ put: closure }]),
      ];
    });
  }

  async #info(
    name: string,
    queue: Queue,
    revoked: readonly Revoked[],
    lifetimes: Lifetimes,
  ): Promise<NameInfo | null> {
    if (queue.size + revoked.length === 0) return null;
    const waiting = queue.waiters();
    const shown = waiting.slice(0, WAITERS_SHOWN);
    const [holders, waiters, gone] = await Promise.all([
      Promise.all(queue.holders().map((one) => holderInfo(one, lifetimes))),
      Promise.all(shown.map((one) => waiterInfo(one, lifetimes))),
      Promise.all(revoked.map((one) => revokedInfo(one, lifetimes))),
    ]);
    return {
      name,
      limit: queue.limit ?? LOCK_LIMIT,
      holders,
      waiting: waiting.length,
      waiters,
      revoked: gone,
    };
  }

  revocations(kvs: readonly KeyValue[]): Revoked[] {
    const records = kvs.map(({ key, value, modRevision }) => {
      const { grantId } = this.#keys.read(key);
      const record = readValue<Omit<Revoked, "grantId">>(value);
      const { holder, by, why, token, lease } = record;
      const isText = [holder, by, why].every((text) => typeof text === "string");
      if (!isText || !isNumeral(token) || !isNumeral(lease)) throw notOurs();
      return { ...record, grantId, modRevision };
    });
    // Those of one step by their tokens.
    return records.sort((one, two) =>
      Number(one.modRevision - two.modRevision || BigInt(one.token) - BigInt(two.token)),
    );
  }

  /** That stands for it in the queue. */
  keyOf(name: string, { grantId, ended }: Place): string {
    return ended ? this.#keys.closure(name, grantId) : this.#keys.claim(name, grantId);
  }

  #txn(txn: Parameters<EtcdClient["txn"]>[0]): ReturnType<EtcdClient["txn"]> {
    return this.#client.txn(txn, { again: true });
  }
}

export const becauseOf = ({ by, why }: { by: string; why: string }): string => `by ${by}: ${why}`;

export const fasterAgain = (): Error => new Error("etcd: others were faster, again and again");
