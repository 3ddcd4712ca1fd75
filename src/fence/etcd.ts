import { HoldfastError, InvalidArgumentError, StoreUnavailableError } from "../core/errors.js";
import { checkOptions, checkText, checkToken, orElse, show } from "../core/validate.js";
import { checkClient, type EtcdClient } from "../stores/etcd/rpc/client.js";
import { modifiedAt, valueAbove, valueBelow } from "../stores/etcd/rpc/compare.js";
import { EtcdError } from "../stores/etcd/rpc/errors.js";
import type { Compare, KeyValue, Op, Put, Range, Txn } from "../stores/etcd/rpc/messages.js";
import { endOf } from "../stores/shared/utf8.js";
import {
  checkFenced,
  checkResource,
  type Entry,
  type Fence,
  type Fenced,
  hasEntered,
  isStrict,
  refuseUnlessEntered,
} from "./fence.js";
import { checkListOptions, type FencedResource, type FenceListOptions } from "./shared/list.js";
import { parseStored, STORED_FORMAT } from "./shared/stored-number.js";
import { TxGuards } from "./shared/tx-guards.js";

/** A transaction of etcd before it is sent: comparisons, and the operations to run if they hold. */
export interface EtcdTx {
  /** The comparisons that must hold for `success` to be executed. */
  compare: Compare[];
  /** The operations that are executed if all comparisons hold. */
  success: Op[];
  /** Reads only: they also run when the fence refuses. */
  failure?: { range: Range }[] | undefined;
}

/** Options of `etcdFence`. */
export interface EtcdFenceOptions {
  /** The prefix of every key of the fence. Default: `holdfast/fence/`. */
  readonly prefix?: string | undefined;
}

type Client = Pick<EtcdClient, "txn" | "range">;
type TxnReply = Awaited<ReturnType<Client["txn"]>>;

interface KeyEntry extends Entry {
  readonly key: string;
  /** True while the highest token is between its floor and its token; false while the key is missing. */
  readonly bounds: readonly [Compare, Compare];
}

const PREFIX = "holdfast/fence/";
/** A value of another format sorts above or below all numbers, and is refused. */
const FORMAT = `${STORED_FORMAT}:`;
/** Numbers have one width, because etcd compares bytes. */
const DIGITS = 20;

/** `commit` reads the entries of a transaction when it fails. */
const guards = new TxGuards<EtcdTx, KeyEntry>();

/**
 * A fence for data in etcd. `enter` and `guard` add comparisons to the `tx`, so that it fails if a
 * later holder has entered by the time it is committed.
 *
 * Entering is a step of its own, even with a `tx`: a holder may enter at any time.
 */
export class EtcdFence implements Fence<EtcdTx | undefined> {
  readonly #client: Client;
  readonly #prefix: string;

  constructor(client: Client, options: EtcdFenceOptions = {}) {
    checkOptions(options, "the options of a fence", ["prefix"]);
    checkClient(client);
    this.#client = client;
    this.#prefix = checkText(orElse(options.prefix, PREFIX), "prefix", 1, 255);
  }

  async enter(tx: EtcdTx | undefined, resource: string, lease: Fenced): Promise<void> {
    const entry = this.#entry(tx, resource, lease);
    await this.#raise(entry);
    this.#addGuard(tx, entry);
  }

  /** With `strict` and a `tx`, nothing is sent: `commit` checks the comparisons. */
  async guard(
    tx: EtcdTx | undefined,
    resource: string,
    lease: Fenced,
    options?: { strict?: boolean },
  ): Promise<void> {
    const strict = isStrict(options);
    const entry = this.#entry(tx, resource, lease);
    if (!strict) {
      // Most holders have entered already, and a read is cheaper for etcd than a transaction that
      // may write.
      if (!hasEntered(entry, await this.#highest(entry.key))) await this.#raise(entry);
    } else if (tx === undefined) {
      refuseUnlessEntered(entry, await this.#highest(entry.key));
    }
    this.#addGuard(tx, entry);
  }

  /**
   * Commits a guarded transaction in one step. Rejects with `StaleTokenError` if the fence refused it,
   * and then nothing was written; `succeeded` is false only if a comparison of your own failed.
   */
  async commit(tx: EtcdTx): Promise<TxnReply> {
    checkTx(tx);
    const entries = guards.of(tx, this.#client);
    const own = tx.failure ?? [];
    const reads = entries.map(({ key }) => ({ range: { key } }));
    // The caller may have replaced its arrays since `guard`.
    const removed = entries
      .flatMap(({ bounds }) => bounds)
      .filter((one) => !tx.compare.includes(one));
    const txn = {
      compare: [...tx.compare, ...removed],
      success: tx.success,
      failure: [...own, ...reads],
    };
    const reply = await this.#send("commit", () => this.#client.txn(txn));
    if (reply.succeeded) return reply;
    const seen = reply.responses.splice(own.length);
    entries.forEach((entry, i) => {
      refuseUnlessEntered(entry, highestIn(entry.key, seen[i]?.range?.kvs[0]));
    });
    return reply;
  }

  /** The present value, because a transaction of etcd reads nothing before it is committed. */
  async highest(_tx: EtcdTx | undefined, resource: string): Promise<bigint> {
    return (await this.#highest(this.#key(resource))) ?? 0n;
  }

  /** The resources that it has seen, in the order of their UTF-8 bytes. etcd does not tell when a key changed. */
  async list(options?: FenceListOptions): Promise<readonly FencedResource[]> {
    const { prefix, limit } = checkListOptions(options);
    const key = this.#prefix + prefix;
    const range = { key, rangeEnd: endOf(key), limit };
    const { kvs } = await this.#send("read", () => this.#client.range(range));
    return kvs.map((kv) => ({
      resource: kv.key.slice(this.#prefix.length),
      highest: highestIn(kv.key, kv)!,
      enteredAtMs: null,
    }));
  }

  /** With a `tx`, the reset becomes a part of it, and the `tx` fails if a holder enters meanwhile. */
  async reset(tx: EtcdTx | undefined, resource: string, token: bigint): Promise<void> {
    const key = this.#key(resource);
    const put = putOf(key, checkToken(token, "token"));
    if (tx !== undefined) this.#checkTx(tx);
    for (;;) {
      const kv = await this.#read(key);
      highestIn(key, kv);
      const step = { compare: [isUnchanged(key, kv)], success: [put] };
      if (tx !== undefined) {
        guards.add(tx, this.#client);
        tx.compare.push(...step.compare);
        tx.success.push(...step.success);
        return;
      }
      // Never sent twice: the second reset could undo an entry that followed the first.
      if ((await this.#send("reset", () => this.#client.txn(step))).succeeded) return;
    }
  }

  /** Usually one round trip, because an earlier holder or this one has already entered. */
  async #raise(entry: KeyEntry): Promise<void> {
    const { key, floor } = entry;
    let compare = [valueAbove(key, FORMAT), valueBelow(key, textOf(floor))];
    for (;;) {
      const txn: Txn = { compare, success: [putOf(key, floor)], failure: [{ range: { key } }] };
      // May be sent twice: the second attempt finds the value that the first wrote.
      const reply = await this.#send("enter", () => this.#client.txn(txn, { again: true }));
      if (reply.succeeded) return;
      const kv = reply.responses[0]?.range?.kvs[0];
      if (hasEntered(entry, highestIn(key, kv))) return;
      compare = [isUnchanged(key, kv)];
    }
  }

  async #highest(key: string): Promise<bigint | null> {
    return highestIn(key, await this.#read(key));
  }

  async #read(key: string): Promise<KeyValue | undefined> {
    const { kvs } = await this.#send("read", () => this.#client.range({ key }));
    return kvs[0];
  }

  async #send<T>(what: string, call: () => Promise<T>): Promise<T> {
    try {
      return await call();
    } catch (error) {
      throw toFenceError(error, what);
    }
  }

  #entry(tx: EtcdTx | undefined, resource: string, lease: Fenced): KeyEntry {
    const { token, floor } = checkFenced(resource, lease);
    if (tx !== undefined) this.#checkTx(tx);
    const key = this.#key(resource);
    const under = floor === 0n ? FORMAT : textOf(floor - 1n);
    const bounds = [valueAbove(key, under), valueBelow(key, textOf(token + 1n))] as const;
    return { key, resource, token, floor, bounds };
  }

  #checkTx(tx: EtcdTx): void {
    checkTx(tx);
    guards.checkClient(tx, this.#client);
  }

  #addGuard(tx: EtcdTx | undefined, entry: KeyEntry): void {
    if (tx === undefined) return;
    guards.add(tx, this.#client, entry);
    tx.compare.push(...entry.bounds);
  }

  #key(resource: string): string {
    return this.#prefix + checkResource(resource);
  }
}

/**
 * Makes a fence for data in etcd. It keeps one key for each resource in the same cluster.
 *
 * @example
 * ```ts
 * import { connect } from "holdfast";
 * import { etcdFence, type EtcdTx } from "holdfast/fence/etcd";
 * import { openEtcdClient } from "holdfast/stores/etcd";
 *
 * const client = await openEtcdClient({ endpoints: ["127.0.0.1:2379"] });
 * const fence = etcdFence(client);
 * const locks = await connect("etcd://127.0.0.1:2379");
 * await locks.withLock("stock", { fence }, async (lease) => {
 *   const tx: EtcdTx = { compare: [], success: [{ put: { key: "stock", value: "9" } }] };
 *   await fence.guard(tx, "stock", lease);
 *   await fence.commit(tx); // throws StaleTokenError if a later holder has entered
 * });
 * ```
 */
export function etcdFence(client: Client, options?: EtcdFenceOptions): EtcdFence {
  return new EtcdFence(client, options);
}

const textOf = (number: bigint): string => FORMAT + String(number).padStart(DIGITS, "0");

/** Null while the key is missing. */
function highestIn(key: string, kv: KeyValue | undefined): bigint | null {
  if (kv === undefined) return null;
  const where = `the etcd key ${JSON.stringify(key)}`;
  return parseStored(kv.value, { where, option: "prefix", digits: /^\d{20}$/ });
}

const putOf = (key: string, highest: bigint): { put: Put } => ({
  put: { key, value: textOf(highest) },
});
/** Compares a key that is missing with revision 0. */
const isUnchanged = (key: string, kv: KeyValue | undefined): Compare =>
  modifiedAt(key, kv?.modRevision ?? 0n);

function checkTx(tx: EtcdTx): void {
  if (!Array.isArray(tx?.compare) || !Array.isArray(tx.success)) {
    throw new InvalidArgumentError(
      `the transaction is ${show(tx)}; it must be { compare: [], success: [] }`,
    );
  }
  if (tx.failure?.some((op: Op) => op.range === undefined || op.put || op.delete)) {
    throw new InvalidArgumentError(
      "failure may only contain reads: it also runs for a holder that the fence refuses",
    );
  }
}

function toFenceError(error: unknown, what: string): HoldfastError {
  if (HoldfastError.is(error)) return error;
  const refused = error instanceof EtcdError && error.executed === "no";
  const outcome = what === "read" || refused ? "" : "; the outcome is unknown";
  const text = error instanceof Error ? error.message : String(error);
  return new StoreUnavailableError(`the fence can't ${what}: ${text}${outcome}`, {
    cause: error,
    // Again, it could make a change twice, or undo an entry that followed the first reset.
    retryable: refused ? error.retryable : what === "read" || what === "enter",
  });
}
