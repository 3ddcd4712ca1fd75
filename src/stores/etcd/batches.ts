import type { EtcdClient } from "./rpc/client.js";
import { Code, EtcdError } from "./rpc/errors.js";
import type { Txn } from "./rpc/messages.js";

type Answer = Awaited<ReturnType<EtcdClient["txn"]>>;

interface Part {
  readonly txn: Txn;
  readonly names: readonly string[];
  answered(answer: Answer): void;
  failed(error: unknown): void;
}

const PARTS_AT_ONCE = 32;
/** Etcd allows 128 operations, and a part as many as the others leave. */
const OPS_OF_A_PART = 64;

/** What is wrong with a request itself, and so perhaps with one part of it: a session is gone, a name not permitted. */
const REFUSALS: readonly number[] = [
  Code.INVALID_ARGUMENT,
  Code.NOT_FOUND,
  Code.PERMISSION_DENIED,
  Code.FAILED_PRECONDITION,
  Code.OUT_OF_RANGE,
];

/**
 * Transactions of one turn of the event loop go as one, each a part with comparisons of its own. No
 * two parts of one touch the same name: they are compared before anything is changed, and would all
 * have one revision, which is a claim's token and the moment of a read.
 */
export class Batches {
  readonly #client: EtcdClient;
  #parts: Part[] = [];

  constructor(client: EtcdClient) {
    this.#client = client;
  }

  /** Of these names alone. It may be sent again. */
  txn(names: readonly string[], txn: Txn): Promise<Answer> {
    return new Promise((answered, failed) => {
      this.#parts.push({ txn, names, answered, failed });
      // After all that the present answers set off, and before anything new is read.
      if (this.#parts.length === 1) process.nextTick(() => this.#flush());
    });
  }

  #flush(): void {
    const parts = this.#parts.splice(0);
    if (parts.length === 1) this.#alone(parts[0]!);
    else for (const together of apart(parts)) this.#send(together);
  }

  #send(parts: readonly Part[]): void {
    if (parts.length === 1) {
      this.#alone(parts[0]!);
      return;
    }
    this.#client.txn({ success: parts.map(({ txn }) => ({ txn })) }, { again: true }).then(
      ({ responses, ...when }) => {
        for (const [i, part] of parts.entries()) part.answered({ ...when, ...responses[i]!.txn! });
      },
      (error: unknown) => {
        const refused = error instanceof EtcdError && REFUSALS.includes(error.grpcCode);
        for (const part of parts) {
          if (refused) this.#alone(part);
          else part.failed(error);
        }
      },
    );
  }

  #alone({ txn, answered, failed }: Part): void {
    this.#client.txn(txn, { again: true }).then(answered, failed);
  }
}

function apart(parts: readonly Part[]): Part[][] {
  const batches: Part[][] = [];
  const alone: Part[][] = [];
  /** The first batch that each name is not in. */
  const freeIn = new Map<string, number>();
  let roomIn = 0;
  for (const part of parts) {
    const { names, txn } = part;
    if (opsOf(txn) > OPS_OF_A_PART) {
      alone.push([part]);
      continue;
    }
    let at = Math.max(roomIn, ...names.map((name) => freeIn.get(name) ?? 0));
    while (batches[at]?.length === PARTS_AT_ONCE) at++;
    if (at === batches.length) batches.push([]);
    batches[at]!.push(part);
    for (const name of names) freeIn.set(name, at + 1);
    if (batches[roomIn]?.length === PARTS_AT_ONCE) roomIn++;
  }
  return [...batches, ...alone];
}

const opsOf = ({ compare = [], success = [], failure = [] }: Txn): number =>
  Math.max(compare.length, success.length, failure.length);
