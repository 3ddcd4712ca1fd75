import { Cluster, Redis } from "ioredis";
import { createClient } from "redis";
import { onTestFinished } from "vitest";
import { type Claim, LOCK_LIMIT } from "../../src/core/store.js";
import { createLocks, type Locks, type LocksOptions } from "../../src/index.js";
import {
  type RedisStore,
  type RedisStoreOptions,
  redisStore,
} from "../../src/stores/redis/index.js";
import { keysOf } from "../../src/stores/redis/keys.js";
import type { RedisServer } from "../../src/verify/lab/redis.js";
import { until } from "../../src/verify/lab/until.js";

/** Silences errors that the test provokes: without a listener, ioredis prints them and node-redis throws them. */
export function quiet<C extends { on(event: "error", listener: () => void): unknown }>(
  client: C,
): C {
  client.on("error", () => {});
  return client;
}

/** A store on a connection of its own, by ioredis. */
export async function byIoredis(
  url: string,
  options: { db?: number } & RedisStoreOptions = {},
): Promise<RedisStore> {
  const { db = 0, ...rest } = options;
  const client = quiet(new Redis(url, { db, lazyConnect: true }));
  await client.connect();
  return redisStore(client, { closeClient: true, ...rest });
}

/** Each configuration costs node-redis tens of milliseconds of processor time; its duplicates cost nothing. */
const nodeRedisAt = (url: string): ReturnType<typeof createClient> => {
  const client = originals.get(url) ?? createClient({ url });
  originals.set(url, client);
  return client;
};
const originals = new Map<string, ReturnType<typeof createClient>>();

/** A store by node-redis. */
export async function byNodeRedis(
  url: string,
  options: { db?: number } & RedisStoreOptions = {},
): Promise<RedisStore> {
  const { db = 0, ...rest } = options;
  const client = quiet(nodeRedisAt(url).duplicate({ database: db }));
  await client.connect();
  return redisStore(client, { closeClient: true, ...rest });
}

/** A store by ioredis, with keys of its own in a cluster that others share. */
export async function byCluster(
  servers: readonly RedisServer[],
  keyPrefix: string,
): Promise<RedisStore> {
  const nodes = servers.map(({ address, port }) => ({ host: address, port }));
  const client = quiet(new Cluster(nodes, { keyPrefix, lazyConnect: true }));
  await client.connect();
  return redisStore(client, { closeClient: true });
}

/** Locks on a store that are closed with the test. */
export function locksOn(store: RedisStore, options: LocksOptions = {}): Locks {
  const locks = createLocks(store, options);
  onTestFinished(() => locks.close().catch(() => {}));
  return locks;
}

/** A connection that bypasses the store, closed with the test. */
export async function rawRedis(url: string, db = 0): Promise<Redis> {
  const client = quiet(new Redis(url, { db, lazyConnect: true }));
  await client.connect();
  onTestFinished(() => client.disconnect());
  return client;
}

let ids = 0;

/** A claim as the core would send it: exclusive, and good for longer than any test. */
export function claimOf(name: string, more: Partial<Claim> = {}): Claim {
  const grantId = more.grantId ?? `grant-${++ids}`;
  return {
    names: [name],
    grantId,
    seq: 1,
    permits: LOCK_LIMIT,
    limit: LOCK_LIMIT,
    ttlMs: 60_000,
    atLeastMs: 0,
    holder: `holder of ${grantId}`,
    queue: false,
    ...more,
  };
}

/** All keys of a database, each with the ms that it has left; -1: kept for ever. */
export async function keysAndTtls(client: Redis): Promise<Map<string, number>> {
  const left = new Map<string, number>();
  let cursor = "0";
  do {
    const [next, keys] = await client.scan(cursor, "COUNT", 1_000);
    for (const key of keys) left.set(key, await client.pttl(key));
    cursor = next;
  } while (cursor !== "0");
  return left;
}

/** How often the server has run each command since this was called; those inside scripts count too. */
export async function callsSince(
  server: RedisServer,
): Promise<(command: string) => Promise<number>> {
  const before = await server.calls();
  return async (command) => ((await server.calls()).get(command) ?? 0) - (before.get(command) ?? 0);
}

/**
 * Resolves when that many tickets of a name can be notified of a grant. A ticket is in the queue before
 * its process has subscribed; until then it has no channel, and is neither notified nor skipped.
 */
export async function canBeNotified(
  server: RedisServer,
  name: string,
  count: number,
): Promise<void> {
  await until(`${count} can be notified`, 10_000, async () => {
    const tickets = await server.cli("hvals", keysOf(name)[1]);
    return tickets.split("holdfast:wake:").length - 1 === count;
  });
}

/** Opens the subscription of a store, by a claim that has to wait. */
export async function listening(store: RedisStore): Promise<void> {
  const claims = [claimOf("listening"), claimOf("listening", { queue: true })];
  for (const claim of claims) await store.claim(claim, () => {});
  await store.release(claims.map(({ grantId }) => ({ name: "listening", grantId })));
}
