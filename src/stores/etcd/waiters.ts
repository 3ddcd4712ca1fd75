import { observeAgain, Waiters } from "../shared/sessions/waiters.js";
import { slices } from "../shared/slices.js";
import type { Keys } from "./keys.js";
import { Queue, type StoredClaim } from "./queue.js";
import type { EtcdClient } from "./rpc/client.js";
import type { EtcdClaim } from "./session-port.js";
import type { Transactions } from "./transactions.js";
import { WatchedName } from "./watched-name.js";

const NAMES_PER_READ = 50;

/** Whether the claim's key is bound to another session than the claim's own, with which it would not end. */
export const isMisplaced = (record: StoredClaim | undefined, { session }: EtcdClaim): boolean =>
  record !== undefined && !record.hasEnded && record.lease !== session.id;

/** The waiters and observers of this process. */
export class EtcdWaiters extends Waiters<EtcdClaim, Queue, WatchedName> {
  readonly #keys: Keys;
  readonly #transactions: Transactions;

  /** `handOver` is called when no claim is before this one any more; its own key existed at the queue's revision. */
  constructor(
    client: EtcdClient,
    keys: Keys,
    transactions: Transactions,
    handOver: (claim: EtcdClaim, queue: Queue) => void,
  ) {
    super({
      watch: (name) =>
        new WatchedName(client, keys, name, {
          changed: () => this.changed(name),
          refresh: () => void this.read([name]).catch(() => {}),
        }),
      stands: (claim, queue) => {
        // The watch may be behind the reply to the claim.
        if (queue.revision < claim.token) return null;
        const record = queue.get(claim.grantId);
        return record !== undefined && !record.hasEnded && !isMisplaced(record, claim);
      },
      handOver,
    });
    this.#keys = keys;
    this.#transactions = transactions;
  }

  /** Calls `changed` after each change, until the returned function is called. */
  observeName(name: string, changed: () => void): () => void {
    return observeAgain(changed, async (observer) => {
      const end = await this.observe(name, observer);
      await this.read([name]).catch((error: unknown) => {
        end();
        throw error;
      });
      return end;
    });
  }

  /** Reads names from the server, as a watch may be behind. A name that can't be read has an error in the map. */
  async read(names: readonly string[]): Promise<ReadonlyMap<string, Queue | Error>> {
    const queues = new Map<string, Queue | Error>();
    for (const some of slices(names, NAMES_PER_READ)) {
      const success = some.map((name) => ({ range: this.#keys.name(name) }));
      const { responses, revision } = await this.#transactions.send({ success });
      for (const [i, name] of some.entries()) {
        try {
          const queue = new Queue(this.#keys, responses[i]!.range!.kvs, revision);
          queues.set(name, queue);
          this.get(name)?.reset(queue);
        } catch (error) {
          queues.set(name, error as Error);
        }
      }
    }
    for (const name of names) this.changed(name);
    return queues;
  }
}
