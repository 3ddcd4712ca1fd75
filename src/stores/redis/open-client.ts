import { UnsupportedError } from "../../core/errors.js";
import { importInstalled } from "../shared/client-library.js";
import { within } from "../shared/timeout.js";
import type { RedisClient } from "./client.js";
import type { Target } from "./target.js";

const CONNECT_TIMEOUT_MS = 5_000;
const SOCKET_TIMEOUT_MS = CONNECT_TIMEOUT_MS + 1_000;
const RECONNECT_MS = { step: 50, most: 1_000 };

/** A client that is connecting. It retries after a failure until it is closed. */
export interface ConnectingClient {
  readonly client: RedisClient;
  /** Resolves when the server has answered; rejects if it can't be reached, or refuses the client. */
  readonly connected: Promise<unknown>;
  disconnect(): Promise<void>;
}

/** Tried in this order. */
const STARTERS: Record<string, (module: never, target: Target) => ConnectingClient> = {
  ioredis: startIoredis,
  redis: startNodeRedis,
};

/** Connects with whichever client library is installed. */
export async function openClient(target: Target): Promise<RedisClient> {
  const { client, connected, disconnect } = await startClient(target);
  try {
    await connected;
  } catch (error) {
    await disconnect();
    throw error;
  }
  return client;
}

/** Begins to connect with whichever client library is installed. */
export async function startClient(target: Target): Promise<ConnectingClient> {
  const { name, module } = await importInstalled(
    Object.keys(STARTERS),
    "Redis needs a client library: npm install ioredis (or redis). In a bundled program, connect() " +
      "can't find it: pass the store a client that you have made (docs/start.md)",
  );
  return STARTERS[name]!(module as never, target);
}

/** A server that is paused accepts the connection, and does not reply. */
export class NoReply extends Error {}

export const connectWithin = <T>(connecting: Promise<T>): Promise<T> =>
  within(
    CONNECT_TIMEOUT_MS,
    connecting,
    () => new NoReply(`it accepts connections, and gave no answer within ${CONNECT_TIMEOUT_MS} ms`),
  );

const reconnectDelayMs = (attempts: number): number =>
  Math.min(attempts * RECONNECT_MS.step, RECONNECT_MS.most);

/** The client queues nothing while disconnected, and sends nothing twice: the core repeats requests itself. */
function startIoredis(module: never, target: Target): ConnectingClient {
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
    // How long closing waits for a silent server.
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
  const connecting = client.connect().then(() => checkAlive(client));
  return {
    client: client as unknown as RedisClient,
    connected: connectWithin(connecting).catch((error: unknown) => {
      throw lastError ?? error;
    }),
    async disconnect() {
      client.disconnect();
    },
  };
}

/**
 * Any reply proves that the server is alive, unless it refuses the login: a server that can't save refuses even
 * PING.
 */
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

function startNodeRedis(module: never, target: Target): ConnectingClient {
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
  const failed = new Promise<never>((_, reject) => client.on("error", reject));
  return {
    client: client as unknown as RedisClient,
    // node-redis would retry for ever: the first failure is reported.
    connected: connectWithin(Promise.race([client.connect(), failed])),
    async disconnect() {
      try {
        await client.disconnect();
      } catch {
        // The client was never connected.
      }
    },
  };
}
