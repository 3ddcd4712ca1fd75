import type { Claim } from "../../core/store.js";
import type { SessionClaim } from "../shared/sessions/claims.js";
import { Waiters, Watched } from "../shared/sessions/waiters.js";
import type { PersistentWatch, ZooKeeperClient } from "./client/client.js";
import type { WatchEvent } from "./client/watches.js";
import type { Layout } from "./layout.js";
import { Queue } from "./queue.js";
import type { NameNodes, TurnRequests } from "./turn-requests.js";

/** A read of a name that is under way. */
interface PendingRead {
  /** The changes since it was sent. */
  readonly changes: WatchEvent[];
  /** Whether the reply may be too old to be used. */
  isOutdated: boolean;
}

/** As much of a claim as its watch needs. */
type Waiting = Pick<SessionClaim<unknown>, "name" | "grantId" | "state" | "push">;

/** The queue of a name, kept up to date by a recursive watch. */
class WatchedName extends Watched<Waiting, Queue> {
  readonly queue = new Queue(this.name);
  readonly ready: Promise<PersistentWatch>;
  isComplete = false;
  readonly #reads = new Set<PendingRead>();

  /** `changed`: called after each event. */
  constructor(client: ZooKeeperClient, layout: Layout, name: string, changed: () => void) {
    super(name);
    const container = layout.name(name);
    this.ready = client.addWatch(container, { recursive: true }, (event) => {
      // A resize, or another container: until it is read, nobody is granted by the old limit.
      if (event.path === container) this.outdate();
      else this.#change(event);
      changed();
    });
    this.ready.catch(() => {});
  }

  /** Whether the queue stays incomplete unless the name is read again. */
  get needsRead(): boolean {
    return !this.isComplete && [...this.#reads].every(({ isOutdated }) => isOutdated);
  }

  cancel(): void {
    this.ready.then((watch) => watch.remove()).catch(() => {});
  }

  /**
   * Takes over a read of the name. Events and the reply may be received in one step, in either order, so the
   * events since the request was sent are applied again: the last one about a node is true.
   */
  async read(request: Promise<NameNodes>): Promise<Queue> {
    const read: PendingRead = { changes: [], isOutdated: false };
    this.#reads.add(read);
    try {
      const { children, resize } = await request;
      if (read.isOutdated) return new Queue(this.name, children, resize);
      this.queue.reset(children, resize);
      for (const change of read.changes) this.#apply(change);
      this.isComplete = true;
      return this.queue;
    } finally {
      this.#reads.delete(read);
    }
  }

  /** Called when the name must be read again, because reads that are under way may be too old. */
  outdate(): void {
    for (const read of this.#reads) read.isOutdated = true;
    this.isComplete = false;
  }

  #change(event: WatchEvent): void {
    for (const read of this.#reads) read.changes.push(event);
    try {
      this.#apply(event);
    } catch {
      // A node that can't be read: the next request for the name reports it.
      this.outdate();
    }
  }

  #apply({ type, path }: WatchEvent): void {
    const node = path.slice(path.lastIndexOf("/") + 1);
    if (type === "created") this.queue.created(node);
    else if (type === "deleted") this.queue.deleted(node);
  }
}

/** The waiters and observers of one session. */
export class NameWatches extends Waiters<Waiting, Queue, WatchedName> {
  readonly #requests: TurnRequests;

  /** `handOver`: the claims before this one are gone. */
  constructor(
    client: ZooKeeperClient,
    requests: TurnRequests,
    layout: Layout,
    handOver: (claim: Waiting, queue: Queue) => void,
  ) {
    super({
      watch: (name) => {
        const watched = new WatchedName(client, layout, name, () => this.#noticed(watched));
        // The read is sent behind the request for the watch, so that no change is missed.
        this.#read(watched).catch(() => {});
        return watched;
      },
      stands: ({ grantId }, queue) => queue.get(grantId) !== undefined,
      handOver,
    });
    this.#requests = requests;
    client.on("reconnected", () => this.#reconnected());
    client.on("lost", () => this.end());
  }

  /** The queue, if it is watched and complete: it is as new as the last reply on this connection. */
  completeQueue(name: string): Queue | null {
    const watched = this.get(name);
    return watched?.isComplete ? watched.queue : null;
  }

  /** Watches the name for the claim. Resolves with a queue from after that, to which every later change is applied. */
  async addAndRead(claim: Waiting): Promise<Queue> {
    const watched = await this.add(claim);
    return watched.isComplete ? watched.queue : this.read(claim.name);
  }

  /** Reads the name, and notifies waiters whose turn has come. */
  async read(name: string): Promise<Queue> {
    const watched = this.get(name);
    if (watched !== undefined) return this.#read(watched);
    const { children, resize } = await this.#requests.readName(name);
    return new Queue(name, children, resize);
  }

  /**
   * Reads the name behind the creation of a claim. An exclusive claim usually is the first one, and that holds the
   * name whatever its limit: the last resize is not read for it. Null: the name must be read in full.
   */
  readBehind(name: string, { grantId, permits, limit }: Claim): Promise<Queue | null> {
    if (permits < limit || this.get(name) !== undefined) return this.read(name);
    return this.#requests.readChildren(name).then((children) => {
      const queue = new Queue(name, children);
      return queue.isFirst(grantId) ? queue : null;
    });
  }

  /** Ends all watches. Observers go on under another session. */
  end(): void {
    const observers = [...this.all()].flatMap((watched) => [...watched.observers]);
    this.close(true);
    for (const { ended } of observers) ended();
  }

  async #read(watched: WatchedName): Promise<Queue> {
    const queue = await watched.read(this.#requests.readName(watched.name));
    this.changed(watched.name);
    return queue;
  }

  #noticed(watched: WatchedName): void {
    if (this.get(watched.name) !== watched) return;
    this.changed(watched.name);
    if (watched.needsRead) this.#read(watched).catch(() => {});
  }

  /** The server sends no events for changes while there was no connection. */
  #reconnected(): void {
    for (const watched of this.all()) {
      watched.outdate();
      this.#read(watched).catch(() => {});
    }
  }
}
