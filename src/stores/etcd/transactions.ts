import { type BatchedNames, toBatches } from "../shared/name-batches.js";
import { slices } from "../shared/slices.js";
import { type Batched, TurnBatcher } from "../shared/turn-batcher.js";
import type { EtcdClient, TxnReply } from "./rpc/client.js";
import { Code, EtcdError } from "./rpc/errors.js";
import type { KeyValue, Txn } from "./rpc/messages.js";

interface Part extends BatchedNames {
  readonly txn: Txn;
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
    const small = parts.filter(({ request }) => !isLarge(request));
    // etcd compares all parts of a batch before it changes anything.
    for (const batch of toBatches(small, PARTS_PER_BATCH, ({ request }) => request)) {
      this.#sendBatch(batch);
    }
    for (const part of parts) if (isLarge(part.request)) this.#sendAlone(part);
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

const isLarge = ({ txn: { compare = [], success = [], failure = [] } }: Part): boolean =>
  Math.max(compare.length, success.length, failure.length) > OPS_PER_PART;
