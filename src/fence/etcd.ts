import {
  HoldfastError,
  InvalidArgumentError,
  StoreUnavailableError,
  UnsupportedError,
} from "../core/errors.js";
import { checkOptions, checkText, checkToken, orElse, show } from "../core/validate.js";
import { checkClient, type EtcdClient } from "../stores/etcd/rpc/client.js";
import { EtcdError } from "../stores/etcd/rpc/errors.js";
import type { Compare, KeyValue, Op, Put, Range, Txn } from "../stores/etcd/rpc/messages.js";
import { checkFenced, type Fence, type Fenced, isStrict, notEntered, stale } from "./fence.js";

/** A transaction in the making, as etcd has it: what has to be so, and what is done then. */
export interface EtcdTx {
  compare: Compare[];
  success: Op[];
  /** Reads only: it is also what runs when the fence refuses. */
  failure?: { range: Range }[] | undefined;
}

export interface EtcdFenceOptions {
  /** What the fence's keys begin with; `holdfast/fence/` by default. */
  readonly prefix?: string | undefined;
}

type Client = Pick<EtcdClient, "txn" | "range">;
type TxnAnswer = Awaited<ReturnType<Client["txn"]>>;

/** One resource and one holder of it. */
interface Entry {
  readonly key: string;
  readonly resource: string;
  readonly token: bigint;
  readonly floor: bigint;
  /** The highest is from its floor to its token. Of a key that is missing, no such thing is so. */
  readonly bounds: readonly [Compare, Compare];
}

const PREFIX = "holdfast/fence/";
/** A value begins with its format: one of another lies above or below all numbers, and is refused. */
const FORMAT = "1:";
/** Of one width, so that etcd, which compares bytes, compares numbers. */
const DIGITS = 20;

/** Whom a transaction depends on: what `commit` asks about when it failed. */
const dependsOn = new WeakMap<EtcdTx, Entry[]>();

/**
 * For data in etcd. The `tx` is a transaction that is being put together: `enter` and `guard` add
 * comparisons to it, so that it fails if a later holder has entered by the time it is committed.
 *
 * Entering is a step of its own, also when a `tx` is given: a holder may do so at any time.
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
    depend(tx, entry);
  }

  /** With `strict` and a `tx` nothing is asked: the comparisons are all, and `commit` tells. */
  async guard(
    tx: EtcdTx | undefined,
    resource: string,
    lease: Fenced,
    options?: { strict?: boolean },
  ): Promise<void> {
    const strict = isStrict(options);
    const entry = this.#entry(tx, resource, lease);
    if (!strict) {
      // A read, since most have entered: cheaper for etcd than a transaction that may write.
      if (!hasEntered(entry, await this.#read(entry.key))) await this.#raise(entry);
    } else if (tx === undefined) {
      refuseStranger(entry, await this.#read(entry.key));
    }
    depend(tx, entry);
  }

  /**
   * Commits what was guarded, in one step. Rejects with `StaleTokenError` if the fence refused, and
   * then nothing was written; `succeeded` is false only if a comparison of your own was not so.
   */
  async commit(tx: EtcdTx): Promise<TxnAnswer> {
    checkTx(tx);
    const entries = dependsOn.get(tx);
    if (entries === undefined) {
      throw new InvalidArgumentError("nothing guards this transaction: call guard with it first");
    }
    const own = tx.failure ?? [];
    const looks = entries.map(({ key }) => ({ range: { key } }));
    // The caller's arrays may have been exchanged for others since.
    const gone = entries.flatMap(({ bounds }) => bounds).filter((one) => !tx.compare.includes(one));
    const txn = {
      compare: [...tx.compare, ...gone],
      success: tx.success,
      failure: [...own, ...looks],
    };
    const answer = await this.#ask("commit", () => this.#client.txn(txn));
    if (answer.succeeded) return answer;
    const seen = answer.responses.splice(own.length);
    entries.forEach((entry, i) => {
      refuseStranger(entry, seen[i]?.range?.kvs[0]);
    });
    return answer;
  }

  /** As it is now: a transaction of etcd reads nothing before it is committed. */
  async highest(_tx: EtcdTx | undefined, resource: string): Promise<bigint> {
    const key = this.#key(resource);
    return highestIn(key, await this.#read(key));
  }

  /** With a `tx`, a part of it, which also fails if somebody enters meanwhile. */
  async reset(tx: EtcdTx | undefined, resource: string, token: bigint): Promise<void> {
    const key = this.#key(resource);
    const put = putting(key, checkToken(token, "token"));
    if (tx !== undefined) checkTx(tx);
    for (;;) {
      const kv = await this.#read(key);
      highestIn(key, kv);
      const step = { compare: [unchanged(key, kv)], success: [put] };
      if (tx !== undefined) {
        entriesOf(tx);
        tx.compare.push(...step.compare);
        tx.success.push(...step.success);
        return;
      }
      // Not sent twice: the second could undo the entry of somebody after the first.
      if ((await this.#ask("reset", () => this.#client.txn(step))).succeeded) return;
    }
  }

  /** Usually one round trip: somebody earlier has entered, or this holder itself. */
  async #raise(entry: Entry): Promise<void> {
    const { key, floor } = entry;
    let compare = [above(key, FORMAT), below(key, textOf(floor))];
    for (;;) {
      const txn: Txn = { compare, success: [putting(key, floor)], failure: [{ range: { key } }] };
      // May be sent twice: the second finds what the first has done.
      const answer = await this.#ask("enter", () => this.#client.txn(txn, { again: true }));
      if (answer.succeeded) return;
      const kv = answer.responses[0]?.range?.kvs[0];
      if (hasEntered(entry, kv)) return;
      compare = [unchanged(key, kv)];
    }
  }

  async #read(key: string): Promise<KeyValue | undefined> {
    const { kvs } = await this.#ask("read", () => this.#client.range({ key }));
    return kvs[0];
  }

  async #ask<T>(what: string, call: () => Promise<T>): Promise<T> {
    try {
      return await call();
    } catch (error) {
      throw explain(error, what);
    }
  }

  #entry(tx: EtcdTx | undefined, resource: string, lease: Fenced): Entry {
    const { token, floor } = checkFenced(resource, lease);
    if (tx !== undefined) checkTx(tx);
    const key = this.#key(resource);
    const under = floor === 0n ? FORMAT : textOf(floor - 1n);
    const bounds = [above(key, under), below(key, textOf(token + 1n))] as const;
    return { key, resource, token, floor, bounds };
  }

  #key(resource: string): string {
    return this.#prefix + checkText(resource, "the resource", 1, 255);
  }
}

/** Keeps one key for each resource in the etcd that holds the data. */
export function etcdFence(client: Client, options?: EtcdFenceOptions): EtcdFence {
  return new EtcdFence(client, options);
}

const textOf = (number: bigint): string => FORMAT + String(number).padStart(DIGITS, "0");

function highestIn(key: string, kv: KeyValue | undefined): bigint {
  if (kv === undefined) return 0n;
  const [, format, digits] = /^(\d+):(.*)$/s.exec(kv.value) ?? [];
  if (format === "1" && /^\d{20}$/.test(digits!)) return BigInt(digits!);
  const known = format === undefined || format === "1";
  throw new UnsupportedError(
    known
      ? `the etcd key ${JSON.stringify(key)} holds ${show(kv.value)}, which is no fence: give the fence a prefix of its own`
      : `the etcd key ${JSON.stringify(key)} has format ${show(format)}, and this version of Holdfast knows 1: use the version that wrote it`,
  );
}

const putting = (key: string, highest: bigint): { put: Put } => ({
  put: { key, value: textOf(highest) },
});
const above = (key: string, value: string): Compare => ({
  key,
  target: "VALUE",
  result: "GREATER",
  value,
});
const below = (key: string, value: string): Compare => ({
  key,
  target: "VALUE",
  result: "LESS",
  value,
});
const unchanged = (key: string, kv: KeyValue | undefined): Compare => ({
  key,
  target: "MOD",
  result: "EQUAL",
  modRevision: kv?.modRevision ?? 0n,
});

function depend(tx: EtcdTx | undefined, entry: Entry): void {
  if (tx === undefined) return;
  tx.compare.push(...entry.bounds);
  entriesOf(tx).push(entry);
}

function entriesOf(tx: EtcdTx): Entry[] {
  const entries = dependsOn.get(tx) ?? [];
  dependsOn.set(tx, entries);
  return entries;
}

/** Throws if a later holder has. */
function hasEntered({ key, resource, token, floor }: Entry, kv: KeyValue | undefined): boolean {
  const highest = highestIn(key, kv);
  if (token < highest) throw stale(resource, token, highest);
  return kv !== undefined && floor <= highest;
}

function refuseStranger(entry: Entry, kv: KeyValue | undefined): void {
  if (hasEntered(entry, kv)) return;
  throw notEntered(entry.resource, entry.token, highestIn(entry.key, kv));
}

function checkTx(tx: EtcdTx): void {
  if (!Array.isArray(tx?.compare) || !Array.isArray(tx.success)) {
    throw new InvalidArgumentError(
      `the transaction is ${show(tx)}; it must be { compare: [], success: [] }`,
    );
  }
  if (tx.failure?.some((op: Op) => op.range === undefined || op.put || op.delete)) {
    throw new InvalidArgumentError(
      "failure may only read: it is also what runs for a holder that the fence refuses",
    );
  }
}

function explain(error: unknown, what: string): HoldfastError {
  if (HoldfastError.is(error)) return error;
  const refused = error instanceof EtcdError && error.executed === "no";
  const outcome = what === "read" || refused ? "" : "; whether it was done is not known";
  const text = error instanceof Error ? error.message : String(error);
  return new StoreUnavailableError(`the fence can't ${what}: ${text}${outcome}`, {
    cause: error,
    retryable: !(refused && !error.moves),
  });
}
