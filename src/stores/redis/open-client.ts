import { UnsupportedError } from "../../core/errors.js";
import { importInstalled } from "../shared/client-library.js";
import { within } from "../shared/timeout.js";
import type { RedisClient } from "./client.js";
import type { Target } from "./target.js";

const CONNECT_TIMEOUT_MS = 5_000;
const SOCKET_TIMEOUT_MS = CONNECT_TIMEOUT_MS + 1_000;
const RECONNECT_MS = { step: 50, most: 1_000 };

/** Tried in this order. */
const OPENERS: Record<string, (module: never, target: Target) => Promise<RedisClient>> = {
  ioredis: openIoredis,
  redis: openNodeRedis,
};

/** Connects with whichever client library is installed. */
export async function openClient(target: Target): Promise<RedisClient> {
  const { name, module } = await importInstalled(
    Object.keys(OPENERS),
    "redis: needs a client library: npm install ioredis (or redis). In a bundled program, connect() " +
      "can't find it: pass redisStore() a client that you have made (docs/start.md)",
  );
  return OPENERS[name]!(module as never, target);
}

/** The server accepts connections and does not reply. */
export class NoReply extends Error {}

/** A stopped server accepts the connection, and does not reply. */
export const connectWithin = <T>(connecting: Promise<T>): Promise<T> =>
  within(
    CONNECT_TIMEOUT_MS,
    connecting,
    () => new NoReply(`it accepts connections, and gave no answer within ${CONNECT_TIMEOUT_MS} ms`),
  );

const reconnectDelayMs = (attempts: number): number =>
  Math.min(attempts * RECONNECT_MS.step, RECONNECT_MS.most);

/** Nothing is queued without a connection, and nothing is sent twice: the core repeats requests itself. */
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
    // The check sends INFO, which the user may have no right to, and prints a warning then.
    enableReadyCheck: false,
    // The time that closing waits for a silent server.
    disconnectTimeout: 200,
    // A connection that looks alive may be dead: one that leaves a command without a reply is replaced.
    socketTimeout: SOCKET_TIMEOUT_MS,
    connectTimeout: CONNECT_TIMEOUT_MS,
    lazyConnect: true,
  };
  const single = { db: target.db, retryStrategy: reconnectDelayMs };
  let client: Connectable;
  if (target.cluster) {
    const { lazyConnect, ...redisOptions } = options;
    client = new Cluster([...target.hosts], {
      redisOptions,
      clusterRetryStrategy: reconnectDelayMs,
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
  // Without a listener ioredis would print errors; they show in the commands.
  let lastError: unknown;
  client.on("error", (error) => {
    lastError = error;
  });
  try {
    await connectWithin(client.connect().then(() => checkAlive(client)));
  } catch (error) {
    client.disconnect();
    throw lastError ?? error;
  }
  return client as unknown as RedisClient;
}

/** Any reply will do, except that we may not enter: a server that can't save its data refuses even PING. */
async function checkAlive(client: Connectable): Promise<void> {
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
    connectTimeout: CONNECT_TIMEOUT_MS,
    reconnectStrategy: reconnectDelayMs,
    ...(target.tls === null ? {} : { tls: true, ...target.tls }),
  };
  const common = {
    ...(target.user === "" ? {} : { username: target.user }),
    ...(target.password === "" ? {} : { password: target.password }),
    disableOfflineQueue: true,
  };
  const [first] = target.hosts;
  const client = target.cluster
    ? createCluster({
        rootNodes: target.hosts.map((host) => ({ socket: { ...host } })),
        defaults: { ...common, socket },
      })
    : createClient({
        ...common,
        database: target.db,
        socket: { ...first, ...socket },
      });
  return connectOnce(client);
}

/** node-redis would retry for ever: the first connection is made within its timeout, or not at all. */
async function connectOnce(client: Connectable): Promise<RedisClient> {
  const failed = new Promise<never>((_, reject) => client.on("error", reject));
  try {
    await connectWithin(Promise.race([client.connect(), failed]));
  } catch (error) {
    try {
      await client.disconnect();
    } catch {
      // The client was never connected.
    }
    throw error;
  }
  return client as unknown as RedisClient;
}
