/** Ping interval and timeout: without pings, a dead connection can look alive for long. */
const PING_INTERVAL_MS = 5_000;
const PING_TIMEOUT_MS = 2_000;
/** The timeout of an attempt to subscribe: a server may accept the connection and never reply. */
const SUBSCRIBE_TIMEOUT_MS = 5_000;
/** The shortest interval between the listener's own attempts to subscribe. */
const RETRY_MS = 1_000;

/** The operations of a store's connections that a listener uses. */
export interface ListenerPort {
  /** Whether a subscription that no waiter needs is closed, because it slows the server down. Default false. */
  readonly closesIdle?: boolean;
  /** How often the connection that carries the store's requests has been lost so far. */
  readonly losses: number;
  /** Calls back whenever that connection was lost and has been replaced. The returned function ends this. */
  onReconnect(reconnected: () => void): () => void;
  /** Opens a dedicated connection that receives the messages of a channel. An aborted attempt leaves nothing behind. */
  subscribe(
    channel: string,
    events: SubscriptionEvents,
    signal?: AbortSignal,
  ): Promise<Subscription>;
}

export interface SubscriptionEvents {
  message(text: string): void;
  /** The subscription was lost and is back: messages may have been missed. */
  resubscribed?(): void;
  /** The subscription is lost and does not come back. */
  ended?(): void;
}

export interface Subscription {
  ping(): Promise<unknown>;
  close(): Promise<void>;
}

interface ListenerEvents {
  message(text: string): void;
  /** Called when messages may have been missed, so every waiter has to look. */
  missed(): void;
}

/**
 * Receives the messages for this process's waiters on one channel, by one subscription for all of them.
 * It pings the subscription, replaces one that is silent, lost, or at another server than the requests,
 * and reports that messages may have been missed.
 */
export class Listener {
  /** Every subscription uses the same channel, because tickets name it. */
  readonly channel: string;
  readonly #port: ListenerPort;
  readonly #events: ListenerEvents;
  readonly #isNeeded: () => boolean;
  #subscription: Subscription | null = null;
  /** How often the port had lost its connection when the subscription was requested. */
  #losses = 0;
  #opening: Promise<void> | null = null;
  #triedAtMs = Number.NEGATIVE_INFINITY;
  #retry: NodeJS.Timeout | null = null;
  #pings: NodeJS.Timeout | null = null;
  #stopWatching: (() => void) | null = null;
  #closing = new AbortController();

  constructor(
    channel: string,
    port: ListenerPort,
    events: ListenerEvents,
    isNeeded: () => boolean,
  ) {
    this.channel = channel;
    this.#port = port;
    this.#events = events;
    this.#isNeeded = isNeeded;
  }

  get isOpen(): boolean {
    return this.#subscription !== null;
  }

  /** Resolves when the subscription is open. If it rejects, the listener retries while a waiter needs it. */
  async open(): Promise<void> {
    if (this.isOpen) return;
    const closing = this.#closing.signal;
    await this.#listen().catch((error: unknown) => {
      if (!closing.aborted) this.#checkSoon();
      throw error;
    });
  }

  /** Ends the subscription; `open` begins another. */
  async close(): Promise<void> {
    this.#closing.abort(new Error("the store is closed"));
    this.#closing = new AbortController();
    if (this.#retry !== null) clearTimeout(this.#retry);
    this.#retry = null;
    const opening = this.#opening;
    this.#opening = null;
    await Promise.allSettled([this.#drop(), opening]);
  }

  /** One attempt at a time. */
  #listen(): Promise<void> {
    if (this.#opening !== null) return this.#opening;
    const opening = this.#subscribe().finally(() => {
      if (this.#opening === opening) this.#opening = null;
    });
    this.#opening = opening;
    return opening;
  }

  async #subscribe(): Promise<void> {
    const closing = this.#closing.signal;
    this.#triedAtMs = performance.now();
    const { losses } = this.#port;
    const timeout = new AbortController();
    const timer = setTimeout(
      () => timeout.abort(new Error(`no subscription within ${SUBSCRIBE_TIMEOUT_MS} ms`)),
      SUBSCRIBE_TIMEOUT_MS,
    ).unref();
    let hasEnded = false;
    const events: SubscriptionEvents = {
      message: (text) => this.#events.message(text),
      resubscribed: () => this.#events.missed(),
      ended: () => {
        hasEnded = true;
        if (subscription !== null) this.#replace(subscription);
      },
    };
    const signal = AbortSignal.any([closing, timeout.signal]);
    let subscription: Subscription | null = null;
    try {
      subscription = await this.#port.subscribe(this.channel, events, signal);
    } finally {
      clearTimeout(timer);
    }
    if (closing.aborted) {
      await subscription.close();
      throw closing.reason;
    }
    // The old subscription is closed only now: without one, a store would take this process's waiters for dead.
    void this.#drop();
    this.#subscription = subscription;
    this.#losses = losses;
    this.#pings = setInterval(() => this.#ping(subscription), PING_INTERVAL_MS).unref();
    this.#stopWatching = this.#port.onReconnect(() => this.#checkSoon());
    // It may have ended while the store was still checking it.
    if (hasEnded) this.#replace(subscription);
    else if (this.#isStale) this.#checkSoon();
  }

  #ping(subscription: Subscription): void {
    if (!this.#isNeeded()) {
      if (this.#port.closesIdle) void this.#drop();
      return;
    }
    const replace = (): void => this.#replace(subscription);
    const timer = setTimeout(replace, PING_TIMEOUT_MS).unref();
    subscription
      .ping()
      .catch(replace)
      .finally(() => clearTimeout(timer));
  }

  #replace(subscription: Subscription): void {
    if (this.#subscription !== subscription) return;
    void this.#drop();
    this.#checkSoon();
  }

  /** Whether requests may reach another server by now than the subscription does. */
  get #isStale(): boolean {
    return this.#losses !== this.#port.losses;
  }

  /** Replaces the subscription if it is lost or stale, and makes the waiters look. */
  #checkSoon(): void {
    if (this.#retry !== null) return;
    const delayMs = Math.max(0, this.#triedAtMs + RETRY_MS - performance.now());
    this.#retry = setTimeout(() => {
      this.#retry = null;
      if (!this.#isNeeded()) void this.#drop();
      else if (this.isOpen && !this.#isStale) this.#events.missed();
      else {
        const listening = this.#listen().catch(() => this.#checkSoon());
        // Waiters look after a failed attempt, too: without a subscription nobody is notified of a grant.
        listening.then(() => this.#events.missed());
      }
    }, delayMs).unref();
  }

  #drop(): Promise<void> | undefined {
    if (this.#pings !== null) clearInterval(this.#pings);
    this.#stopWatching?.();
    const subscription = this.#subscription;
    this.#pings = null;
    this.#stopWatching = null;
    this.#subscription = null;
    return subscription?.close();
  }
}
