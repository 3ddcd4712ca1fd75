import { ClosedError, StoreUnavailableError } from "../../core/errors.js";
import type { ZooKeeperClient } from "./client/client.js";
import { LONGEST_MS } from "./client/options.js";
import type { Layout } from "./layout.js";
import { Liveness } from "./liveness.js";
import type { NameWatches } from "./name-watches.js";
import { prepareRoot } from "./root.js";
import { TurnRequests } from "./turn-requests.js";

/** Options that the store adds to those of the user when it opens a client. */
export interface SessionOptions {
  readonly sessionTimeoutMs: number;
  readonly pingIntervalMs: number;
}

/** Opens a client with a session of its own. */
export type OpenClient = (options: SessionOptions) => Promise<ZooKeeperClient>;

/** Makes the watches of a session. */
type WatchesOf = (client: ZooKeeperClient, requests: TurnRequests) => NameWatches;

/** A ttl needs a longer session: a proof covers touches from a third of the timeout before it, and a ping interval. */
export const TIMEOUT_PER_TTL = 1.7;
export const PINGS_PER_TIMEOUT = 15;

/** A session of ZooKeeper with everything that ends with it. */
export class Link {
  readonly client: ZooKeeperClient;
  readonly layout: Layout;
  readonly requests: TurnRequests;
  readonly watches: NameWatches;
  readonly liveness: Liveness;
  /** The session's node. Its version rises with each revocation of one of the session's grants. */
  readonly node: string;
  version = 0;

  constructor(client: ZooKeeperClient, layout: Layout, watchesOf: WatchesOf) {
    this.client = client;
    this.layout = layout;
    this.requests = new TurnRequests(client, layout);
    this.watches = watchesOf(client, this.requests);
    this.liveness = new Liveness(client.sessionTimeoutMs);
    this.node = layout.session(client.sessionId);
    client.on("replied", (reply) => this.liveness.replied(reply));
  }

  get isOver(): boolean {
    return this.client.state === "lost" || this.client.state === "closed";
  }

  async close(): Promise<void> {
    this.watches.end();
    await this.client.close();
  }
}

/** Opens sessions below one root. */
export class Links {
  readonly #open: OpenClient;
  readonly #layout: Layout;
  readonly #watchesOf: WatchesOf;
  /** The links of sessions, and the one that is opened for requests without a session. */
  readonly #links = new Set<Link>();
  #spare: Promise<Link> | null = null;
  #isClosed = false;
  /** The highest transaction of all earlier sessions. */
  #lastZxid = 0n;

  constructor(open: OpenClient, layout: Layout, watchesOf: WatchesOf) {
    this.#open = open;
    this.#layout = layout;
    this.#watchesOf = watchesOf;
  }

  /** Opens a session, and its node. */
  async begin(ttlMs: number): Promise<Link> {
    const timeoutMs = Math.min(Math.ceil(ttlMs * TIMEOUT_PER_TTL), LONGEST_MS);
    const link = await this.#connect(timeoutMs);
    try {
      const { reply } = await link.client.create(link.node, { mode: "ephemeral" });
      this.#refuseFallen(reply.zxid);
      return link;
    } catch (error) {
      await this.end(link);
      throw error;
    }
  }

  /** A link of a session that lives, or one without claims. */
  async any(): Promise<Link> {
    for (const link of this.#links) if (!link.isOver) return link;
    this.#spare ??= this.open().finally(() => {
      this.#spare = null;
    });
    return this.#spare;
  }

  /** A link without claims. */
  open(): Promise<Link> {
    return this.#connect(SPARE_TIMEOUT_MS);
  }

  async end(link: Link): Promise<void> {
    this.#forget(link);
    await link.close();
  }

  /** Ends all sessions, and those that are being opened. No other is opened until `reopen`. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#spare?.catch(() => {});
    await Promise.all([...this.#links].map((link) => this.end(link)));
  }

  reopen(): void {
    this.#isClosed = false;
  }

  async #connect(sessionTimeoutMs: number): Promise<Link> {
    this.#refuseIfClosed();
    const pingIntervalMs = sessionTimeoutMs / PINGS_PER_TIMEOUT;
    const client = await this.#open({ sessionTimeoutMs, pingIntervalMs });
    const link = new Link(client, this.#layout, this.#watchesOf);
    client.on("lost", () => this.#forget(link));
    try {
      await prepareRoot(client, this.#layout);
      // Nobody would end a session that begins after `close`.
      this.#refuseIfClosed();
      this.#links.add(link);
      return link;
    } catch (error) {
      await client.close();
      throw error;
    }
  }

  #refuseIfClosed(): void {
    if (this.#isClosed) throw new ClosedError();
  }

  #forget(link: Link): void {
    this.#links.delete(link);
    const { lastZxid } = link.client;
    if (lastZxid > this.#lastZxid) this.#lastZxid = lastZxid;
  }

  /** The transaction is the token, so a claim made now would get a lower one than was given before. */
  #refuseFallen(zxid: bigint): void {
    if (zxid > this.#lastZxid) return;
    throw new StoreUnavailableError(
      `ZooKeeper's transactions fell from ${this.#lastZxid} to ${zxid}: its data was wiped or restored ` +
        "from a backup, and tokens fall with it. Stop all holders, raise tokenOffset by at least " +
        `${this.#lastZxid} in all of them, and start them again`,
      { retryable: false },
    );
  }
}

const SPARE_TIMEOUT_MS = 10_000;
