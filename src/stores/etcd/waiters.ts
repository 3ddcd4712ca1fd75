import { slices } from "../shared/slices.js";
import type { Keys } from "./keys.js";
import { Queue, type StoredClaim } from "./queue.js";
import type { EtcdClient } from "./rpc/client.js";
import type { EtcdClaim } from "./session-port.js";
import type { Transactions } from "./transactions.js";
import { WatchedName } from "./watched-name.js";

/** A name that was waited for is likely to be waited for again: its watch stays for this long. */
const IDLE_WATCH_MS = 5_000;
const OBSERVE_RETRY_MS = 1_000;
const NAMES_PER_READ = 50;

/** The claim's key stands under another session than it should. */
export const isMisplaced = (record: StoredClaim | undefined, { session }: EtcdClaim): boolean =>
  record !== undefined && !record.hasEnded && record.lease !== session.id;

/** The waiters and observers of this process: they share one watch per name. */
export class Waiters {
  readonly #client: EtcdClient;
  readonly #keys: Keys;
  readonly #transactions: Transactions;
  /** Called when the claims before this one are gone; at the queue's revision, its own key still stood. */
  readonly #handOver: (claim: EtcdClaim, queue: Queue) => void;
  readonly #watched = new Map<string, WatchedName>();

  constructor(
    client: EtcdClient,
    keys: Keys,
    transactions: Transactions,
    handOver: (claim: EtcdClaim, queue: Queue) => void,
  ) {
    this.#client = client;
    this.#keys = keys;
    this.#transactions = transactions;
    this.#handOver = handOver;
  }

  get(name: string): WatchedName | undefined {
    return this.#watched.get(name);
  }

  /** Resolves when every later change of the claim's name will be received. */
  async add(claim: EtcdClaim): Promise<WatchedName> {
    const watched = this.#watch(claim.name);
    watched.waiting.add(claim);
    await this.#whenReady(watched);
    return watched;
  }

  remove(claim: EtcdClaim): void {
    const watched = this.#watched.get(claim.name);
    if (watched?.waiting.delete(claim)) this.#dropWhenIdle(watched);
  }

  /** Returns a function that ends the observation. */
  observe(name: string, changed: () => void): () => void {
    let isOver = false;
    let retry: NodeJS.Timeout | undefined;
    const begin = async (): Promise<void> => {
      try {
        const watched = this.#watch(name);
        watched.observers.add(changed);
        await this.#whenReady(watched);
        if (!isOver) await this.read([name]);
      } catch {
        if (!isOver) retry = setTimeout(() => void begin(), OBSERVE_RETRY_MS).unref();
      }
    };
    void begin();
    return () => {
      isOver = true;
      clearTimeout(retry);
      const watched = this.#watched.get(name);
      if (watched?.observers.delete(changed)) this.#dropWhenIdle(watched);
    };
  }

  /** Reads names anew, as a watch may be behind. An error of one name is not the others'. */
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

  /** The queue of the name may have changed. */
  changed(name: string): void {
    const watched = this.#watched.get(name);
    if (watched === undefined) return;
    for (const changed of watched.observers) changed();
    const { queue, waiting, isComplete } = watched;
    if (!isComplete || waiting.size === 0) return;
    const holders = new Set(queue.holders().map(({ grantId }) => grantId));
    for (const claim of [...waiting]) {
      // The watch may be behind the reply to the claim.
      if (claim.state !== "queued" || queue.revision < claim.token) continue;
      const record = queue.get(claim.grantId);
      const isGone = record === undefined || record.hasEnded || isMisplaced(record, claim);
      if (isGone) claim.push({ kind: "look" });
      else if (holders.has(claim.grantId)) this.#handOver(claim, queue);
    }
  }

  /** Ends the watches that nobody needs; `forGood`: all of them. */
  close(forGood: boolean): void {
    for (const watched of [...this.#watched.values()]) {
      if (forGood || watched.isIdle) this.#drop(watched);
    }
  }

  #watch(name: string): WatchedName {
    const there = this.#watched.get(name);
    clearTimeout(there?.idleTimer);
    if (there !== undefined) return there;
    const watched = new WatchedName(this.#client, this.#keys, name, {
      changed: () => this.changed(name),
      refresh: () => void this.read([name]).catch(() => {}),
    });
    this.#watched.set(name, watched);
    return watched;
  }

  async #whenReady(watched: WatchedName): Promise<void> {
    try {
      await watched.ready;
    } catch (error) {
      // The next attempt begins another watch.
      this.#drop(watched);
      throw error;
    }
  }

  #dropWhenIdle(watched: WatchedName): void {
    if (!watched.isIdle) return;
    clearTimeout(watched.idleTimer);
    watched.idleTimer = setTimeout(() => this.#drop(watched), IDLE_WATCH_MS).unref();
  }

  #drop(watched: WatchedName): void {
    if (this.#watched.get(watched.name) === watched) this.#watched.delete(watched.name);
    watched.cancel();
  }
}
