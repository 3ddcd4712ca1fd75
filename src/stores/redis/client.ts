import { InvalidArgumentError } from "../../core/errors.js";
import { show } from "../../core/validate.js";
import type { Place } from "./explain.js";
import { type IoredisClient, ioredisConnection } from "./ioredis.js";
import { type NodeRedisClient, nodeRedisConnection } from "./node-redis.js";
import type { Script } from "./scripts.js";

/** The port of a server where none is named. */
export const PORT = 6379;

/** A client of ioredis 5 or 6 (`Redis`, `Cluster`, Sentinel), of node-redis 4, 5 or 6, or alike. */
export type RedisClient = IoredisClient | NodeRedisClient;

/** What the store needs of either. */
export interface Connection extends Place {
  /** How often its connection has been lost so far: what was sent and answered at the same count went by one. */
  readonly losses: number;
  /** Calls `back` when a connection that was lost has been replaced, until it is undone. */
  onBack(back: () => void): () => void;
  /** Runs a script; what it answers with is text, or a list of texts. */
  run(script: Script, keys: readonly string[], args: readonly string[]): Promise<unknown>;
  /** An error that a script has caught: the client has not seen it, and may want to connect anew. */
  caught(error: Error): void;
  /** The client puts it before keys, and not before patterns. */
  readonly keyPrefix: string;
  /** Waits until so many replicas have all that this connection has written; how many they are. */
  wait(replicas: number, timeoutMs: number): Promise<number>;
  /**
   * A connection of its own that hears what is published to a channel; in a cluster, to one node of
   * it, each time to the next. Given up by the signal, it leaves nothing behind.
   */
  subscribe(channel: string, hear: Hearing, signal?: AbortSignal): Promise<Subscription>;
  /** The server, or each primary of a cluster, for commands about itself. */
  servers(): Promise<readonly OneServer[]>;
  /** From now on its connections keep no process alive. Requests that somebody waits for have timers that do. */
  unref(): void;
  close(): Promise<void>;
}

export interface OneServer {
  /** Its address in a cluster. */
  readonly where: string;
  command(...args: readonly string[]): Promise<unknown>;
  /** Runs a script that has no keys. */
  run(script: Script, args: readonly string[]): Promise<unknown>;
}

export interface Hearing {
  message(text: string): void;
  /** It was away, and is back: something may have been missed. */
  back(): void;
  /** It is gone, and does not come back. */
  ended?(): void;
}

export interface Subscription {
  ping(): Promise<unknown>;
  close(): Promise<void>;
}

/** A client's connections, one after the other. */
export class Watch {
  static readonly #all = new WeakMap<object, Watch>();
  losses = 0;
  /** An attempt to connect is under way, and has no socket yet. */
  isConnecting = false;
  /** ioredis: the caller has selected another database than its options name, and may do so again. */
  hasSelected = false;
  /** Since when there is no connection, and the last reason that the client has told. */
  outage: { readonly sinceMs: number; readonly why: string | null } | null = null;
  readonly #backs = new Set<() => void>();

  /** With one listener for each event, however many stores a client serves. */
  static of(client: object, lostBy: readonly string[]): Watch {
    let watch = Watch.#all.get(client);
    if (watch === undefined) {
      watch = new Watch(client as Emitter, lostBy);
      Watch.#all.set(client, watch);
    }
    return watch;
  }

  private constructor(client: Emitter, lostBy: readonly string[]) {
    for (const event of lostBy) client.on(event, () => this.#lost());
    client.on("ready", () => this.#ready());
    // A listener of ours alone would silence what the client prints or throws without any.
    if (client.listenerCount("error") > 0) client.on("error", (error) => this.#failed(error));
    client.on("reconnecting", () => {
      this.isConnecting = true;
    });
    client.on("connect", () => {
      this.isConnecting = false;
    });
    client.on("select", () => {
      this.hasSelected = true;
    });
  }

  onBack(back: () => void): () => void {
    this.#backs.add(back);
    return () => void this.#backs.delete(back);
  }

  #lost(): void {
    this.losses++;
    this.outage ??= { sinceMs: performance.now(), why: null };
  }

  #failed(error: unknown): void {
    this.isConnecting = false;
    const why = (error as NodeJS.ErrnoException | null)?.code;
    if (this.outage !== null && typeof why === "string") this.outage = { ...this.outage, why };
  }

  #ready(): void {
    if (this.outage === null) return;
    this.outage = null;
    for (const back of [...this.#backs]) back();
  }
}

interface Emitter {
  on(event: string, listener: (error?: unknown) => void): unknown;
  listenerCount(event: string): number;
}

/** Each time another of them. */
export function inTurn(): <T>(all: readonly T[]) => T {
  let turn = Math.floor(Math.random() * 1_000);
  return (all) => {
    if (all.length === 0) throw new Error("no node of the cluster is known");
    return all[turn++ % all.length]!;
  };
}

/** A node that has left its cluster still answers, and hears nothing of what is published there. */
export const whileMember = (subscription: Subscription, isMember: () => boolean): Subscription => ({
  ...subscription,
  async ping() {
    if (!isMember()) throw new Error("the node has left the cluster");
    return subscription.ping();
  },
});

/** Rejects as soon as it is given up. */
export function unlessAborted<T>(promise: Promise<T>, signal?: AbortSignal): Promise<T> {
  if (signal === undefined) return promise;
  return new Promise((resolve, reject) => {
    const abort = (): void => reject(signal.reason);
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}

export function connectionOf(client: RedisClient): Connection {
  const why = unsuitable(client);
  if (why !== null) {
    throw new InvalidArgumentError(
      `redisStore() can't use ${why}; pass a client of ioredis (Redis, Cluster) or node-redis ` +
        '(createClient, createCluster), or use connect("redis://…")',
    );
  }
  return "evalsha" in client
    ? ioredisConnection(client)
    : nodeRedisConnection(client as NodeRedisClient);
}

/** What a client's methods would reveal only when they are called, or never. */
function unsuitable(client: unknown): string | null {
  // Text is not repeated: it may be a URL with a password.
  if (typeof client === "string") return "a string";
  if (typeof client !== "object" || client === null) return show(client);
  const it = client as Record<string, unknown> & {
    options?: { legacyMode?: unknown };
    constructor?: { name?: unknown };
  };
  const has = (...methods: string[]): boolean =>
    methods.every((method) => typeof it[method] === "function");
  if (it.options?.legacyMode === true || it.constructor?.name === "RedisLegacyClient") {
    return "a client of node-redis with legacyMode or by legacy(), which answers to callbacks";
  }
  if (typeof it["totalClients"] === "number") {
    return "a pool of node-redis, whose commands go by many connections";
  }
  if (has("getSentinelNode")) {
    return "a client of node-redis for sentinels, which does not tell when its connection was lost; ioredis's does";
  }
  if (has("exec") && !has("duplicate")) return "a transaction or a pipeline";
  if (!(has("evalsha") || has("evalSha", "sendCommand")) || !has("eval", "duplicate", "on")) {
    return show(client);
  }
  if (it["mode"] === "subscriber" || it["mode"] === "monitor") {
    return `a client in ${it["mode"]} mode, which takes no other commands`;
  }
  return null;
}

/** Both client libraries tell it by the message alone. */
export const isNoScript = (error: unknown): boolean =>
  error instanceof Error && error.message.includes("NOSCRIPT");

/** Of a primary that was demoted and keeps its connections: its address may lead to another by now. */
export const isDemoted = (error: unknown): boolean =>
  error instanceof Error && error.message.includes("READONLY");

/** Clients of ours, which connect anew when their server was demoted. */
export const leavesDemoted = new WeakSet<object>();
