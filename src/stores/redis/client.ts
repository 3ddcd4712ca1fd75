import { InvalidArgumentError } from "../../core/errors.js";
import { show } from "../../core/validate.js";
import { type IoredisClient, ioredisConnection } from "./ioredis.js";
import { type NodeRedisClient, nodeRedisConnection } from "./node-redis.js";
import type { Script } from "./scripts.js";

/** A client of ioredis 5 or 6 (`Redis`, `Cluster`, Sentinel), of node-redis 4, 5 or 6, or alike. */
export type RedisClient = IoredisClient | NodeRedisClient;

/** What the store needs of either. */
export interface Connection {
  readonly cluster: boolean;
  /** How often its connection has been lost so far: what was sent and answered at the same count went by one. */
  readonly losses: number;
  /** Calls `back` when a connection that was lost has been replaced, until it is undone. */
  onBack(back: () => void): () => void;
  /** Runs a script; what it answers with is text, or a list of texts. */
  run(script: Script, keys: readonly string[], args: readonly string[]): Promise<unknown>;
  /** An error that a script has caught: the client has not seen it, and may want to connect anew. */
  caught(error: Error): void;
  /** Keys on all primaries that match, in no order, perhaps twice. */
  scan(pattern: string): Promise<readonly string[]>;
  /** Waits until so many replicas have all that this connection has written; how many they are. */
  wait(replicas: number, timeoutMs: number): Promise<number>;
  /**
   * A connection of its own that hears what is published to a channel; in a cluster, to one node of
   * it, each time to the next. Given up by the signal, it leaves nothing behind.
   */
  subscribe(channel: string, hear: Hearing, signal?: AbortSignal): Promise<Subscription>;
  /** The server, or each primary of a cluster, for commands about itself. */
  servers(): Promise<readonly OneServer[]>;
  close(): Promise<void>;
}

export interface OneServer {
  /** Its address in a cluster. */
  readonly where: string;
  command(...args: readonly string[]): Promise<unknown>;
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
  #isLost = false;
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
  }

  onBack(back: () => void): () => void {
    this.#backs.add(back);
    return () => void this.#backs.delete(back);
  }

  #lost(): void {
    this.losses++;
    this.#isLost = true;
  }

  #ready(): void {
    if (!this.#isLost) return;
    this.#isLost = false;
    for (const back of [...this.#backs]) back();
  }
}

interface Emitter {
  on(event: string, listener: () => void): unknown;
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
  const has = (method: string): boolean =>
    typeof (client as unknown as Record<string, unknown> | null)?.[method] === "function";
  if (has("evalsha")) return ioredisConnection(client as IoredisClient);
  if (has("evalSha")) return nodeRedisConnection(client as NodeRedisClient);
  throw new InvalidArgumentError(
    `the client is ${show(client)}; pass a client of ioredis or node-redis, or use connect("redis://…")`,
  );
}

/** Both client libraries tell it by the message alone. */
export const isNoScript = (error: unknown): boolean =>
  error instanceof Error && error.message.includes("NOSCRIPT");

/** Of a primary that was demoted and keeps its connections: its address may lead to another by now. */
export const isDemoted = (error: unknown): boolean =>
  error instanceof Error && error.message.includes("READONLY");

/** Clients of ours, which connect anew when their server was demoted. */
export const leavesDemoted = new WeakSet<object>();

/** ioredis puts what it has sent into its errors: grantIds, and the password. */
export function forgetCommand(error: unknown): void {
  if (error instanceof Error) delete (error as { command?: unknown }).command;
}
