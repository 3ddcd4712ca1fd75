import { openStore } from "../../connect.js";
import type { Store } from "../../core/store.js";
import { parseStoreUrl } from "../../stores/registry.js";
import type { StoreUrl } from "../../stores/url.js";
import type { Connections } from "./protocol.js";

const REDIS_PORT = 6379;

/** A client of the store, as an application opens it. */
export interface Connected {
  /** A store for a further `Locks` on the same client, or on a new client if none is shared. */
  store(): Promise<Store>;
  /** Closes a shared client, because the `Locks` that use it do not. */
  close(): Promise<void>;
}

/** Connects as `connect` does, or shares one client among several `Locks` as an application would. */
export async function openConnection({
  url,
  locks,
  library,
  lazy,
}: Connections & { readonly url: string }): Promise<Connected> {
  if (locks === 1 && library === undefined) {
    return { store: () => openStore(url, lazy), close: async () => {} };
  }
  const parsed = parseStoreUrl(url);
  switch (parsed.scheme) {
    case "redis":
      return openRedis(parsed, library);
    case "redlock":
      return openQuorum(parsed, library);
    case "postgres":
      return openPostgres(parsed);
    case "etcd":
      return openEtcd(parsed);
    case "zookeeper":
      return openZooKeeper(parsed);
    case "sqlite":
      return openSqliteFile(parsed.path);
    default:
      throw new Error(`a worker can't share a client of ${parsed.scheme}:`);
  }
}

/** A client with the defaults of its library, which queues commands and sends them again. */
async function openRedis(
  { hosts, path, options, user, password }: StoreUrl,
  library: Connections["library"],
): Promise<Connected> {
  const { redisStore } = await import("../../stores/redis/index.js");
  const nodes = hosts.map(({ host, port }) => ({ host, port: port ?? REDIS_PORT }));
  const [node] = nodes;
  const db = Number(path.replace("/", "") || 0);
  const login = user === "" ? {} : { username: user, password };
  const replicas = Number(options.get("replicas") ?? 0);
  if (library === "redis") {
    const { createClient } = await import("redis");
    const client = createClient({
      socket: { host: node!.host, port: node!.port },
      database: db,
      ...login,
    });
    client.on("error", () => {});
    await client.connect();
    return {
      store: sharing(redisStore(client, { replicas })),
      close: async () => client.destroy(),
    };
  }
  const { Cluster, Redis } = await import("ioredis");
  const client = options.has("cluster")
    ? new Cluster(nodes, { redisOptions: login })
    : new Redis({ ...node!, db, ...login });
  client.on("error", () => {});
  return {
    store: sharing(redisStore(client, { replicas })),
    close: async () => client.disconnect(),
  };
}

/** A client for each node; those of nodes that are down connect later. */
async function openQuorum(
  { hosts, path, options, user, password }: StoreUrl,
  library: Connections["library"],
): Promise<Connected> {
  const { quorumStore } = await import("../../stores/quorum/index.js");
  const nodes = hosts.map(({ host, port }) => ({ host, port: port ?? REDIS_PORT }));
  const db = Number(path.replace("/", "") || 0);
  const login = user === "" ? {} : { username: user, password };
  const maxTtl = options.get("maxTtl");
  const more = maxTtl === undefined ? {} : { maxTtl };
  if (library === "redis") {
    const { createClient } = await import("redis");
    const clients = nodes.map((socket) => {
      const client = createClient({ socket, database: db, ...login });
      client.on("error", () => {});
      client.connect().catch(() => {});
      return client;
    });
    return {
      store: sharing(quorumStore(clients, more)),
      close: async () => {
        for (const client of clients) client.destroy();
      },
    };
  }
  const { Redis } = await import("ioredis");
  const clients = nodes.map((node) => new Redis({ ...node, db, ...login }).on("error", () => {}));
  return {
    store: sharing(quorumStore(clients, more)),
    close: async () => {
      for (const client of clients) client.disconnect();
    },
  };
}

const sharing = (store: Store) => async (): Promise<Store> => store;

async function openPostgres(url: StoreUrl): Promise<Connected> {
  const { openPool } = await import("../../stores/postgres/open.js");
  const { postgresStore } = await import("../../stores/postgres/index.js");
  const pool = await openPool(url);
  return { store: sharing(postgresStore(pool)), close: () => pool.end() };
}

async function openEtcd(url: StoreUrl): Promise<Connected> {
  const { openEtcdClientOf } = await import("../../stores/etcd/open.js");
  const { etcdStore } = await import("../../stores/etcd/index.js");
  const client = await openEtcdClientOf(url);
  return { store: sharing(etcdStore(client)), close: async () => client.close() };
}

/** The store opens its sessions itself, and ends them when the last of its `Locks` closes. */
async function openZooKeeper(url: StoreUrl): Promise<Connected> {
  const { storeOptions } = await import("../../stores/zookeeper/open.js");
  const { zookeeperStore } = await import("../../stores/zookeeper/index.js");
  return { store: sharing(zookeeperStore(storeOptions(url))), close: async () => {} };
}

async function openSqliteFile(path: string): Promise<Connected> {
  const { openSqliteStore } = await import("../../stores/sqlite/open.js");
  // Creates the file and its tables if they are missing.
  await (await openSqliteStore(path)).close();
  const { openSqlite } = await import("../../stores/sqlite/driver.js");
  const { sqliteStore } = await import("../../stores/sqlite/index.js");
  const { retryWhileBusy } = await import("../../stores/sqlite/retry.js");
  const db = await openSqlite(path);
  db.exec("PRAGMA busy_timeout = 0");
  const shared = await retryWhileBusy(() => sqliteStore(db));
  return { store: sharing(shared), close: async () => void db.close() };
}
