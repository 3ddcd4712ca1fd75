import { ClosedError, StoreUnavailableError } from "../../core/errors.js";
import type { ZooKeeperClient } from "./client/client.js";
import { LONGEST_MS } from "./client/options.js";
import { isInterruption } from "./errors.js";
import type { Layout } from "./layout.js";
import { Liveness } from "./liveness.js";
import type { NameWatches } from "./name-watches.js";
import { prepareRoot } from "./root.js";
import { TurnRequests } from "./turn-requests.js";

/** Options that the store adds to those of the user when it opens a client. */
export interface SessionOptions {
  readonly sessionTimeoutMs: number;
  readonly pingIntervalMs: number;
  readonly signal: AbortSignal;
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
  /** Requests that go through the link at present, as far as `Links.use` knows of them. */
  users = 0;

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

  /** When the last request that the server has answered was sent. */
  get aliveAtMs(): number {
    return this.client.aliveUntilMs - this.client.sessionTimeoutMs;
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
  /** All links that are open, also those whose root is not known to be there yet. */
  readonly #links = new Set<Link>();
  /** Those that `any` returns: the links of sessions, and the spare one. */
  readonly #shared = new Set<Link>();
  /** The link that was opened because no session had a connection. Null again as soon as a session's link answers. */
  #spare: Link | null = null;
  #openingSpare: Promise<Link> | null = null;
  /** Aborts with `close`. */
  #closing = new AbortController();
  /** The highest transaction of all links that have ended. */
  #endedZxid = 0n;

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
      // Read before the request is sent: meanwhile, other links may see later transactions.
      const lastZxid = this.#lastZxid;
      const { reply } = await link.client.create(link.node, { mode: "ephemeral" });
      refuseFallen(lastZxid, reply.zxid);
      this.#share(link);
      link.client.on("replied", () => {
        if (this.#shared.has(link)) this.#retireSpare();
      });
      return link;
    } catch (error) {
      await this.end(link);
      throw error;
    }
  }

  /**
   * The link with a connection that has answered last: another one may be at a server that hangs. If there is none,
   * the spare link, which is opened unless it is only about to get another connection.
   */
  async any(): Promise<Link> {
    let latest: Link | null = null;
    for (const link of this.#shared) {
      if (link.client.state !== "connected") continue;
      if (latest === null || link.aliveAtMs > latest.aliveAtMs) latest = link;
    }
    const there = latest ?? this.#spare;
    if (there !== null) return there;
    this.#openingSpare ??= this.#openSpare();
    return this.#openingSpare;
  }

  /** Calls `use` with a link. If that is the spare one, it is not ended meanwhile unless it loses its connection. */
  async use<T>(use: (link: Link) => Promise<T>): Promise<T> {
    const link = await this.any();
    link.users++;
    try {
      return await use(link);
    } finally {
      link.users--;
      if (link.users === 0 && !this.#shared.has(link)) void this.end(link);
    }
  }

  /** As `use`; once more with another link if the first ends or gives no reply meanwhile. */
  async withAny<T>(use: (link: Link) => Promise<T>): Promise<T> {
    try {
      return await this.use(use);
    } catch (error) {
      if (!isInterruption(error)) throw error;
      return this.use(use);
    }
  }

  /** A link without claims, which `any` does not return: the caller ends it. */
  open(): Promise<Link> {
    return this.#connect(SPARE_TIMEOUT_MS);
  }

  async end(link: Link): Promise<void> {
    this.#forget(link);
    await link.close();
  }

  /** Ends all links at once, and the attempts to open one. No other is opened until `reopen`. */
  async close(): Promise<void> {
    this.#closing.abort(new ClosedError());
    this.#openingSpare = null;
    await Promise.all([...this.#links].map((link) => this.end(link)));
  }

  reopen(): void {
    if (this.#closing.signal.aborted) this.#closing = new AbortController();
  }

  async #connect(sessionTimeoutMs: number): Promise<Link> {
    const { signal } = this.#closing;
    const pingIntervalMs = sessionTimeoutMs / PINGS_PER_TIMEOUT;
    const client = await this.#open({ sessionTimeoutMs, pingIntervalMs, signal });
    const link = new Link(client, this.#layout, this.#watchesOf);
    client.on("lost", () => this.#forget(link));
    this.#links.add(link);
    try {
      // Nobody would end a session that begins after `close`.
      signal.throwIfAborted();
      await prepareRoot(client, this.#layout);
      return link;
    } catch (error) {
      await this.end(link);
      signal.throwIfAborted();
      throw error;
    }
  }

  #openSpare(): Promise<Link> {
    const opening = this.open()
      .then((link) => {
        this.#share(link);
        if (this.#shared.has(link)) this.#spare = link;
        return link;
      })
      .finally(() => {
        if (this.#openingSpare === opening) this.#openingSpare = null;
      });
    return opening;
  }

  /** The spare link gets no further requests, and ends behind those that it has. */
  #retireSpare(): void {
    const spare = this.#spare;
    if (spare === null) return;
    this.#spare = null;
    this.#shared.delete(spare);
    // Without a connection, its requests are better sent again through the link that has answered.
    if (spare.users === 0 || spare.client.state !== "connected") void this.end(spare);
  }

  /** From now on, `any` returns the link. It may have ended meanwhile. */
  #share(link: Link): void {
    if (this.#links.has(link)) this.#shared.add(link);
  }

  #forget(link: Link): void {
    this.#links.delete(link);
    this.#shared.delete(link);
    if (this.#spare === link) this.#spare = null;
    this.#endedZxid = highest(this.#endedZxid, link.client.lastZxid);
  }

  /** The highest transaction that any link has seen. */
  get #lastZxid(): bigint {
    let last = this.#endedZxid;
    for (const { client } of this.#links) last = highest(last, client.lastZxid);
    return last;
  }
}

const highest = (one: bigint, other: bigint): bigint => (one > other ? one : other);

/** The transaction is the token, so a claim made now would get a lower one than was given before. */
function refuseFallen(lastZxid: bigint, zxid: bigint): void {
  if (zxid > lastZxid) return;
  throw new StoreUnavailableError(
    `ZooKeeper's transactions fell from ${lastZxid} to ${zxid}: its data was wiped or restored ` +
      "from a backup, and tokens fall with it. Stop all holders, raise tokenOffset by at least " +
      `${lastZxid} in all of them, and start them again`,
    { retryable: false },
  );
}

const SPARE_TIMEOUT_MS = 10_000;
