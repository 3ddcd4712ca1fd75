import type { EtcdClient } from "./rpc/client.js";
import { Code, EtcdError } from "./rpc/errors.js";
import type { Txn } from "./rpc/messages.js";

type Answer = Awaited<ReturnType<EtcdClient["txn"]>>;

interface Part {
  readonly txn: Txn;
  readonly names: readonly string[];
  readonly releases: boolean;
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
 * have one revision, which is a claim's token and the moment of a read. Releases may: they compare
 * nothing, and each deletes keys of its own.
 */
export class Batches {
  readonly #client: EtcdClient;
  #parts: Part[] = [];

  constructor(client: EtcdClient) {
    this.#client = client;
  }

  /** Of these names alone. It may be sent again. `releases`: it only deletes claims of its own. */
  txn(names: readonly string[], txn: Txn, releases = false): Promise<Answer> {
    return new Promise((answered, failed) => {
      this.#parts.push({ txn, names, releases, answered, failed });
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
          // Its last attempt was refused, an earlier one may have been executed.
          if (refused) this.#alone(part, error.executed === "unknown");
          else part.failed(error);
        }
      },
    );
  }

  #alone({ txn, answered, failed }: Part, sentBefore = false): void {
    this.#client
      .txn(txn, { again: true })
      .then((answer) => answered(sentBefore ? { ...answer, repeated: true } : answer), failed);
  }
}

function apart(parts: readonly Part[]): Part[][] {
  const batches: Part[][] = [];
  const alone: Part[][] = [];
  /** The first batch that comes after all claims on a name; and after all parts with that name. */
  const [afterClaims, afterAll] = [new Map<string, number>(), new Map<string, number>()];
  let roomIn = 0;
  for (const part of parts) {
    const { names, txn, releases } = part;
    if (opsOf(txn) > OPS_OF_A_PART) {
      alone.push([part]);
      continue;
    }
    const free = releases ? afterClaims : afterAll;
    let at = Math.max(roomIn, ...names.map((name) => free.get(name) ?? 0));
    while (batches[at]?.length === PARTS_AT_ONCE) at++;
    if (at === batches.length) batches.push([]);
    batches[at]!.push(part);
    for (const name of names) {
      if (!releases) afterClaims.set(name, at + 1);
      afterAll.set(name, Math.max(at + 1, afterAll.get(name) ?? 0));
    }
    if (batches[roomIn]?.length === PARTS_AT_ONCE) roomIn++;
  }
  return [...batches, ...alone];
}

const opsOf = ({ compare = [], success = [], failure = [] }: Txn): number =>
  Math.max(compare.length, success.length, failure.length);
