import { setTimeout as sleep } from "node:timers/promises";
import {
  type Connection,
  type Hearing,
  inTurn,
  isDemoted,
  isNoScript,
  leavesDemoted,
  type Subscription,
  unlessAborted,
  Watch,
  whileMember,
} from "./client.js";

type Argument = string | number;

/** As much of ioredis as is used: `Redis`, or `Cluster`. */
export interface IoredisClient {
  readonly isCluster?: boolean;
  readonly options?: { readonly keyPrefix?: string | undefined };
  evalsha(sha: string, keys: number, ...args: Argument[]): Promise<unknown>;
  eval(code: string, keys: number, ...args: Argument[]): Promise<unknown>;
  duplicate(...overrides: never[]): unknown;
  disconnect(): void;
}

interface Node {
  readonly options?: { readonly host?: string; readonly port?: number };
  call(...args: string[]): Promise<unknown>;
  scan(cursor: string, ...args: Argument[]): Promise<[string, string[]]>;
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

const SCAN_COUNT = 1_000;

export function ioredisConnection(client: IoredisClient): Connection {
  const cluster = client.isCluster === true;
  const nodes = (): Node[] =>
    cluster ? (client as unknown as Cluster).nodes("master") : [client as unknown as Node];
  const watch = Watch.of(client, ["close"]);
  const next = inTurn();
  const redis = client as unknown as Reconnecting;
  const mustLeave = (error: unknown): boolean => leavesDemoted.has(client) && isDemoted(error);
  const leave = (): void => {
    if (redis.status === "ready") redis.disconnect(true);
  };
  return {
    cluster,
    get losses() {
      return watch.losses;
    },
    onBack: (back) => watch.onBack(back),
    run: ({ sha, code }, keys, args) =>
      client.evalsha(sha, keys.length, ...keys, ...args).catch((error: unknown) => {
        if (mustLeave(error)) leave();
        if (!isNoScript(error)) throw error;
        return client.eval(code, keys.length, ...keys, ...args);
      }),
    caught(error) {
      if (mustLeave(error) || redis.options?.reconnectOnError?.(error)) leave();
    },
    async scan(pattern) {
      // ioredis puts its prefix before keys, but not before patterns.
      const prefix = client.options?.keyPrefix ?? "";
      const match = `${prefix.replaceAll(/[*?[\]\\]/g, "\\$&")}${pattern}`;
      const found: string[] = [];
      for (const node of nodes()) {
        let cursor = "0";
        do {
          const [next, keys] = await node.scan(cursor, "MATCH", match, "COUNT", SCAN_COUNT);
          found.push(...keys.map((key) => key.slice(prefix.length)));
          cursor = next;
        } while (cursor !== "0");
      }
      return found;
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
      })),
    close: () => end(client as unknown as Ending),
  };
}

interface Ending {
  readonly status: string;
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
  // What is wrong shows in the commands.
  subscriber.on("error", () => {});
  subscriber.on("message", (_channel, text) => hear.message(text!));
  subscriber.on("ready", () => {
    // Asked for again, so that the answer tells when it listens again.
    if (!first)
      subscriber.subscribe(channel).then(
        () => hear.back(),
        () => {},
      );
    first = false;
  });
  subscriber.on("end", () => hear.ended?.());
  try {
    await unlessAborted(subscriber.subscribe(channel), signal);
  } catch (error) {
    await close();
    throw error;
  }
  return { ping: () => subscriber.ping(), close };
}
