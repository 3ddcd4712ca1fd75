import { randomUUID } from "node:crypto";
import type { Connection, Subscription } from "./client.js";
import { PREFIX } from "./keys.js";

/** A connection that looks alive may have been dead for long: it is asked so often, and so long. */
const PING_EVERY_MS = 5_000;
const PING_MS = 2_000;
const AGAIN_MS = 1_000;

/** Where the grants of this process's waiters are pushed to: one subscription for all of them. */
export class Wake {
  readonly #connection: Connection;
  readonly #hear: { message(text: string): void; missed(): void };
  readonly #isNeeded: () => boolean;
  /** The same for every subscription: tickets name it. */
  readonly name = `${PREFIX}wake:${randomUUID()}`;
  #open: Promise<Subscription> | null = null;
  #subscription: Subscription | null = null;
  #pings: NodeJS.Timeout | null = null;
  #closed = false;

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

  /** Resolves when it is listened to. */
  async open(): Promise<void> {
    if (this.#closed) throw new Error("the store is closed");
    this.#open ??= this.#subscribe();
    await this.#open;
  }

  async close(): Promise<void> {
    this.#closed = true;
    await this.#drop();
  }

  async #subscribe(): Promise<Subscription> {
    try {
      const subscription = await this.#connection.subscribe(this.name, {
        message: (text) => this.#hear.message(text),
        back: () => this.#hear.missed(),
      });
      if (this.#closed) {
        await subscription.close();
        throw new Error("the store is closed");
      }
      this.#subscription = subscription;
      this.#pings = setInterval(() => this.#ping(subscription), PING_EVERY_MS).unref();
      return subscription;
    } catch (error) {
      this.#open = null;
      throw error;
    }
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
    this.#again();
  }

  #again(): void {
    if (this.#closed || !this.#isNeeded()) return;
    this.open().then(
      () => this.#hear.missed(),
      () => void setTimeout(() => this.#again(), AGAIN_MS).unref(),
    );
  }

  #drop(): Promise<void> | undefined {
    if (this.#pings !== null) clearInterval(this.#pings);
    const subscription = this.#subscription;
    this.#pings = null;
    this.#subscription = null;
    this.#open = null;
    return subscription?.close();
  }
}
