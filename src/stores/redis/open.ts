import { readFileSync } from "node:fs";
import {
  HoldfastError,
  InvalidArgumentError,
  StoreUnavailableError,
  UnsupportedError,
} from "../../core/errors.js";
import type { StoreUrl } from "../../core/url.js";
import { forgetCommand, leavesDemoted, type RedisClient } from "./client.js";
import { type RedisStore, redisStore } from "./index.js";

/** How a server, a cluster or a set of sentinels is reached: the same for both client libraries. */
interface Target {
  readonly hosts: readonly { readonly host: string; readonly port: number }[];
  readonly user: string;
  readonly password: string;
  readonly db: number;
  readonly tls: { readonly ca?: string; readonly servername?: string } | null;
  readonly cluster: boolean;
  /** The name of the primary that the sentinels watch. */
  readonly sentinel: string | null;
}

export const REDIS_OPTIONS = ["cluster", "sentinel", "ca", "servername", "replicas"] as const;

const PORT = 6379;
const SENTINEL_PORT = 26_379;
const CONNECT_MS = 5_000;
const SILENT_MS = CONNECT_MS + 1_000;
const RECONNECT_MS = { step: 50, most: 1_000 };

type Open = (target: Target) => Promise<RedisClient>;

/** Tried in this order. */
const CLIENTS: Record<string, (module: never, target: Target) => Promise<RedisClient>> = {
  ioredis: openIoredis,
  redis: openNodeRedis,
};

export async function openRedisStore(url: StoreUrl): Promise<RedisStore> {
  const replicas = numberOption(url, "replicas", 0, 16);
  if (replicas > 0 && url.options.has("cluster")) {
    throw new InvalidArgumentError(
      "replicas can't be waited for on a cluster: leave one of the two out",
    );
  }
  const client = await openRedisClient(url);
  if (!url.options.has("cluster")) leavesDemoted.add(client);
  return redisStore(client, { closeClient: true, replicas });
}

/** Opens a connection with whichever client library is installed. */
export async function openRedisClient(url: StoreUrl): Promise<RedisClient> {
  const target = targetOf(url);
  const open = await findClient();
  try {
    return await open(target);
  } catch (error) {
    if (HoldfastError.is(error)) throw error;
    forgetCommand(error);
    const where = target.hosts.map(({ host, port }) => `${host}:${port}`).join(", ");
    const why = error instanceof Error ? error.message : String(error);
    throw new StoreUnavailableError(`can't connect to Redis at ${where}: ${why}`, {
      cause: error,
      retryable: !/WRONGPASS|NOAUTH|NOPERM|invalid username/i.test(why),
    });
  }
}

function targetOf(url: StoreUrl): Target {
  const sentinel = url.options.get("sentinel") ?? null;
  const cluster = url.options.has("cluster");
  if (sentinel === "" || (cluster && url.options.get("cluster") !== "")) {
    throw new InvalidArgumentError(
      "write ?cluster without a value, and ?sentinel=NAME with the name of the primary",
    );
  }
  const port = sentinel === null ? PORT : SENTINEL_PORT;
  if (cluster && sentinel !== null) {
    throw new InvalidArgumentError("a redis: URL can have cluster or sentinel, not both");
  }
  if (url.hosts.length > 1 && !cluster && sentinel === null) {
    throw new InvalidArgumentError(
      "several hosts in a redis: URL are those of a cluster (?cluster) or of sentinels (?sentinel=NAME); " +
        "independent servers that vote are redlock:",
    );
  }
  const secure = url.scheme === "rediss";
  const ca = url.options.get("ca");
  const servername = url.options.get("servername");
  if (!secure && (ca !== undefined || servername !== undefined)) {
    throw new InvalidArgumentError(
      "ca and servername are for TLS: write rediss: instead of redis:",
    );
  }
  return {
    hosts: url.hosts.map((one) => ({ host: one.host, port: one.port ?? port })),
    user: url.user,
    password: url.password,
    db: databaseOf(url.path, cluster),
    tls: secure
      ? {
          ...(ca === undefined ? {} : { ca: readCa(ca) }),
          ...(servername === undefined ? {} : { servername }),
        }
      : null,
    cluster,
    sentinel,
  };
}

function databaseOf(path: string, cluster: boolean): number {
  if (path === "" || path === "/") return 0;
  const db = /^\/(\d{1,5})$/.exec(path)?.[1];
  if (db === undefined || (cluster && db !== "0")) {
    throw new InvalidArgumentError(
      cluster
        ? "a cluster has one database: leave the path of its URL out"
        : "the path of a redis: URL is the number of a database, as in redis://host:6379/2",
    );
  }
  return Number(db);
}

function numberOption(url: StoreUrl, option: string, min: number, max: number): number {
  const text = url.options.get(option);
  if (text === undefined) return min;
  const value = /^\d+$/.test(text) ? Number(text) : Number.NaN;
  if (value >= min && value <= max) return value;
  throw new InvalidArgumentError(
    `the option ${option} of a redis: URL must be a whole number from ${min} to ${max}`,
  );
}

function readCa(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    throw new InvalidArgumentError(`the option ca can't be read: ${(error as Error).message}`);
  }
}

async function findClient(): Promise<Open> {
  const errors: unknown[] = [];
  for (const [name, open] of Object.entries(CLIENTS)) {
    try {
      const module = await import(name);
      return (target) => open(module as never, target);
    } catch (error) {
      errors.push(error);
    }
  }
  throw new UnsupportedError(
    "redis: needs a client library: npm install ioredis (or redis)",
    new AggregateError(errors),
  );
}

/** Nothing is queued while there is no connection, and nothing is sent twice: the core asks again itself. */
async function openIoredis(module: never, target: Target): Promise<RedisClient> {
  const { Redis, Cluster } = module as unknown as {
    Redis: new (options: object) => Connectable;
    Cluster: new (nodes: object[], options: object) => Connectable;
  };
  const options = {
    username: target.user === "" ? undefined : target.user,
    password: target.password === "" ? undefined : target.password,
    tls: target.tls ?? undefined,
    enableOfflineQueue: false,
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: 0,
    // It asks for INFO, which a user may lack the right to, and prints so.
    enableReadyCheck: false,
    // So long a silent server is waited for when the connection is closed.
    disconnectTimeout: 200,
    // A connection that looks alive may be dead: whoever asks and hears nothing for so long makes another.
    socketTimeout: SILENT_MS,
    connectTimeout: CONNECT_MS,
    lazyConnect: true,
  };
  const retryStrategy = (times: number): number =>
    Math.min(times * RECONNECT_MS.step, RECONNECT_MS.most);
  const single = { db: target.db, retryStrategy };
  let client: Connectable;
  if (target.cluster) {
    const { lazyConnect, ...redisOptions } = options;
    client = new Cluster([...target.hosts], {
      redisOptions,
      clusterRetryStrategy: retryStrategy,
      enableOfflineQueue: false,
      lazyConnect,
    });
  } else if (target.sentinel !== null) {
    const { tls, ...rest } = options;
    client = new Redis({
      ...rest,
      ...single,
      sentinels: target.hosts,
      name: target.sentinel,
      ...(tls === undefined ? {} : { tls, sentinelTLS: tls, enableTLSForSentinelMode: true }),
    });
  } else {
    client = new Redis({ ...options, ...single, ...target.hosts[0] });
  }
  // Without a listener it would print; what is wrong shows in the commands.
  let trouble: unknown;
  client.on("error", (error) => {
    trouble = error;
  });
  let timer: NodeJS.Timeout | undefined;
  // A stopped server takes the connection, and says nothing.
  const silence = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no answer within ${CONNECT_MS} ms`)), CONNECT_MS);
  });
  try {
    await Promise.race([client.connect().then(() => isAlive(client)), silence]);
  } catch (error) {
    client.disconnect();
    throw trouble ?? error;
  } finally {
    clearTimeout(timer);
  }
  return client as unknown as RedisClient;
}

/** Any answer will do: a server that can't save its data refuses even this. Unless it is that we may not enter. */
async function isAlive(client: Connectable): Promise<void> {
  try {
    await client.ping?.();
  } catch (error) {
    const { name, message } = error as Error;
    if (name !== "ReplyError" || /NOAUTH|WRONGPASS/.test(message)) throw error;
  }
}

interface Connectable {
  on(event: "error", listener: (error: unknown) => void): unknown;
  connect(): Promise<unknown>;
  ping?(): Promise<unknown>;
  disconnect(): unknown;
}

async function openNodeRedis(module: never, target: Target): Promise<RedisClient> {
  const { createClient, createCluster } = module as unknown as {
    createClient(options: object): Connectable;
    createCluster(options: object): Connectable;
  };
  if (target.sentinel !== null) {
    throw new UnsupportedError("sentinels in a URL need ioredis: npm install ioredis");
  }
  const socket = {
    connectTimeout: CONNECT_MS,
    ...(target.tls === null ? {} : { tls: true, ...target.tls }),
  };
  const reconnectStrategy = (times: number): number =>
    Math.min(times * RECONNECT_MS.step, RECONNECT_MS.most);
  const common = {
    ...(target.user === "" ? {} : { username: target.user }),
    ...(target.password === "" ? {} : { password: target.password }),
    disableOfflineQueue: true,
  };
  const [first] = target.hosts;
  const client = target.cluster
    ? createCluster({
        rootNodes: target.hosts.map((host) => ({ socket: { ...host } })),
        defaults: { ...common, socket: { ...socket, reconnectStrategy } },
      })
    : createClient({
        ...common,
        database: target.db,
        socket: { ...first, ...socket, reconnectStrategy },
      });
  return connectOnce(client);
}

/** It would try for ever: the first connection is made within its time, or not at all. */
async function connectOnce(client: Connectable): Promise<RedisClient> {
  let timer: NodeJS.Timeout | undefined;
  const failed = new Promise<never>((_, reject) => {
    let trouble: unknown = new Error(`no answer within ${CONNECT_MS} ms`);
    client.on("error", (error) => {
      trouble = error;
      reject(error);
    });
    timer = setTimeout(() => reject(trouble), CONNECT_MS);
  });
  try {
    await Promise.race([client.connect(), failed]);
  } catch (error) {
    try {
      await client.disconnect();
    } catch {
      // It was never connected.
    }
    throw error;
  } finally {
    clearTimeout(timer);
  }
  return client as unknown as RedisClient;
}
