import type { SessionClaim } from "../shared/sessions/claims.js";
import type { PersistentWatch, ZooKeeperClient } from "./client/client.js";
import type { WatchEvent } from "./client/watches.js";
import type { Layout } from "./layout.js";
import { Queue } from "./queue.js";
import type { NameNodes, TurnRequests } from "./turn-requests.js";

/** A name that was waited for is likely to be waited for again: its watch stays for this long. */
const IDLE_WATCH_MS = 5_000;

/** The parts of a claim that its watch needs. */
export type WaitingClaim = Pick<SessionClaim<unknown>, "name" | "grantId" | "state" | "push">;

interface Observer {
  /** The queue of the name may have changed. */
  changed(): void;
  /** The watch has ended with its session. */
  ended(): void;
}

/** The queue of a name, kept up to date by a recursive watch. */
class WatchedName {
  readonly name: string;
  readonly queue = new Queue();
  /** Claims of this session that wait for the name, or are about to. */
  readonly waiting = new Set<WaitingClaim>();
  readonly observers = new Set<Observer>();
  /** Whether every change up to the last event is in the queue. */
  isComplete = false;
  ready: Promise<PersistentWatch>;
  idleTimer: NodeJS.Timeout | undefined;
  /** The reads that are under way, and the changes since each was sent. */
  readonly #reads = new Set<{ changes: WatchEvent[]; isOutdated: boolean }>();

  constructor(name: string, ready: Promise<PersistentWatch>) {
    this.name = name;
    this.ready = ready;
  }

  get isIdle(): boolean {
    return this.waiting.size + this.observers.size === 0;
  }

  /** Whether nothing that is under way will make the queue complete. */
  get needsRead(): boolean {
    return !this.isComplete && [...this.#reads].every(({ isOutdated }) => isOutdated);
  }

  /**
   * Reads the name anew. Events and the reply may be received in one step, in either order, so the events
   * since the request was sent are applied again: the last one about a node is true.
   */
  async read(request: Promise<NameNodes>): Promise<Queue> {
    const read = { changes: [] as WatchEvent[], isOutdated: false };
    this.#reads.add(read);
    try {
      const { children, resize } = await request;
      if (read.isOutdated) return new Queue(children, resize);
      this.queue.reset(children, resize);
      for (const change of read.changes) this.#apply(change);
      this.isComplete = true;
      return this.queue;
    } finally {
      this.#reads.delete(read);
    }
  }

  /** A change of a claim. */
  changed(event: WatchEvent): void {
    for (const read of this.#reads) read.changes.push(event);
    try {
      this.#apply(event);
    } catch {
      // A node that can't be read: the next request for the name reports it.
      this.outdate();
    }
  }

  /** The name must be read anew: reads that are under way may be too old. */
  outdate(): void {
    for (const read of this.#reads) read.isOutdated = true;
    this.isComplete = false;
  }

  #apply({ type, path }: WatchEvent): void {
    const node = path.slice(path.lastIndexOf("/") + 1);
    if (type === "created") this.queue.created(node);
    else if (type === "deleted") this.queue.deleted(node);
  }
}

/** The watches of one session: its waiters and observers share one for each name. */
export class NameWatches {
  readonly #client: ZooKeeperClient;
  readonly #requests: TurnRequests;
  readonly #layout: Layout;
  /** Called when the claims before this one are gone. */
  readonly #handOver: (claim: WaitingClaim, queue: Queue) => void;
  readonly #watched = new Map<string, WatchedName>();

  constructor(
    client: ZooKeeperClient,
    requests: TurnRequests,
    layout: Layout,
    handOver: (claim: WaitingClaim, queue: Queue) => void,
  ) {
    this.#client = client;
    this.#requests = requests;
    this.#layout = layout;
    this.#handOver = handOver;
    client.on("reconnected", () => this.#reconnected());
    client.on("lost", () => this.#lost());
  }

  /** The queue, if it is watched and complete: it is as new as the last reply on this connection. */
  complete(name: string): Queue | null {
    const watched = this.#watched.get(name);
    return watched?.isComplete ? watched.queue : null;
  }

  /** Watches the name for the claim. Resolves with a queue from after that, to which every later change is applied. */
  async add(claim: WaitingClaim): Promise<Queue> {
    const watched = this.#watch(claim.name);
    watched.waiting.add(claim);
    await this.#whenReady(watched);
    return watched.isComplete ? watched.queue : this.read(claim.name);
  }

  remove(claim: WaitingClaim): void {
    const watched = this.#watched.get(claim.name);
    if (watched?.waiting.delete(claim)) this.#dropWhenIdle(watched);
  }

  /** Rejects if the name can't be watched; otherwise resolves with a function that ends the observation. */
  async observe(name: string, observer: Observer): Promise<() => void> {
    const watched = this.#watch(name);
    await this.#whenReady(watched);
    watched.observers.add(observer);
    return () => {
      if (watched.observers.delete(observer)) this.#dropWhenIdle(watched);
    };
  }

  /** Reads the name, and notifies waiters whose turn has come. */
  async read(name: string): Promise<Queue> {
    const request = this.#requests.readName(name);
    const watched = this.#watched.get(name);
    if (watched === undefined) {
      const { children, resize } = await request;
      return new Queue(children, resize);
    }
    const queue = await watched.read(request);
    this.changed(name);
    return queue;
  }

  /** The queue of the name may have changed. */
  changed(name: string): void {
    const watched = this.#watched.get(name);
    if (watched === undefined) return;
    for (const observer of watched.observers) observer.changed();
    const { queue, waiting, isComplete } = watched;
    if (!isComplete || waiting.size === 0) return;
    const holders = new Set(queue.holders().map(({ grantId }) => grantId));
    for (const claim of [...waiting]) {
      if (claim.state !== "queued") continue;
      if (queue.get(claim.grantId) === undefined) claim.push({ kind: "look" });
      else if (holders.has(claim.grantId)) this.#handOver(claim, queue);
    }
  }

  /** Ends all watches. */
  close(): void {
    for (const watched of [...this.#watched.values()]) {
      this.#drop(watched);
      for (const { ended } of watched.observers) ended();
    }
  }

  #watch(name: string): WatchedName {
    const there = this.#watched.get(name);
    clearTimeout(there?.idleTimer);
    if (there !== undefined) return there;
    const container = this.#layout.name(name);
    const listener = (event: WatchEvent): void => this.#noticed(watched, container, event);
    const ready = this.#client.addWatch(container, { recursive: true }, listener);
    const watched: WatchedName = new WatchedName(name, ready);
    this.#watched.set(name, watched);
    ready.catch(() => {});
    // Behind the request for the watch: no change is missed.
    this.read(name).catch(() => {});
    return watched;
  }

  #noticed(watched: WatchedName, container: string, event: WatchEvent): void {
    if (this.#watched.get(watched.name) !== watched) return;
    if (event.path !== container) {
      watched.changed(event);
      this.changed(watched.name);
    } else {
      // A resize, or another container: until it is read, nobody is granted by the old limit.
      watched.outdate();
    }
    if (watched.needsRead) this.read(watched.name).catch(() => {});
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

  /** The server sends no events for changes while there was no connection. */
  #reconnected(): void {
    for (const watched of this.#watched.values()) {
      watched.outdate();
      this.read(watched.name).catch(() => {});
    }
  }

  /** Every claim of the session is over: the waiters learn it from their next renewal. */
  #lost(): void {
    for (const watched of this.#watched.values()) {
      for (const claim of watched.waiting)
        if (claim.state === "queued") claim.push({ kind: "look" });
    }
    this.close();
  }

  #dropWhenIdle(watched: WatchedName): void {
    if (!watched.isIdle) return;
    clearTimeout(watched.idleTimer);
    watched.idleTimer = setTimeout(() => this.#drop(watched), IDLE_WATCH_MS).unref();
  }

  #drop(watched: WatchedName): void {
    clearTimeout(watched.idleTimer);
    if (this.#watched.get(watched.name) === watched) this.#watched.delete(watched.name);
    watched.ready.then((watch) => watch.remove()).catch(() => {});
  }
}
