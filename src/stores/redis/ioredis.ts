import { setTimeout as sleep } from "node:timers/promises";
import { InvalidArgumentError } from "../../core/errors.js";
import { addressOf } from "../../core/url.js";
import {
  type Connection,
  type Hearing,
  inTurn,
  isDemoted,
  isNoScript,
  leavesDemoted,
  PORT,
  type Subscription,
  unlessAborted,
  Watch,
  whileMember,
} from "./client.js";
import { type Script, selectingScript } from "./scripts.js";

type Argument = string | number;

/** As much of ioredis as is used: `Redis`, or `Cluster`. */
export interface IoredisClient {
  readonly isCluster?: boolean;
  readonly options?: { readonly keyPrefix?: string | undefined; readonly db?: number | undefined };
  evalsha(sha: string, keys: number, ...args: Argument[]): Promise<unknown>;
  eval(code: string, keys: number, ...args: Argument[]): Promise<unknown>;
  duplicate(...overrides: never[]): unknown;
  disconnect(): void;
}

interface Node {
  readonly options?: { readonly host?: string; readonly port?: number };
  call(...args: string[]): Promise<unknown>;
  wait(replicas: number, timeoutMs: number): Promise<number>;
  duplicate(overrides: object): unknown;
}

interface Cluster {
  nodes(role: "master" | "all"): Node[];
}

interface Reconnecting {
  readonly status: string;
  readonly options?: { reconnectOnError?(error: Error): unknown };
  disconnect(reconnect: boolean): void;
}

interface Subscriber {
  on(event: string, listener: (...args: string[]) => void): unknown;
  subscribe(channel: string): Promise<unknown>;
  ping(): Promise<unknown>;
  disconnect(): void;
}

/** What the client believes of its connection; none yet: null. */
interface Selecting {
  readonly condition?: { readonly select?: number } | null;
}

export function ioredisConnection(client: IoredisClient): Connection {
  const cluster = client.isCluster === true;
  const nodes = (): Node[] =>
    cluster ? (client as unknown as Cluster).nodes("master") : [client as unknown as Node];
  const db = client.options?.db ?? 0;
  if (!cluster && ((client as Selecting).condition?.select ?? db) !== db) {
    throw new InvalidArgumentError(
      "the client of ioredis was moved to another database by select(): pass one with the option db, " +
        "so that it is in that database after every reconnection",
    );
  }
  const watch = Watch.of(client, ["close"]);
  const inDatabase = (script: Script): Script =>
    !cluster && (db !== 0 || watch.hasSelected) ? selectingScript(script, db) : script;
  const next = inTurn();
  const redis = client as unknown as Reconnecting;
  const mustLeave = (error: unknown): boolean => leavesDemoted.has(client) && isDemoted(error);
  const leave = (): void => {
    if (redis.status === "ready") redis.disconnect(true);
  };
  return {
    cluster,
    db,
    where: whereOf(client),
    get outage() {
      return watch.outage;
    },
    get losses() {
      return watch.losses;
    },
    onBack: (back) => watch.onBack(back),
    keyPrefix: client.options?.keyPrefix ?? "",
    run(script, keys, args) {
      const { sha, code } = inDatabase(script);
      return client.evalsha(sha, keys.length, ...keys, ...args).catch((error: unknown) => {
        if (mustLeave(error)) leave();
        if (!isNoScript(error)) throw error;
        return client.eval(code, keys.length, ...keys, ...args);
      });
    },
    caught(error) {
      if (mustLeave(error) || redis.options?.reconnectOnError?.(error)) leave();
    },
    wait: (replicas, timeoutMs) => nodes()[0]!.wait(replicas, timeoutMs),
    async subscribe(channel, hear, signal) {
      // It is not connected yet: what is asked of it has to wait, though the client's commands do not.
      // And it is asked again by us alone: a promise that ioredis forgets would end the process when it is closed.
      const waits = { enableOfflineQueue: true, autoResubscribe: false };
      if (!cluster) {
        return subscribe(client.duplicate(waits as never) as Subscriber, channel, hear, signal);
      }
      // What is published reaches every node. It ends with its connection, and the next goes elsewhere.
      const node = next(nodes());
      const subscriber = node.duplicate({ ...waits, retryStrategy: null }) as Subscriber;
      const subscription = await subscribe(subscriber, channel, hear, signal);
      const isNode = ({ options }: Node): boolean =>
        options?.host === node.options?.host && options?.port === node.options?.port;
      return whileMember(subscription, () =>
        (client as unknown as Cluster).nodes("all").some(isNode),
      );
    },
    servers: async () =>
      nodes().map((node) => ({
        where: `${node.options?.host}:${node.options?.port}`,
        command: (...args) => node.call(...args),
        run: (script, args) => node.call("EVAL", inDatabase(script).code, "0", ...args),
      })),
    unref() {
      unref(client as unknown as Sockets);
      if (!cluster) return;
      const all = client as unknown as Cluster & Sockets;
      for (const node of all.nodes("all")) unref(node as unknown as Sockets);
      all.on("+node", unref);
    },
    close: () => end(client as unknown as Ending),
  };
}

interface Sockets {
  readonly stream?: { unref?(): unknown };
  readonly reconnectTimeout?: { unref?(): unknown } | null;
  on(event: string, listener: (node: Sockets) => void): unknown;
}

/** Of later connections too, and of the pause before the next attempt to connect. */
function unref(client: Sockets): void {
  const unrefSocket = (): void => void client.stream?.unref?.();
  unrefSocket();
  client.on("connect", unrefSocket);
  client.on("reconnecting", () => void client.reconnectTimeout?.unref?.());
}

interface Reached {
  readonly host?: string;
  readonly port?: number;
  readonly path?: string;
  readonly tls?: object;
  readonly sentinels?: readonly { readonly host?: string; readonly port?: number }[];
  readonly name?: string;
}

function whereOf(client: IoredisClient): string {
  if (client.isCluster === true) return "the Redis cluster";
  const {
    host = "127.0.0.1",
    port = PORT,
    path,
    tls,
    sentinels,
    name,
  } = (client.options ?? {}) as Reached;
  if (sentinels) return `the primary "${name}" that the sentinels name`;
  return path ?? `${tls ? "rediss" : "redis"}://${addressOf(host, port)}`;
}

interface Ending {
  readonly status: string;
  readonly connector?: { stream?: { readonly destroyed?: boolean } | undefined };
  once(event: "end", listener: () => void): unknown;
  disconnect(): void;
  /** Of a cluster. */
  nodes?(role: "all"): readonly Ending[];
  /** Of a cluster: it asks who has which slots, by a connection that is nowhere else to be found. */
  readonly isRefreshing?: boolean;
}

const ENDS_WITHIN_MS = 1_000;
const REFRESHES_MS = 5;

/**
 * Resolves when the socket is gone. Without QUIT: nothing is under way any more, and a server that is
 * down or silent must not be waited for.
 */
async function end(client: Ending): Promise<void> {
  const until = performance.now() + ENDS_WITHIN_MS;
  while (client.isRefreshing && performance.now() < until) await sleep(REFRESHES_MS);
  const all = [client, ...(client.nodes?.("all") ?? [])];
  const ended = all.map(
    (one) =>
      new Promise<void>((resolve) => {
        // Between two attempts to connect there is no socket, and nothing will be told.
        if (!["connecting", "connect", "ready"].includes(one.status)) resolve();
        else one.once("end", () => resolve());
      }),
  );
  // Between two attempts to connect, ioredis would wait two seconds for the old socket to close, which
  // is closed already, and that timer would keep the process alive.
  for (const { connector } of all) {
    if (connector?.stream?.destroyed) connector.stream = undefined;
  }
  client.disconnect();
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, ENDS_WITHIN_MS);
  });
  await Promise.race([Promise.all(ended), late]);
  clearTimeout(timer);
}

async function subscribe(
  subscriber: Subscriber,
  channel: string,
  hear: Hearing,
  signal?: AbortSignal,
): Promise<Subscription> {
  const close = (): Promise<void> => end(subscriber as unknown as Ending);
  let first = true;
  unref(subscriber as unknown as Sockets);
  // What is wrong shows in the commands.
  subscriber.on("error", () => {});
  subscriber.on("message", (_channel, text) => hear.message(text!));
  subscriber.on("ready", () => {
    // Asked for again, so that the answer tells when it listens again. A connection whose request is
    // refused answers pings and hears nothing: it is closed, so that the store opens another.
    if (!first) subscriber.subscribe(channel).then(() => hear.back(), giveUp);
    first = false;
  });
  subscriber.on("end", () => hear.ended?.());
  // Closed between two attempts to connect, ioredis emits no "end".
  const giveUp = (): Promise<void> => close().then(() => hear.ended?.());
  try {
    await unlessAborted(subscriber.subscribe(channel), signal);
  } catch (error) {
    await close();
    throw error;
  }
  return { ping: () => subscriber.ping(), close };
}
