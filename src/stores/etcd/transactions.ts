import { slices } from "../shared/slices.js";
import { type Batched, TurnBatcher } from "../shared/turn-batcher.js";
import type { EtcdClient, TxnReply } from "./rpc/client.js";
import { Code, EtcdError } from "./rpc/errors.js";
import type { KeyValue, Txn } from "./rpc/messages.js";

interface Part {
  readonly txn: Txn;
  readonly names: readonly string[];
  readonly sharesNames: boolean;
}

type Sent = Batched<Part, TxnReply>;

/** etcd refuses a transaction of more than 128 operations. */
export const OPS_PER_TXN = 100;
const PARTS_PER_BATCH = 32;
/** A larger part goes alone. */
const OPS_PER_PART = 64;

/** Refusals that may be about one part only: its session is gone, its name is not permitted. */
const REFUSALS_OF_PARTS: readonly number[] = [
  Code.INVALID_ARGUMENT,
  Code.NOT_FOUND,
  Code.PERMISSION_DENIED,
  Code.FAILED_PRECONDITION,
  Code.OUT_OF_RANGE,
];

/** Sends the store's transactions. Each may be sent again after a lost reply: keys carry the grantId. */
export class Transactions {
  readonly #client: EtcdClient;
  readonly #parts = new TurnBatcher<Part, TxnReply>((parts) => {
    for (const batch of parts.length === 1 ? [parts] : toBatches(parts)) this.#sendBatch(batch);
  });

  constructor(client: EtcdClient) {
    this.#client = client;
  }

  send(txn: Txn): Promise<TxnReply> {
    return this.#client.txn(txn, { again: true });
  }

  /**
   * Sends it in one request with other transactions of this turn of the event loop, each a part with
   * comparisons of its own. `names`: all names that it touches. `sharesNames`: it compares nothing, and
   * only reads, or deletes keys of its own.
   */
  sendBatched(names: readonly string[], txn: Txn, sharesNames = false): Promise<TxnReply> {
    return this.#parts.send({ txn, names, sharesNames });
  }

  async delete(keys: readonly string[]): Promise<void> {
    for (const some of slices(keys, OPS_PER_TXN)) {
      await this.send({ success: some.map((key) => ({ delete: { key } })) });
    }
  }

  async read(keys: readonly string[]): Promise<ReadonlyMap<string, KeyValue>> {
    const found = new Map<string, KeyValue>();
    for (const some of slices(keys, OPS_PER_TXN)) {
      const { responses } = await this.send({ success: some.map((key) => ({ range: { key } })) });
      for (const kv of responses.flatMap(({ range }) => range!.kvs)) found.set(kv.key, kv);
    }
    return found;
  }

  #sendBatch(parts: readonly Sent[]): void {
    if (parts.length === 1) {
      this.#sendAlone(parts[0]!);
      return;
    }
    this.send({ success: parts.map(({ request: { txn } }) => ({ txn })) }).then(
      ({ responses, ...common }) => {
        for (const [i, part] of parts.entries()) part.resolve({ ...common, ...responses[i]!.txn! });
      },
      (error: unknown) => {
        const isRefused = error instanceof EtcdError && REFUSALS_OF_PARTS.includes(error.grpcCode);
        for (const part of parts) {
          // The last attempt was refused; an earlier one may have been executed.
          if (isRefused) this.#sendAlone(part, error.executed === "unknown");
          else part.reject(error);
        }
      },
    );
  }

  #sendAlone({ request, resolve, reject }: Sent, wasSentBefore = false): void {
    this.send(request.txn).then(
      (reply) => resolve(wasSentBefore ? { ...reply, repeated: true } : reply),
      reject,
    );
  }
}

/**
 * No two parts of a batch touch the same name, unless both have `sharesNames`: etcd compares all parts before
 * it changes anything, and they share one revision, which is a claim's token and the moment of a read. Parts
 * with a common name stay in their order.
 */
function toBatches(parts: readonly Sent[]): Sent[][] {
  const batches: Sent[][] = [];
  const large: Sent[][] = [];
  /** The first batch after all claims on a name, and after all parts with that name. */
  const [afterClaims, afterAll] = [new Map<string, number>(), new Map<string, number>()];
  let firstWithRoom = 0;
  for (const part of parts) {
    const { names, txn, sharesNames } = part.request;
    if (opsOf(txn) > OPS_PER_PART) {
      large.push([part]);
      continue;
    }
    const after = sharesNames ? afterClaims : afterAll;
    let at = Math.max(firstWithRoom, ...names.map((name) => after.get(name) ?? 0));
    while (batches[at]?.length === PARTS_PER_BATCH) at++;
    if (at === batches.length) batches.push([]);
    batches[at]!.push(part);
    for (const name of names) {
      if (!sharesNames) afterClaims.set(name, at + 1);
      afterAll.set(name, Math.max(at + 1, afterAll.get(name) ?? 0));
    }
    if (batches[firstWithRoom]?.length === PARTS_PER_BATCH) firstWithRoom++;
  }
  return [...batches, ...large];
}

const opsOf = ({ compare = [], success = [], failure = [] }: Txn): number =>
  Math.max(compare.length, success.length, failure.length);
