import { setTimeout as sleep } from "node:timers/promises";
import { InvalidArgumentError } from "../../core/errors.js";
import type { Subscription, SubscriptionEvents } from "../shared/listener.js";
import { settlesWithin } from "../shared/timeout.js";
import {
  type Address,
  type Connection,
  ConnectionState,
  describeAddress,
  isDemoted,
  isNoScript,
  reconnectsWhenDemoted,
  roundRobin,
  unlessAborted,
  whileMember,
} from "./connection.js";
import { type Script, selectingScript } from "./scripts.js";

type Argument = string | number;

/** The part of ioredis that is used: `Redis`, or `Cluster`. */
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

/** The database that the client believes its connection to be in; null before the first connection. */
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
  if (cluster) watchNodes(client as unknown as WatchedCluster);
  const state = ConnectionState.of(client, ["close"]);
  const inDatabase = (script: Script): Script =>
    !cluster && (db !== 0 || state.hasSelected) ? selectingScript(script, db) : script;
  const nextNode = roundRobin();
  const redis = client as unknown as Reconnecting;
  const mustReconnect = (error: unknown): boolean =>
    reconnectsWhenDemoted.has(client) && isDemoted(error);
  const reconnect = (): void => {
    if (redis.status === "ready") redis.disconnect(true);
  };
  return {
    cluster,
    db,
    where: whereOf(client),
    get outage() {
      return state.outage;
    },
    get losses() {
      return state.losses;
    },
    onReconnect: (reconnected) => state.onReconnect(reconnected),
    keyPrefix: client.options?.keyPrefix ?? "",
    run(script, keys, args, argsToLoad = args) {
      const { sha, code } = inDatabase(script);
      return client.evalsha(sha, keys.length, ...keys, ...args).catch((error: unknown) => {
        if (mustReconnect(error)) reconnect();
        if (!isNoScript(error)) throw error;
        return client.eval(code, keys.length, ...keys, ...argsToLoad);
      });
    },
    reportCaughtError(error) {
      if (mustReconnect(error) || redis.options?.reconnectOnError?.(error)) reconnect();
    },
    wait: (replicas, timeoutMs) => nodes()[0]!.wait(replicas, timeoutMs),
    async subscribe(channel, events, signal) {
      // The duplicate is not connected yet: SUBSCRIBE has to wait for it, even if the client's own commands
      // do not wait. Only we subscribe again: a promise that ioredis drops would end the process on close.
      const options = { enableOfflineQueue: true, autoResubscribe: false };
      if (!cluster) {
        return subscribe(client.duplicate(options as never) as Subscriber, channel, events, signal);
      }
      // Messages reach every node. A subscription ends with its connection, and the next goes to another node.
      const node = nextNode(nodes());
      const subscriber = node.duplicate({ ...options, retryStrategy: null }) as Subscriber;
      const subscription = await subscribe(subscriber, channel, events, signal);
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
    close: () => closeClient(client as unknown as Ending),
  };
}

interface WatchedNode {
  asking(...args: unknown[]): Promise<unknown>;
  duplicate(overrides?: { readonly connectionName?: string }): Ending;
}

interface WatchedCluster {
  nodes(role: "all"): WatchedNode[];
  on(event: "+node", listener: (node: WatchedNode) => void): unknown;
}

/** For each cluster, the connections by which it reads its slots. Only a duplicate of a node's client shows them. */
const slotReadersOf = new WeakMap<object, Set<Ending>>();
/** ioredis names these connections so. */
const SLOT_READER = "(refresher)";

function watchNodes(client: WatchedCluster): void {
  if (slotReadersOf.has(client)) return;
  const readers = new Set<Ending>();
  slotReadersOf.set(client, readers);
  const watch = (node: WatchedNode): void => {
    const { asking, duplicate } = node;
    node.asking = (...args) => {
      const reply = asking.apply(node, args);
      // ioredis ignores this promise. If the connection ends before the reply, its rejection would end the process.
      reply.catch(() => {});
      return reply;
    };
    node.duplicate = (overrides) => {
      const copy = duplicate.call(node, overrides);
      if (overrides?.connectionName?.includes(SLOT_READER)) {
        readers.add(copy);
        copy.once("end", () => {
          readers.delete(copy);
          // Before the cluster learns of the end, and disconnects it once more.
          forgetClosedSocket(copy);
        });
      }
      return copy;
    };
  };
  for (const node of client.nodes("all")) watch(node);
  client.on("+node", watch);
}

interface Sockets {
  readonly stream?: { unref?(): unknown };
  readonly reconnectTimeout?: { unref?(): unknown } | null;
  on(event: string, listener: (node: Sockets) => void): unknown;
}

/** Unrefs the sockets of later connections too, and the pause before the next attempt to connect. */
function unref(client: Sockets): void {
  const unrefSocket = (): void => void client.stream?.unref?.();
  unrefSocket();
  client.on("connect", unrefSocket);
  client.on("reconnecting", () => void client.reconnectTimeout?.unref?.());
}

interface Sentinels {
  readonly sentinels?: unknown;
  readonly name?: string;
}

function whereOf(client: IoredisClient): string {
  if (client.isCluster === true) return "the Redis cluster";
  const options = (client.options ?? {}) as Address & Sentinels;
  if (options.sentinels) return `the primary "${options.name}" that the sentinels name`;
  return describeAddress(options, "127.0.0.1");
}

interface Ending {
  readonly status: string;
  readonly connector?: { stream?: { readonly destroyed?: boolean } | undefined };
  once(event: "end", listener: () => void): unknown;
  disconnect(): void;
  /** Only a cluster has nodes. */
  nodes?(role: "all"): readonly Ending[];
  /** Timers of a cluster after which commands are sent again; null: none. */
  readonly delayQueue?: { readonly timeouts: Readonly<Record<string, unknown>> };
}

const CLOSE_TIMEOUT_MS = 1_000;
const DELAY_POLL_MS = 5;

/** Resolves when the sockets are closed. QUIT is not sent: a server that is down or silent would not reply. */
async function closeClient(client: Ending): Promise<void> {
  const untilMs = performance.now() + CLOSE_TIMEOUT_MS;
  const slotReaders = [...(slotReadersOf.get(client) ?? [])];
  const all = [client, ...(client.nodes?.("all") ?? []), ...slotReaders];
  const ended = all.map(
    (one) =>
      new Promise<void>((resolve) => {
        // Between two attempts to connect there is no socket, and ioredis emits no "end".
        if (!["connecting", "connect", "ready"].includes(one.status)) resolve();
        else one.once("end", () => resolve());
      }),
  );
  for (const one of all) forgetClosedSocket(one);
  // The cluster first: otherwise it would read its slots from the next node.
  client.disconnect();
  for (const reader of slotReaders) reader.disconnect();
  await settlesWithin(CLOSE_TIMEOUT_MS, Promise.all(ended));
  // A command that waits to be sent again fails when its timer ends, at most 100 ms later.
  while (isDelaying(client) && performance.now() < untilMs) await sleep(DELAY_POLL_MS);
}

/** On disconnect(), ioredis would wait for a socket that is closed already, and that timer would keep the process alive. */
function forgetClosedSocket({ connector }: Ending): void {
  if (connector?.stream?.destroyed) connector.stream = undefined;
}

const isDelaying = ({ delayQueue }: Ending): boolean =>
  Object.values(delayQueue?.timeouts ?? {}).some((timer) => timer !== null);

async function subscribe(
  subscriber: Subscriber,
  channel: string,
  events: SubscriptionEvents,
  signal?: AbortSignal,
): Promise<Subscription> {
  const close = (): Promise<void> => closeClient(subscriber as unknown as Ending);
  // Closed between two attempts to connect, ioredis emits no "end".
  const giveUp = (): Promise<void> => close().then(() => events.ended?.());
  let isFirst = true;
  unref(subscriber as unknown as Sockets);
  // Errors show in the commands.
  subscriber.on("error", () => {});
  subscriber.on("message", (_channel, text) => events.message(text!));
  subscriber.on("ready", () => {
    // We subscribe again ourselves, so that the reply shows when it listens. A connection whose SUBSCRIBE is
    // refused answers pings and receives nothing: it is closed, so that the listener opens another.
    if (!isFirst) subscriber.subscribe(channel).then(() => events.resubscribed?.(), giveUp);
    isFirst = false;
  });
  subscriber.on("end", () => events.ended?.());
  try {
    await unlessAborted(subscriber.subscribe(channel), signal);
  } catch (error) {
    await close();
    throw error;
  }
  return { ping: () => subscriber.ping(), close };
}
