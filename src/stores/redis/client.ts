import { InvalidArgumentError } from "../../core/errors.js";
import { show } from "../../core/validate.js";
import type { Connection } from "./connection.js";
import { type IoredisClient, ioredisConnection } from "./ioredis.js";
import { type NodeRedisClient, nodeRedisConnection } from "./node-redis.js";

/** A client of ioredis 5 or 6 (`Redis`, `Cluster`, Sentinel), of node-redis 4, 5 or 6, or alike. */
export type RedisClient = IoredisClient | NodeRedisClient;

/** `caller`: the function that the user has called, for its error. */
export function connectionOf(client: RedisClient, caller = "redisStore"): Connection {
  const unsuitable = describeUnsuitable(client);
  if (unsuitable !== null) {
    throw new InvalidArgumentError(
      `${caller}() can't use ${unsuitable}; pass a client of ioredis (Redis, Cluster) or node-redis ` +
        "(createClient, createCluster), or use connect() with a URL",
    );
  }
  return "evalsha" in client
    ? ioredisConnection(client)
    : nodeRedisConnection(client as NodeRedisClient);
}

/**
 * The reason why a client is unsuitable, or null. Its methods would show the problem only when they
 * are called, or never.
 */
function describeUnsuitable(client: unknown): string | null {
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
    return "a client of node-redis for sentinels, which does not report lost connections (a client of ioredis does)";
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
