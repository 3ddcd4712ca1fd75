import { setTimeout as sleep } from "node:timers/promises";
import { type Connection, type Hearing, isNoScript, type Subscription } from "./client.js";

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
}

interface Cluster {
  nodes(role: "master"): Node[];
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
  return {
    cluster,
    run: ({ sha, code }, keys, args) =>
      client.evalsha(sha, keys.length, ...keys, ...args).catch((error: unknown) => {
        if (!isNoScript(error)) throw error;
        return client.eval(code, keys.length, ...keys, ...args);
      }),
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
    subscribe: (channel, hear) => subscribe(client, channel, hear),
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
  /** Of a cluster: a connection beside those to its nodes, which may just be made anew. */
  readonly subscriber?: { getInstance?(): Ending | null };
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
  const inner = client.subscriber?.getInstance?.();
  const all = [client, ...(client.nodes?.("all") ?? []), ...(inner ? [inner] : [])];
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
  client: IoredisClient,
  channel: string,
  hear: Hearing,
): Promise<Subscription> {
  // It is not connected yet: what is asked of it has to wait, though the client's commands do not.
  const waits = { enableOfflineQueue: true };
  const overrides = client.isCluster ? [[], waits] : [waits];
  const subscriber = client.duplicate(...(overrides as never[])) as Subscriber;
  let first = true;
  // It connects again by itself; what is wrong shows in the commands.
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
  try {
    await subscriber.subscribe(channel);
  } catch (error) {
    subscriber.disconnect();
    throw error;
  }
  return {
    ping: () => subscriber.ping(),
    close: () => end(subscriber as unknown as Ending),
  };
}
