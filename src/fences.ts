import { existsSync } from "node:fs";
import { InvalidArgumentError, UnsupportedError } from "./core/errors.js";
import type { FencedResource, FenceListOptions } from "./fence/shared/list.js";
import { kindOf, parseStoreUrl } from "./stores/registry.js";
import type { StoreUrl } from "./stores/url.js";

interface OpenedFence {
  list(options?: FenceListOptions): Promise<readonly FencedResource[]>;
  close(): unknown;
}

/**
 * Lists the resources that are fenced in the database behind a URL, where the fence keeps its numbers in the
 * place that it uses by default. It changes nothing. Rejects with InvalidArgumentError if the URL is wrong, with
 * UnsupportedError if the database has no fence, and with StoreUnavailableError if it can't be reached.
 */
export async function listFences(
  url: string,
  options?: FenceListOptions,
): Promise<readonly FencedResource[]> {
  const parsed = parseStoreUrl(url);
  const open = OPENERS[kindOf(parsed).schemes[0]];
  if (open === undefined) {
    throw new UnsupportedError(
      `a ${parsed.scheme}: URL names no database that keeps fences: name one of ${Object.keys(
        OPENERS,
      )
        .map((scheme) => `${scheme}:`)
        .join(", ")}`,
    );
  }
  const fence = await open(parsed);
  try {
    return await fence.list(options);
  } finally {
    await fence.close();
  }
}

/** By the first scheme of the store's kind; a store without a fence of its own has none. */
const OPENERS: Readonly<Record<string, (url: StoreUrl) => Promise<OpenedFence>>> = {
  sqlite: openSqliteFence,
  redis: openRedisFence,
  postgres: openPostgresFence,
  etcd: openEtcdFence,
  zookeeper: openZooKeeperFence,
};

async function openSqliteFence({ path }: StoreUrl): Promise<OpenedFence> {
  if (!existsSync(path)) throw new InvalidArgumentError(`there is no file ${JSON.stringify(path)}`);
  const [{ listTable }, { openSqlite }] = await Promise.all([
    import("./fence/sqlite.js"),
    import("./stores/sqlite/driver.js"),
  ]);
  const db = await openSqlite(path);
  return { list: async (options) => listTable(db, options), close: () => void db.close() };
}

async function openRedisFence(url: StoreUrl): Promise<OpenedFence> {
  const [{ redisFence }, { openRedisClient }, { connectionOf }] = await Promise.all([
    import("./fence/redis.js"),
    import("./stores/redis/open.js"),
    import("./stores/redis/client.js"),
  ]);
  const client = await openRedisClient(url);
  const fence = redisFence(client);
  return { list: (options) => fence.list(options), close: () => connectionOf(client).close() };
}

async function openPostgresFence(url: StoreUrl): Promise<OpenedFence> {
  const [{ postgresFence }, { openPool, schemaOf, toConnectError }] = await Promise.all([
    import("./fence/postgres.js"),
    import("./stores/postgres/open.js"),
  ]);
  const pool = await openPool(url);
  const fence = postgresFence(pool, { schema: schemaOf(url) });
  return {
    list: (options) =>
      fence.list(options).catch((error) => {
        throw toConnectError(error, url);
      }),
    close: () => pool.end(),
  };
}

async function openEtcdFence(url: StoreUrl): Promise<OpenedFence> {
  const [{ etcdFence }, { openEtcdClientOf }] = await Promise.all([
    import("./fence/etcd.js"),
    import("./stores/etcd/open.js"),
  ]);
  const client = await openEtcdClientOf(url);
  const fence = etcdFence(client);
  return { list: (options) => fence.list(options), close: () => client.close() };
}

async function openZooKeeperFence(url: StoreUrl): Promise<OpenedFence> {
  const [{ zookeeperFence }, { openClientOf }] = await Promise.all([
    import("./fence/zookeeper.js"),
    import("./stores/zookeeper/open.js"),
  ]);
  const client = await openClientOf(url);
  const fence = zookeeperFence(client);
  return { list: (options) => fence.list(options), close: () => client.close() };
}
