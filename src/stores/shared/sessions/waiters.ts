import type { SessionClaim } from "./claims.js";

/** A name that was waited for is likely to be waited for again: its watch stays for this long. */
const IDLE_WATCH_MS = 5_000;
const OBSERVE_RETRY_MS = 1_000;

export interface Observer {
  /** The queue of the name may have changed. */
  changed(): void;
  /** The watch has ended with its session. */
  ended(): void;
}

/** The queue of a name, kept up to date by a watch of the store. */
export abstract class Watched<C, Q> {
  readonly name: string;
  abstract readonly queue: Q;
  /** Claims that wait for the name, or are about to. */
  readonly waiting = new Set<C>();
  readonly observers = new Set<Observer>();
  idleTimer: NodeJS.Timeout | undefined;

  constructor(name: string) {
    this.name = name;
  }

  /** Resolves when every later change will be received. */
  abstract get ready(): Promise<unknown>;
  /** Whether every change up to the last event is in the queue. */
  abstract get isComplete(): boolean;
  /** Ends the watch. */
  abstract cancel(): void;

  get isIdle(): boolean {
    return this.waiting.size + this.observers.size === 0;
  }
}

/** A store's queue, as far as waiters need it. */
interface WaitersQueue {
  holders(): readonly { readonly grantId: string }[];
}

/** The operations of a store that waiters use. */
export interface WaitersPort<C, Q, W extends Watched<C, Q>> {
  watch(name: string): W;
  /** Whether the claim stands in the queue; null: the queue may be older than the claim. */
  stands(claim: C, queue: Q): boolean | null;
  /** The claims before this one are gone. */
  handOver(claim: C, queue: Q): void;
}

/** Waiters and observers, which share one watch per name. */
export class Waiters<
  C extends Pick<SessionClaim<unknown>, "name" | "grantId" | "state" | "push">,
  Q extends WaitersQueue,
  W extends Watched<C, Q>,
> {
  readonly #port: WaitersPort<C, Q, W>;
  readonly #watched = new Map<string, W>();

  constructor(port: WaitersPort<C, Q, W>) {
    this.#port = port;
  }

  get(name: string): W | undefined {
    return this.#watched.get(name);
  }

  all(): Iterable<W> {
    return this.#watched.values();
  }

  /** Resolves when every later change of the claim's name will be received. */
  async add(claim: C): Promise<W> {
    const watched = this.#watch(claim.name);
    watched.waiting.add(claim);
    await this.#whenReady(watched);
    return watched;
  }

  remove(claim: C): void {
    const watched = this.#watched.get(claim.name);
    if (watched?.waiting.delete(claim)) this.#dropWhenIdle(watched);
  }

  /**
   * Begins to observe the name. Rejects if it can't be watched; otherwise resolves with a function that ends the
   * observation.
   */
  async observe(name: string, observer: Observer): Promise<() => void> {
    const watched = this.#watch(name);
    watched.observers.add(observer);
    await this.#whenReady(watched);
    return () => {
      if (watched.observers.delete(observer)) this.#dropWhenIdle(watched);
    };
  }

  /** The queue of the name may have changed. */
  changed(name: string): void {
    const watched = this.#watched.get(name);
    if (watched === undefined) return;
    for (const { changed } of watched.observers) changed();
    const { queue, waiting, isComplete } = watched;
    if (!isComplete || waiting.size === 0) return;
    const holders = new Set(queue.holders().map(({ grantId }) => grantId));
    for (const claim of [...waiting]) {
      const stands = claim.state === "queued" ? this.#port.stands(claim, queue) : null;
      if (stands === false) claim.push({ kind: "look" });
      else if (stands && holders.has(claim.grantId)) this.#port.handOver(claim, queue);
    }
  }

  /** Ends the watches that nobody needs; `forGood`: all of them. */
  close(forGood: boolean): void {
    for (const watched of [...this.#watched.values()]) {
      if (forGood || watched.isIdle) this.#drop(watched);
    }
  }

  #watch(name: string): W {
    const there = this.#watched.get(name);
    clearTimeout(there?.idleTimer);
    if (there !== undefined) return there;
    const watched = this.#port.watch(name);
    this.#watched.set(name, watched);
    return watched;
  }

  async #whenReady(watched: W): Promise<void> {
    try {
      await watched.ready;
    } catch (error) {
      // The next attempt begins another watch.
      this.#drop(watched);
      throw error;
    }
  }

  #dropWhenIdle(watched: W): void {
    if (!watched.isIdle) return;
    clearTimeout(watched.idleTimer);
    watched.idleTimer = setTimeout(() => this.#drop(watched), IDLE_WATCH_MS).unref();
  }

  #drop(watched: W): void {
    clearTimeout(watched.idleTimer);
    if (this.#watched.get(watched.name) === watched) this.#watched.delete(watched.name);
    watched.cancel();
  }
}

/** Observes until the returned function is called, and begins again after a failure or an end. */
export function observeAgain(
  changed: () => void,
  begin: (observer: Observer) => Promise<() => void>,
): () => void {
  let isOver = false;
  let end = (): void => {};
  let retry: NodeJS.Timeout | undefined;
  const observe = async (): Promise<void> => {
    if (isOver) return;
    // Until `begin` has resolved, its outcome decides: an end in between must not begin a second observation.
    let isBegun = false;
    let hasEnded = false;
    const ended = (): void => {
      hasEnded = true;
      if (isBegun) void observe();
    };
    try {
      end = await begin({ changed, ended });
      isBegun = true;
      if (isOver) end();
      else if (hasEnded) void observe();
      else changed();
    } catch {
      if (!isOver) retry = setTimeout(() => void observe(), OBSERVE_RETRY_MS).unref();
    }
  };
  void observe();
  return () => {
    isOver = true;
    clearTimeout(retry);
    end();
  };
}
