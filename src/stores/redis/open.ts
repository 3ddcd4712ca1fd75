import { randomUUID } from "node:crypto";
import { reasonOf, safeCause } from "../../core/cause.js";
import {
  HoldfastError,
  InvalidArgumentError,
  StoreUnavailableError,
  UnsupportedError,
} from "../../core/errors.js";
import { addressOf, type StoreUrl } from "../../core/url.js";
import {
  certificateTrouble,
  TLS_OPTIONS,
  type TlsFiles,
  tlsFilesOf,
  tlsTrouble,
} from "../shared/tls.js";
import { type Connection, connectionOf, leavesDemoted, PORT, type RedisClient } from "./client.js";
import { explain, explainReply, textOf } from "./explain.js";
import { identify } from "./identify.js";
import { type RedisStore, redisStore } from "./index.js";
import { keyOf } from "./keys.js";
import { SCRIPTS } from "./scripts.js";

/** How a server, a cluster or a set of sentinels is reached: the same for both client libraries. */
interface Target {
  readonly hosts: readonly { readonly host: string; readonly port: number }[];
  readonly user: string;
  readonly password: string;
  readonly db: number;
  readonly tls: TlsFiles | null;
  readonly cluster: boolean;
  /** The name of the primary that the sentinels watch. */
  readonly sentinel: string | null;
}

export const REDIS_OPTIONS = ["cluster", "sentinel", "replicas", ...TLS_OPTIONS] as const;

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

/** Not before the server has shown that it grants locks. */
export async function openRedisStore(url: StoreUrl): Promise<RedisStore> {
  return openUntriedRedisStore(url, await openRedisClient(url, tryOut));
}

export function openUntriedRedisStore(url: StoreUrl, client: RedisClient): RedisStore {
  if (!url.options.has("cluster")) leavesDemoted.add(client);
  connectionOf(client).unref();
  return redisStore(client, { closeClient: true, replicas: replicasOf(url) });
}

export function replicasOf(url: StoreUrl): number {
  const replicas = numberOption(url, "replicas", 0, 16);
  if (replicas === 0 || !url.options.has("cluster")) return replicas;
  throw new InvalidArgumentError(
    "replicas can't be waited for on a cluster: leave one of the two out",
  );
}

/** Opens a connection with whichever client library is installed, to the database that the URL names. */
export async function openRedisClient(
  url: StoreUrl,
  check: (connection: Connection, target: Target) => Promise<void> = async () => {},
): Promise<RedisClient> {
  const target = targetOf(url);
  replicasOf(url);
  const open = await findClient();
  let client: RedisClient;
  try {
    client = await open(target);
  } catch (error) {
    throw HoldfastError.is(error) ? error : await unreachable(error, target, url);
  }
  const connection = connectionOf(client);
  try {
    await within(
      CONNECT_MS,
      selectable(connection).then(() => check(connection, target)),
    );
  } catch (error) {
    await connection.close();
    throw HoldfastError.is(error) ? error : await unreachable(error, target, url);
  }
  return client;
}

/** ioredis is ready when its own SELECT was refused, too. */
async function selectable(connection: Connection): Promise<void> {
  if (connection.db === 0) return;
  const [server] = await connection.servers();
  await answered(connection, () => server!.command("SELECT", String(connection.db)));
}

/** Runs what every claim needs. A server that can't write just now may do so later. */
async function tryOut(connection: Connection, { sentinel }: Target): Promise<void> {
  const keys = [keyOf(`holdfast-connect:${randomUUID()}`)];
  // A node of a cluster has some slots only, and refuses keys in different ones.
  if (!connection.cluster) keys.push(keyOf(`holdfast-connect:${randomUUID()}`));
  const isReplica = (error: HoldfastError): boolean =>
    sentinel === null && !connection.cluster && error.message.includes("READONLY");
  await answered(connection, () => connection.run(SCRIPTS.probe, keys, []), isReplica);
}

/** Rejects if the server refuses for good, or as `also` says. */
async function answered(
  connection: Connection,
  ask: () => Promise<unknown>,
  also: (error: HoldfastError) => boolean = () => false,
): Promise<void> {
  try {
    await ask();
  } catch (error) {
    const explained = explain(error, connection);
    if (!HoldfastError.is(explained)) throw explained;
    if (explained.retryable && !also(explained)) return;
    const { cause } = explained;
    const message = (await sentinelAt(connection, cause)) ?? explained.message;
    throw new StoreUnavailableError(message, { cause, retryable: false });
  }
}

async function sentinelAt(connection: Connection, cause: unknown): Promise<string | null> {
  if (!/unknown command/i.test(reasonOf(cause))) return null;
  const [server] = await connection.servers();
  const role = await server!.command("ROLE").catch(() => null);
  if (!Array.isArray(role) || String(role[0]) !== "sentinel") return null;
  const names = (role[1] as unknown[]).map(String);
  const known = names.length === 0 ? "" : `; it watches ${names.join(", ")}`;
  return `${connection.where} is a sentinel, which grants no locks: add ?sentinel=NAME to the URL${known}`;
}

/** With what is known of the reason, in words; the client library's own are in `cause`. */
async function unreachable(
  error: unknown,
  target: Target,
  url: StoreUrl,
): Promise<StoreUnavailableError> {
  const { hosts, db, cluster, sentinel, tls } = target;
  const addresses = hosts.map(({ host, port }) => addressOf(host, port)).join(", ");
  const where = `${url.scheme}://${addresses}`;
  const replied = explainReply(error, { where, db, cluster, outage: null });
  const isProtocol = /does not speak/.test(replied?.message ?? "");
  if (replied !== null && !isProtocol) return replied as StoreUnavailableError;
  const text = textOf(error);
  const failed = (why: string, retryable: boolean): StoreUnavailableError =>
    new StoreUnavailableError(`can't connect to Redis at ${addresses}: ${why}`, {
      cause: safeCause(error),
      retryable,
    });
  const wrong = tls === null ? undefined : tlsTrouble(text, url);
  if (wrong !== undefined) return failed(wrong, false);
  if (/ECONNREFUSED/.test(text)) return failed("nobody listens there (ECONNREFUSED)", true);
  const unknown = /ENOTFOUND|EAI_AGAIN/.exec(text)?.[0];
  if (unknown !== undefined) return failed(`the host's name is not known (${unknown})`, true);
  if (sentinel !== null) {
    const name = JSON.stringify(sentinel);
    return failed(
      `no sentinel there answers with the address of a primary ${name} that can be reached`,
      true,
    );
  }
  const { host, port } = hosts[0]!;
  const answers = await identify(host, port);
  switch (answers) {
    case "http":
      return failed("an HTTP server answers there: check host and port", false);
    case "redis":
      if (tls !== null) {
        return failed(
          "it answers without TLS: write redis: instead of rediss:, or its TLS port",
          false,
        );
      }
      break;
    case "TLS":
    case "closed TLS":
      if (tls === null) return failed("it expects TLS: write rediss: instead of redis:", false);
      // What TLS says of a missing certificate may be lost when the server ends the connection.
      if (answers === "closed TLS") return failed(certificateTrouble(url), false);
      break;
    default:
      if (replied !== null) return replied as StoreUnavailableError;
  }
  // A server's own words begin with a code.
  if (/^-?[A-Z]{2,} /.test(text)) return failed(`it answers ${JSON.stringify(text)}`, true);
  const code = (error as { code?: unknown } | null)?.code;
  const why = typeof code === "string" ? ` (${code})` : "";
  return failed(
    error instanceof NoAnswer
      ? error.message
      : `the connection was closed before Redis answered${why}: is it a Redis server?`,
    true,
  );
}

class NoAnswer extends Error {}

async function within<T>(ms: number, answering: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  // A stopped server takes the connection, and says nothing.
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => reject(new NoAnswer(`it accepts connections, and gave no answer within ${ms} ms`)),
      ms,
    );
  });
  try {
    return await Promise.race([answering, late]);
  } finally {
    clearTimeout(timer);
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
  const forTls = TLS_OPTIONS.filter((name) => url.options.has(name));
  if (!secure && forTls.length > 0) {
    throw new InvalidArgumentError(
      `what a redis: URL says of ${forTls.join(" and ")} is for TLS: write rediss: instead of redis:`,
    );
  }
  return {
    hosts: url.hosts.map((one) => ({ host: one.host, port: one.port ?? port })),
    user: url.user,
    password: url.password,
    db: databaseOf(url.path, cluster),
    tls: secure ? tlsFilesOf(url) : null,
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
    "redis: needs a client library: npm install ioredis (or redis). In a bundled program, connect() " +
      "can't find it: pass redisStore() a client that you have made (docs/start.md)",
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
  try {
    await within(
      CONNECT_MS,
      client.connect().then(() => isAlive(client)),
    );
  } catch (error) {
    client.disconnect();
    throw trouble ?? error;
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
  const failed = new Promise<never>((_, reject) => client.on("error", reject));
  try {
    await within(CONNECT_MS, Promise.race([client.connect(), failed]));
  } catch (error) {
    try {
      await client.disconnect();
    } catch {
      // It was never connected.
    }
    throw error;
  }
  return client as unknown as RedisClient;
}
