import type { Keys } from "./keys.js";
import { Queue } from "./queue.js";
import type { EtcdClient } from "./rpc/client.js";
import type { KeyValue, WatchEvent } from "./rpc/messages.js";
import type { Watch } from "./rpc/watches.js";

const WATCHED_WITHIN_MS = 4_000;
const MOST_EARLY = 256;

/** A name that this process waits for, as its watch tells it. */
export class Watched {
  readonly name: string;
  readonly queue: Queue;
  /** Resolves when every later event will be told. */
  readonly ready: Promise<void>;
  users = 0;
  lingering: NodeJS.Timeout | undefined;
  readonly #watch: Watch;
  /** Events of what is not known yet from the ground up. */
  #early: { events: readonly WatchEvent[]; revision: bigint }[] | null = [];
  /** What was read before it tells too little: nobody tells what came in between. Null: it is not watched yet. */
  #since: bigint | null = null;

  constructor(
    client: EtcdClient,
    keys: Keys,
    name: string,
    hear: { changed(): void; refresh(): Promise<void> },
  ) {
    this.name = name;
    this.queue = new Queue(keys);
    let created = (): void => {};
    let failed = (_error: unknown): void => {};
    this.ready = new Promise((resolve, reject) => {
      created = resolve;
      failed = reject;
    });
    const timer = setTimeout(
      () => failed(new Error("etcd: the watch was not begun in time")),
      WATCHED_WITHIN_MS,
    ).unref();
    this.ready.catch(() => {}).finally(() => clearTimeout(timer));
    const refresh = (): void => void hear.refresh().catch(() => {});
    let gap = false;
    this.#watch = client.watch(keys.name(name), {
      created: (revision) => {
        created();
        this.#since = revision;
        if (!gap) return;
        // What happened in the gap is read.
        gap = false;
        refresh();
      },
      events: (events, revision) => {
        this.#hear(events, revision, refresh);
        hear.changed();
      },
      gap: () => {
        gap = true;
        this.#early = [];
        this.#since = null;
      },
      failed,
    });
  }

  /** Its queue is up to date. */
  get isComplete(): boolean {
    return this.#early === null;
  }

  /** As it was read, at a revision. */
  reset(kvs: readonly KeyValue[], revision: bigint): void {
    if (this.#early === null) {
      this.queue.reset(kvs, revision);
      return;
    }
    if (this.#since === null || revision < this.#since) return;
    this.queue.revision = 0n;
    this.queue.reset(kvs, revision);
    for (const { events, revision: at } of this.#early) this.queue.apply(events, at);
    this.#early = null;
  }

  #hear(events: readonly WatchEvent[], revision: bigint, refresh: () => void): void {
    if (this.#early === null) {
      try {
        this.queue.apply(events, revision);
        return;
      } catch {
        // Something in it can't be read: whoever asks is told what.
        this.#early = [];
      }
    }
    this.#early.push({ events, revision });
    if (this.#early.length < MOST_EARLY) return;
    // Nobody has read it for long; what is read from now on has all of that.
    this.#early = [];
    this.#since = revision;
    refresh();
  }

  cancel(): void {
    clearTimeout(this.lingering);
    this.#watch.cancel();
  }
}
