import { Watched } from "../shared/sessions/waiters.js";
import { within } from "../shared/timeout.js";
import type { Keys } from "./keys.js";
import { Queue } from "./queue.js";
import type { EtcdClient } from "./rpc/client.js";
import type { WatchEvent } from "./rpc/messages.js";
import type { Watch } from "./rpc/watches.js";
import type { EtcdClaim } from "./session-port.js";

const WATCH_TIMEOUT_MS = 4_000;
const MOST_EARLY_REPLIES = 256;

/** The queue of a name, kept up to date by a watch. */
export class WatchedName extends Watched<EtcdClaim, Queue> {
  readonly queue: Queue;
  readonly ready: Promise<void>;
  readonly #watch: Watch;
  /** Events from before the first snapshot; null: the queue is complete. */
  #early: { events: readonly WatchEvent[]; revision: bigint }[] | null = [];
  /** Ignore snapshots older than this revision: they miss events. Null: the name is not watched yet. */
  #watchedSince: bigint | null = null;

  /** `changed`: the queue may have changed. `refresh`: reads the name, and calls `reset`. */
  constructor(
    client: EtcdClient,
    keys: Keys,
    name: string,
    { changed, refresh }: { changed(): void; refresh(): void },
  ) {
    super(name);
    this.queue = new Queue(keys);
    let created = (): void => {};
    let failed = (_error: unknown): void => {};
    const watched = new Promise<void>((resolve, reject) => {
      created = resolve;
      failed = reject;
    });
    const timedOut = () =>
      new Error(`etcd did not begin the watch within ${WATCH_TIMEOUT_MS} ms; retry`);
    this.ready = within(WATCH_TIMEOUT_MS, watched, timedOut, { unref: true });
    this.ready.catch(() => {});
    let hasGap = false;
    this.#watch = client.watch(keys.name(name), {
      created: (revision) => {
        created();
        this.#watchedSince = revision;
        if (hasGap) refresh();
        hasGap = false;
      },
      events: (events, revision) => {
        this.#apply(events, revision, refresh);
        changed();
      },
      gap: () => {
        hasGap = true;
        this.#early = [];
        this.#watchedSince = null;
      },
      failed,
    });
  }

  get isComplete(): boolean {
    return this.#early === null;
  }

  /** Takes over a snapshot of the name, unless newer events are known. */
  reset(snapshot: Queue): void {
    if (this.#early === null) {
      if (snapshot.revision >= this.queue.revision) this.queue.adopt(snapshot);
      return;
    }
    if (this.#watchedSince === null || snapshot.revision < this.#watchedSince) return;
    this.queue.adopt(snapshot);
    for (const { events, revision } of this.#early) this.queue.apply(events, revision);
    this.#early = null;
  }

  cancel(): void {
    this.#watch.cancel();
  }

  #apply(events: readonly WatchEvent[], revision: bigint, refresh: () => void): void {
    if (this.#early === null) {
      try {
        this.queue.apply(events, revision);
        return;
      } catch {
        // A value can't be read: the next request for the name reports it.
        this.#early = [];
      }
    }
    this.#early.push({ events, revision });
    if (this.#early.length < MOST_EARLY_REPLIES) return;
    // Nobody has read the name for long. A snapshot from now on includes these events.
    this.#early = [];
    this.#watchedSince = revision;
    refresh();
  }
}
