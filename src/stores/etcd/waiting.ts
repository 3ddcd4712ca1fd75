import type { Kept } from "./kept.js";
import type { Keys } from "./keys.js";
import { Queue } from "./queue.js";
import type { EtcdClient } from "./rpc/client.js";
import { isElsewhere } from "./seen.js";
import { Watched } from "./watched.js";

/** A name that was waited for is likely to be waited for again: its watch stays for so long. */
const LINGER_MS = 5_000;
const OBSERVED_AGAIN_MS = 1_000;
const NAMES_AT_ONCE = 50;

/** What this process waits for and observes: one watch for each name, however many do. */
export class Waiting {
  readonly #client: EtcdClient;
  readonly #keys: Keys;
  /** Those before it are gone, and at that revision its own key stood. */
  readonly #handOver: (kept: Kept, queue: Queue) => void;
  readonly #watched = new Map<string, Watched>();
  readonly #tickets = new Map<string, Set<Kept>>();
  readonly #observers = new Map<string, Set<() => void>>();

  constructor(client: EtcdClient, keys: Keys, handOver: (kept: Kept, queue: Queue) => void) {
    this.#client = client;
    this.#keys = keys;
    this.#handOver = handOver;
  }

  get(name: string): Watched | undefined {
    return this.#watched.get(name);
  }

  /** Resolves when every later change of its name will be told. */
  enter(kept: Kept): Promise<Watched> {
    if (kept.watching !== null) return kept.watching;
    const tickets = this.#tickets.get(kept.name) ?? new Set();
    this.#tickets.set(kept.name, tickets.add(kept));
    kept.watching = this.#watch(kept.name);
    kept.watching.catch(() => this.leave(kept));
    return kept.watching;
  }

  leave(kept: Kept): void {
    const { watching } = kept;
    kept.watching = null;
    watching?.then((watched) => this.#unwatch(watched)).catch(() => {});
    const tickets = this.#tickets.get(kept.name);
    tickets?.delete(kept);
    if (tickets?.size === 0) this.#tickets.delete(kept.name);
  }

  /** Returns what ends it. */
  observe(name: string, changed: () => void): () => void {
    const observers = this.#observers.get(name) ?? new Set();
    this.#observers.set(name, observers.add(changed));
    let watched: Watched | null = null;
    let retry: NodeJS.Timeout | undefined;
    const begin = async (): Promise<void> => {
      try {
        const entered = await this.#watch(name);
        if (!observers.has(changed)) return this.#unwatch(entered);
        watched = entered;
        await this.read([name]);
      } catch {
        if (watched === null && observers.has(changed)) {
          retry = setTimeout(() => void begin(), OBSERVED_AGAIN_MS).unref();
        }
      }
    };
    void begin();
    return () => {
      clearTimeout(retry);
      observers.delete(changed);
      if (observers.size === 0) this.#observers.delete(name);
      if (watched !== null) this.#unwatch(watched);
    };
  }

  /** Also for those who watch: a watch may be behind. What is wrong with one is not the others' affair. */
  async read(names: readonly string[]): Promise<ReadonlyMap<string, Queue | Error>> {
    const queues = new Map<string, Queue | Error>();
    for (let i = 0; i < names.length; i += NAMES_AT_ONCE) {
      const some = names.slice(i, i + NAMES_AT_ONCE);
      const success = some.map((name) => ({ range: this.#keys.name(name) }));
      const { responses, revision } = await this.#client.txn({ success }, { again: true });
      for (const [j, name] of some.entries()) {
        const { kvs } = responses[j]!.range!;
        try {
          queues.set(name, new Queue(this.#keys, kvs, revision));
          this.get(name)?.reset(kvs, revision);
        } catch (error) {
          queues.set(name, error as Error);
        }
      }
    }
    for (const name of names) this.changed(name);
    return queues;
  }

  /** The queue of the name may be another. */
  changed(name: string): void {
    for (const changed of this.#observers.get(name) ?? []) changed();
    const watched = this.get(name);
    const tickets = this.#tickets.get(name);
    if (watched === undefined || !watched.isComplete || tickets === undefined) return;
    const { queue } = watched;
    const holders = new Set(queue.holders().map(({ grantId }) => grantId));
    for (const kept of [...tickets]) {
      // The watch may be behind the answer to the claim.
      if (kept.state !== "queued" || queue.revision < kept.token) continue;
      const mine = queue.get(kept.grantId);
      if (mine === undefined || mine.ended || isElsewhere(mine, kept)) kept.push({ kind: "look" });
      else if (holders.has(kept.grantId)) this.#handOver(kept, queue);
    }
  }

  close(): void {
    for (const watched of [...this.#watched.values()]) this.#drop(watched);
  }

  /** Each that was watched is unwatched once. */
  async #watch(name: string): Promise<Watched> {
    let watched = this.#watched.get(name);
    if (watched === undefined) {
      watched = new Watched(this.#client, this.#keys, name, {
        changed: () => this.changed(name),
        refresh: async () => void (await this.read([name])),
      });
      this.#watched.set(name, watched);
    }
    clearTimeout(watched.lingering);
    watched.users++;
    try {
      await watched.ready;
      return watched;
    } catch (error) {
      // The next may have more luck with another.
      this.#drop(watched);
      throw error;
    }
  }

  #unwatch(watched: Watched): void {
    if (--watched.users > 0) return;
    clearTimeout(watched.lingering);
    watched.lingering = setTimeout(() => this.#drop(watched), LINGER_MS).unref();
  }

  #drop(watched: Watched): void {
    if (this.#watched.get(watched.name) === watched) this.#watched.delete(watched.name);
    watched.cancel();
  }
}
