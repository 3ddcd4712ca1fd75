import { setTimeout as sleep } from "node:timers/promises";
import { unlessAborted } from "../../core/abort.js";
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

/** ioredis's own classes, as far as we use them: `Redis`, `Cluster`, and the nodes of a cluster, which are `Redis`. */
interface Client {
  readonly isCluster?: boolean;
  readonly status: string;
  readonly options?: Address & {
    readonly keyPrefix?: string;
    readonly db?: number;
    readonly sentinels?: unknown;
    readonly name?: string;
    reconnectOnError?(error: Error): unknown;
  };
  /** The database that the client believes its connection to be in; null before the first connection. */
  readonly condition?: { readonly select?: number } | null;
  readonly connector?: { stream?: { readonly destroyed?: boolean } | undefined };
  readonly stream?: { unref?(): unknown };
  readonly reconnectTimeout?: { unref?(): unknown } | null;
  /** Timers of a cluster after which commands are sent again; null: none. */
  readonly delayQueue?: { readonly timeouts: Readonly<Record<string, unknown>> };
  evalsha(sha: string, keys: number, ...args: string[]): Promise<unknown>;
  eval(code: string, keys: number, ...args: string[]): Promise<unknown>;
  call(...args: string[]): Promise<unknown>;
  wait(replicas: number, timeoutMs: number): Promise<number>;
  subscribe(channel: string): Promise<unknown>;
  ping(): Promise<unknown>;
  asking(...args: unknown[]): Promise<unknown>;
  on(event: "+node", listener: (node: Client) => void): unknown;
  on(event: string, listener: (...args: string[]) => void): unknown;
  once(event: "end", listener: () => void): unknown;
  duplicate(overrides?: {
    readonly connectionName?: string;
    readonly [option: string]: unknown;
  }): Client;
  disconnect(reconnect?: boolean): void;
  /** Only a cluster has nodes. */
  nodes?(role: "master" | "all"): Client[];
}

export function ioredisConnection(given: IoredisClient): Connection {
  const client = given as unknown as Client;
  const cluster = client.isCluster === true;
  const primaries = (): readonly Client[] => (cluster ? nodesOf(client, "master") : [client]);
  const db = cluster ? 0 : databaseOf(client);
  const state = ConnectionState.of(client, ["close"]);
  if (cluster) watchNodes(client, state);
  const inDatabase = (script: Script): Script =>
    !cluster && (db !== 0 || state.hasSelected) ? selectingScript(script, db) : script;
  const nextNode = roundRobin();
  const mustReconnect = (error: unknown): boolean =>
    reconnectsWhenDemoted.has(client) && isDemoted(error);
  const reconnect = (): void => {
    if (client.status === "ready") client.disconnect(true);
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
    get allLosses() {
      return state.losses + state.nodeLosses;
    },
    onReconnect: (reconnected) => state.onReconnect(reconnected),
    keyPrefix: client.options?.keyPrefix ?? "",
    run(script, keys, args, argsToLoad = () => args) {
      const { sha, code } = inDatabase(script);
      return client.evalsha(sha, keys.length, ...keys, ...args).catch((error: unknown) => {
        if (mustReconnect(error)) reconnect();
        if (!isNoScript(error)) throw error;
        return client.eval(code, keys.length, ...keys, ...argsToLoad());
      });
    },
    reportCaughtError(error) {
      if (mustReconnect(error) || client.options?.reconnectOnError?.(error)) reconnect();
    },
    wait: (replicas, timeoutMs) => client.wait(replicas, timeoutMs),
    subscribe: async (channel, events, signal) =>
      cluster
        ? subscribeAtNode(client, nextNode(primaries()), channel, events, signal)
        : subscribe(client.duplicate(SUBSCRIBER), channel, events, signal),
    servers: async () =>
      primaries().map((node) => ({
        where: `${node.options?.host}:${node.options?.port}`,
        command: (...args) => node.call(...args),
        run: (script, args) => node.call("EVAL", inDatabase(script).code, "0", ...args),
      })),
    unref() {
      for (const one of [client, ...nodesOf(client, "all")]) unref(one);
      if (cluster) client.on("+node", unref);
    },
    close: () => closeClient(client),
  };
}

function databaseOf({ options, condition }: Client): number {
  const db = options?.db ?? 0;
  if ((condition?.select ?? db) === db) return db;
  throw new InvalidArgumentError(
    "the client of ioredis was moved to another database by select(): pass one with the option db, " +
      "so that it is in that database after every reconnection",
  );
}

/** The nodes of a cluster; a single server has none. */
const nodesOf = (client: Client, role: "master" | "all"): readonly Client[] =>
  client.nodes?.(role) ?? [];

/** For each cluster, the connections by which it reads its slots. Only a duplicate of a node's client shows them. */
const slotReadersOf = new WeakMap<object, Set<Client>>();
/** ioredis names these connections so. */
const SLOT_READER = "(refresher)";

function watchNodes(cluster: Client, state: ConnectionState): void {
  if (slotReadersOf.has(cluster)) return;
  const readers = new Set<Client>();
  slotReadersOf.set(cluster, readers);
  const watch = (node: Client): void => {
    const { asking, duplicate } = node;
    node.on("close", () => void state.nodeLosses++);
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
          // Our listener runs before the cluster's own, which would disconnect the client once more.
          forgetClosedSocket(copy);
        });
      }
      return copy;
    };
  };
  for (const node of nodesOf(cluster, "all")) watch(node);
  cluster.on("+node", watch);
}

/** Unrefs the sockets of later connections too, and the pause before the next attempt to connect. */
function unref(client: Client): void {
  const unrefSocket = (): void => void client.stream?.unref?.();
  unrefSocket();
  client.on("connect", unrefSocket);
  client.on("reconnecting", () => void client.reconnectTimeout?.unref?.());
}

function whereOf({ isCluster, options = {} }: Client): string {
  if (isCluster === true) return "the Redis cluster";
  if (options.sentinels) return `the primary "${options.name}" that the sentinels name`;
  return describeAddress(options, "127.0.0.1");
}

const CLOSE_TIMEOUT_MS = 1_000;
const DELAY_POLL_MS = 5;

/** Resolves when the sockets are closed. QUIT is not sent: a server that is down or silent would not reply. */
async function closeClient(client: Client): Promise<void> {
  const untilMs = performance.now() + CLOSE_TIMEOUT_MS;
  const slotReaders = [...(slotReadersOf.get(client) ?? [])];
  const all = [client, ...nodesOf(client, "all"), ...slotReaders];
  const ended = all.map(
    (one) =>
      new Promise<void>((resolve) => {
        // Between two attempts to connect there is no socket, and ioredis emits no "end".
        if (!["connecting", "connect", "ready"].includes(one.status)) resolve();
        else one.once("end", () => resolve());
      }),
  );
  for (const one of all) forgetClosedSocket(one);
  // The cluster is closed first; otherwise it would read its slots from the next node.
  client.disconnect();
  for (const reader of slotReaders) reader.disconnect();
  await settlesWithin(CLOSE_TIMEOUT_MS, Promise.all(ended));
  // A command that waits to be sent again fails when its timer ends, at most 100 ms later.
  while (isDelaying(client) && performance.now() < untilMs) await sleep(DELAY_POLL_MS);
}

/** On disconnect(), ioredis would wait for a socket that is closed already, and that timer would keep the process alive. */
function forgetClosedSocket({ connector }: Client): void {
  if (connector?.stream?.destroyed) connector.stream = undefined;
}

const isDelaying = ({ delayQueue }: Client): boolean =>
  Object.values(delayQueue?.timeouts ?? {}).some((timer) => timer !== null);

/**
 * SUBSCRIBE has to wait until the duplicate is connected, even if the client's own commands do not wait. Only we
 * subscribe again: a promise that ioredis drops would end the process on close.
 */
const SUBSCRIBER = { enableOfflineQueue: true, autoResubscribe: false };

/** Messages reach every node of a cluster. A subscription ends with its connection, and the next goes to another node. */
async function subscribeAtNode(
  cluster: Client,
  node: Client,
  ...rest: Parameters<Connection["subscribe"]>
): Promise<Subscription> {
  const subscription = await subscribe(
    node.duplicate({ ...SUBSCRIBER, retryStrategy: null }),
    ...rest,
  );
  const isNode = ({ options }: Client): boolean =>
    options?.host === node.options?.host && options?.port === node.options?.port;
  return whileMember(subscription, () => nodesOf(cluster, "all").some(isNode));
}

async function subscribe(
  subscriber: Client,
  channel: string,
  events: SubscriptionEvents,
  signal?: AbortSignal,
): Promise<Subscription> {
  const close = (): Promise<void> => closeClient(subscriber);
  // Closed between two attempts to connect, ioredis emits no "end".
  const giveUp = (): Promise<void> => close().then(() => events.ended?.());
  let isFirst = true;
  unref(subscriber);
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
