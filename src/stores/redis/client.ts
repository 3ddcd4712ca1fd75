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
  /** Runs a script; what it answers with is text, or a list of texts. */
  run(script: Script, keys: readonly string[], args: readonly string[]): Promise<unknown>;
  /** Keys on all primaries that match, in no order, perhaps twice. */
  scan(pattern: string): Promise<readonly string[]>;
  /** Waits until so many replicas have all that this connection has written; how many they are. */
  wait(replicas: number, timeoutMs: number): Promise<number>;
  /** A connection of its own that hears what is published to a channel. */
  subscribe(channel: string, hear: Hearing): Promise<Subscription>;
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
}

export interface Subscription {
  ping(): Promise<unknown>;
  close(): Promise<void>;
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

/** ioredis puts what it has sent into its errors: grantIds, and the password. */
export function forgetCommand(error: unknown): void {
  if (error instanceof Error) delete (error as { command?: unknown }).command;
}
