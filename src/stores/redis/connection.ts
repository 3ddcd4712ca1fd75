import type { ListenerPort, Subscription } from "../shared/listener.js";
import { addressOf } from "../url.js";
import type { ServerState } from "./errors.js";
import type { Script } from "./scripts.js";

/** The default port of a server. */
export const PORT = 6379;

/** The address of a server, as both client libraries have it in their options. */
export interface Address {
  readonly host?: string;
  readonly port?: number;
  readonly path?: string;
  readonly tls?: unknown;
}

export function describeAddress(
  { host, port = PORT, path, tls }: Address,
  defaultHost: string,
): string {
  return path ?? `${tls ? "rediss" : "redis"}://${addressOf(host ?? defaultHost, port)}`;
}

/** The operations of a client library that the store uses. */
export interface Connection extends ServerState, ListenerPort {
  /**
   * Runs a script; its reply is text, or a list of texts. `argsToLoad` replaces the arguments if the server
   * does not know the script yet, as after a restart.
   */
  run(
    script: Script,
    keys: readonly string[],
    args: readonly string[],
    argsToLoad?: () => readonly string[],
  ): Promise<unknown>;
  /** Reports an error that a script has caught: the client has not seen it, and may have to reconnect. */
  reportCaughtError(error: Error): void;
  /**
   * Counts like `losses`, plus the lost connections to single nodes of a cluster. If it has risen during a request,
   * ioredis may have sent the request twice.
   */
  readonly allLosses: number;
  /** The client adds this prefix to keys, but not to patterns. */
  readonly keyPrefix: string;
  /** Waits until this many replicas have received all writes of this connection; returns how many have. */
  wait(replicas: number, timeoutMs: number): Promise<number>;
  /** The server, or each primary of a cluster, for commands about itself. */
  servers(): Promise<readonly OneServer[]>;
  /** Lets the process exit while the connections are open. The timers of pending requests still keep it alive. */
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

interface Emitter {
  on(event: string, listener: (error?: unknown) => void): unknown;
  listenerCount(event: string): number;
}

/** Follows a client's connections by its events. */
export class ConnectionState {
  static readonly #all = new WeakMap<object, ConnectionState>();
  /** How often the connection has been lost. If the count is the same at two requests, one connection carried both. */
  losses = 0;
  /** How often a connection to a node of a cluster has been lost. */
  nodeLosses = 0;
  /** An attempt to connect is under way, and has no socket yet. */
  isConnecting = false;
  /** ioredis: the caller has selected another database than its options name, and may do so again. */
  hasSelected = false;
  /** The time since which there is no connection, and the last error code that the client has reported. */
  outage: { readonly sinceMs: number; readonly why: string | null } | null = null;
  readonly #onReconnect = new Set<() => void>();

  /** The state of a client. All stores on the client share it, and its listeners. */
  static of(client: object, lossEvents: readonly string[]): ConnectionState {
    let state = ConnectionState.#all.get(client);
    if (state === undefined) {
      state = new ConnectionState(client as Emitter, lossEvents);
      ConnectionState.#all.set(client, state);
    }
    return state;
  }

  private constructor(client: Emitter, lossEvents: readonly string[]) {
    for (const event of lossEvents) client.on(event, () => this.#lost());
    client.on("ready", () => this.#ready());
    // We listen only if the caller does: a listener of ours alone would hide errors that the client prints or
    // throws.
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

  onReconnect(reconnected: () => void): () => void {
    this.#onReconnect.add(reconnected);
    return () => void this.#onReconnect.delete(reconnected);
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
    for (const reconnected of [...this.#onReconnect]) reconnected();
  }
}

/** Returns a function that picks another node of a cluster at each call. */
export function roundRobin(): <T>(nodes: readonly T[]) => T {
  let turn = Math.floor(Math.random() * 1_000);
  return (nodes) => {
    if (nodes.length === 0) {
      throw new Error("the client knows no node of the cluster: is it connected?");
    }
    return nodes[turn++ % nodes.length]!;
  };
}

/** A node that has left its cluster answers pings, and receives none of the messages published there. */
export const whileMember = (subscription: Subscription, isMember: () => boolean): Subscription => ({
  ...subscription,
  async ping() {
    if (!isMember()) throw new Error("the node has left the cluster");
    return subscription.ping();
  },
});

/** Both client libraries report it by the message alone. */
export const isNoScript = (error: unknown): boolean =>
  error instanceof Error && error.message.includes("NOSCRIPT");

/** A demoted primary keeps its connections, while its address may lead to another server by now. */
export const isDemoted = (error: unknown): boolean =>
  error instanceof Error && error.message.includes("READONLY");

/** Clients that connect() has made: they reconnect when their server was demoted. */
export const reconnectsWhenDemoted = new WeakSet<object>();

/** Reads keys with values: a list of both in turn, a map or an object, as the client library has it. */
export function pairsOf(reply: unknown): [string, string][] {
  if (!Array.isArray(reply)) {
    const entries = reply instanceof Map ? [...reply] : Object.entries(reply as object);
    return entries.map(([key, value]) => [String(key), String(value)]);
  }
  return reply.flatMap((key, i): [string, string][] =>
    i % 2 === 0 ? [[String(key), String(reply[i + 1])]] : [],
  );
}
