import { openStore } from "../../connect.js";
import type { Store } from "../../core/store.js";
import type { RedisClient } from "../../stores/redis/client.js";
import { parseStoreUrl } from "../../stores/registry.js";
import { importInstalled } from "../../stores/shared/client-library.js";
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

/** Where a worker's client of Redis connects. */
interface RedisPlace {
  readonly nodes: readonly { readonly host: string; readonly port: number }[];
  readonly database: number;
  readonly login: { readonly username?: string; readonly password?: string };
}

interface SharedClient {
  readonly client: RedisClient;
  /** Rejects if the first attempt to connect fails. */
  readonly connected: Promise<unknown>;
  close(): void;
}

type Starter = (module: never, place: RedisPlace, isCluster: boolean) => SharedClient;

/** Clients with the defaults of their library, which queue commands and send them again. */
const STARTERS: Readonly<Record<NonNullable<Connections["library"]>, Starter>> = {
  ioredis: startIoredis,
  redis: startNodeRedis,
};

function startIoredis(
  { Cluster, Redis }: typeof import("ioredis"),
  { nodes, database, login }: RedisPlace,
  isCluster: boolean,
): SharedClient {
  const client = isCluster
    ? new Cluster([...nodes], { redisOptions: login })
    : new Redis({ ...nodes[0]!, db: database, ...login });
  client.on("error", () => {});
  return { client, connected: Promise.resolve(), close: () => client.disconnect() };
}

function startNodeRedis(
  { createClient, createCluster }: typeof import("redis"),
  { nodes, database, login }: RedisPlace,
  isCluster: boolean,
): SharedClient {
  const client = isCluster
    ? createCluster({ rootNodes: nodes.map((socket) => ({ socket })), defaults: login })
    : createClient({ socket: nodes[0]!, database, ...login });
  client.on("error", () => {});
  return { client, connected: client.connect(), close: () => client.destroy() };
}

/** Starts clients of this library, or of the other one if only that is installed. */
async function redisStarter(
  library: Connections["library"] = "ioredis",
): Promise<(place: RedisPlace, isCluster?: boolean) => SharedClient> {
  const others = Object.keys(STARTERS).filter((one) => one !== library);
  const { name, module } = await importInstalled(
    [library, ...others],
    "the workers need a client library of Redis: npm install ioredis (or redis)",
  );
  const start = STARTERS[name as keyof typeof STARTERS];
  return (place, isCluster = false) => start(module as never, place, isCluster);
}

const redisPlaceOf = ({ hosts, path, user, password }: StoreUrl): RedisPlace => ({
  nodes: hosts.map(({ host, port }) => ({ host, port: port ?? REDIS_PORT })),
  database: Number(path.replace("/", "") || 0),
  login: user === "" ? {} : { username: user, password },
});

async function openRedis(url: StoreUrl, library: Connections["library"]): Promise<Connected> {
  const { redisStore } = await import("../../stores/redis/index.js");
  const start = await redisStarter(library);
  const { options } = url;
  const { client, connected, close } = start(redisPlaceOf(url), options.has("cluster"));
  await connected;
  const replicas = Number(options.get("replicas") ?? 0);
  return { store: sharing(redisStore(client, { replicas })), close: async () => close() };
}

/** A client for each node; those of nodes that are down connect later. */
async function openQuorum(url: StoreUrl, library: Connections["library"]): Promise<Connected> {
  const { quorumStore } = await import("../../stores/quorum/index.js");
  const start = await redisStarter(library);
  const place = redisPlaceOf(url);
  const all = place.nodes.map((node) => start({ ...place, nodes: [node] }));
  for (const { connected } of all) connected.catch(() => {});
  const maxTtl = url.options.get("maxTtl");
  const clients = all.map(({ client }) => client);
  return {
    store: sharing(quorumStore(clients, maxTtl === undefined ? {} : { maxTtl })),
    close: async () => {
      for (const { close } of all) close();
    },
  };
}

const sharing = (store: Store) => async (): Promise<Store> => store;

async function openPostgres(url: StoreUrl): Promise<Connected> {
  const { openPool, schemaOf } = await import("../../stores/postgres/open.js");
  const { postgresSessionStore, postgresStore } = await import("../../stores/postgres/index.js");
  const make = url.options.has("mode") ? postgresSessionStore : postgresStore;
  const pool = await openPool(url);
  return { store: sharing(make(pool, { schema: schemaOf(url) })), close: () => pool.end() };
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
