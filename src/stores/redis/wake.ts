import { randomUUID } from "node:crypto";
import type { Connection, Subscription } from "./client.js";
import { PREFIX } from "./keys.js";

/** A connection that looks alive may have been dead for long: it is asked so often, and so long. */
const PING_EVERY_MS = 5_000;
const PING_MS = 2_000;
/** A server that takes the connection and says nothing is not waited for any longer. */
const SUBSCRIBE_MS = 5_000;
/** Attempts of its own accord are so far apart, whatever goes wrong. */
const AGAIN_MS = 1_000;

/** Where the grants of this process's waiters are pushed to: one subscription for all of them. */
export class Wake {
  readonly #connection: Connection;
  readonly #hear: { message(text: string): void; missed(): void };
  readonly #isNeeded: () => boolean;
  /** The same for every subscription: tickets name it. */
  readonly name = `${PREFIX}wake:${randomUUID()}`;
  #subscription: Subscription | null = null;
  /** How often the connection had been lost when the subscription was asked for. */
  #losses = 0;
  #opening: Promise<void> | null = null;
  #triedAtMs = Number.NEGATIVE_INFINITY;
  #renewing: NodeJS.Timeout | null = null;
  #pings: NodeJS.Timeout | null = null;
  #unwatch: (() => void) | null = null;
  #closing = new AbortController();

  constructor(
    connection: Connection,
    hear: { message(text: string): void; missed(): void },
    isNeeded: () => boolean,
  ) {
    this.#connection = connection;
    this.#hear = hear;
    this.#isNeeded = isNeeded;
  }

  /** It is listened to. */
  get isOpen(): boolean {
    return this.#subscription !== null;
  }

  /** Resolves when it is listened to. If that fails, it is tried again while somebody needs it. */
  async open(): Promise<void> {
    if (this.isOpen) return;
    const closing = this.#closing.signal;
    await this.#listen().catch((error: unknown) => {
      if (!closing.aborted) this.#renew();
      throw error;
    });
  }

  /** Until it is opened again. */
  async close(): Promise<void> {
    this.#closing.abort(new Error("the store is closed"));
    this.#closing = new AbortController();
    if (this.#renewing !== null) clearTimeout(this.#renewing);
    this.#renewing = null;
    const opening = this.#opening;
    this.#opening = null;
    await Promise.allSettled([this.#drop(), opening]);
  }

  /** One at a time. */
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
    const { losses } = this.#connection;
    const late = new AbortController();
    const timer = setTimeout(
      () => late.abort(new Error(`no answer to SUBSCRIBE within ${SUBSCRIBE_MS} ms`)),
      SUBSCRIBE_MS,
    ).unref();
    const hear = {
      message: (text: string) => this.#hear.message(text),
      back: () => this.#hear.missed(),
      ended: () => void subscribed.then((one) => this.#replace(one)).catch(() => {}),
    };
    const signal = AbortSignal.any([closing, late.signal]);
    const subscribed = this.#connection.subscribe(this.name, hear, signal);
    const subscription = await subscribed.finally(() => clearTimeout(timer));
    if (closing.aborted) {
      await subscription.close();
      throw closing.reason;
    }
    // Only now: meanwhile somebody has listened, and no waiter is taken for dead.
    void this.#drop();
    this.#subscription = subscription;
    this.#losses = losses;
    this.#pings = setInterval(() => this.#ping(subscription), PING_EVERY_MS).unref();
    this.#unwatch = this.#connection.onBack(() => this.#renew());
    if (this.#isStale) this.#renew();
  }

  #ping(subscription: Subscription): void {
    if (!this.#isNeeded()) return;
    const replace = (): void => this.#replace(subscription);
    const timer = setTimeout(replace, PING_MS).unref();
    subscription
      .ping()
      .catch(replace)
      .finally(() => clearTimeout(timer));
  }

  #replace(subscription: Subscription): void {
    if (this.#subscription !== subscription) return;
    void this.#drop();
    this.#renew();
  }

  /** The commands may go to another server by now, where nobody listens. */
  get #isStale(): boolean {
    return this.#losses !== this.#connection.losses;
  }

  #renew(): void {
    if (this.#renewing !== null) return;
    const delayMs = Math.max(0, this.#triedAtMs + AGAIN_MS - performance.now());
    this.#renewing = setTimeout(() => {
      this.#renewing = null;
      if (!this.#isNeeded()) void this.#drop();
      else if (this.isOpen && !this.#isStale) this.#hear.missed();
      else {
        const listening = this.#listen().catch(() => this.#renew());
        // Also while it fails: nobody is told of a grant then, and waiters have to ask.
        listening.then(() => this.#hear.missed());
      }
    }, delayMs).unref();
  }

  #drop(): Promise<void> | undefined {
    if (this.#pings !== null) clearInterval(this.#pings);
    this.#unwatch?.();
    const subscription = this.#subscription;
    this.#pings = null;
    this.#unwatch = null;
    this.#subscription = null;
    return subscription?.close();
  }
}
