import { setImmediate as turn } from "node:timers/promises";
import { type Connection, type Hearing, isNoScript, type Subscription } from "./client.js";

interface Evaluation {
  keys: string[];
  arguments: string[];
}

/** As much of node-redis as is used: a client, or a cluster. */
export interface NodeRedisClient {
  evalSha(sha: string, evaluation: Evaluation): Promise<unknown>;
  eval(code: string, evaluation: Evaluation): Promise<unknown>;
  duplicate(): unknown;
}

interface Node {
  /** The cursor is a number in version 4 and text since. */
  scan(cursor: never, options: object): Promise<{ cursor: number | string; keys: string[] }>;
  wait(replicas: number, timeoutMs: number): Promise<number>;
  sendCommand(args: string[]): Promise<unknown>;
}

interface Cluster {
  readonly masters: readonly { readonly address?: string }[];
  nodeClient(node: unknown): Node | Promise<Node>;
}

interface Subscriber {
  on(event: string, listener: () => void): unknown;
  connect(): Promise<unknown>;
  subscribe(channel: string, listener: (text: string) => void): Promise<unknown>;
  ping(): Promise<unknown>;
}

/** Version 4 has no destroy, and its disconnect is a promise. */
interface Ending {
  destroy?(): void;
  disconnect?(): Promise<unknown>;
}

/** Nothing is under way any more; and a server that is down or silent must not be waited for. */
async function end(client: Ending): Promise<void> {
  try {
    if (client.destroy !== undefined) client.destroy();
    else await client.disconnect?.();
  } catch {
    // It was closed already.
  }
  // The socket is gone in the next turn.
  await turn();
}

const SCAN_COUNT = 1_000;

export function nodeRedisConnection(client: NodeRedisClient): Connection {
  const cluster = Array.isArray((client as unknown as Cluster).masters);
  const nodes = (): Promise<Node[]> => {
    const { masters } = client as unknown as Cluster;
    if (!cluster) return Promise.resolve([client as unknown as Node]);
    return Promise.all(masters.map((one) => (client as unknown as Cluster).nodeClient(one)));
  };
  return {
    cluster,
    async run({ sha, code }, keys, args) {
      const evaluation = { keys: [...keys], arguments: [...args] };
      try {
        return await client.evalSha(sha, evaluation);
      } catch (error) {
        if (!isNoScript(error)) throw error;
        return await client.eval(code, evaluation);
      }
    },
    async scan(pattern) {
      const found: string[] = [];
      for (const node of await nodes()) {
        let cursor: number | string = "0";
        do {
          const page = await node.scan(cursor as never, { MATCH: pattern, COUNT: SCAN_COUNT });
          found.push(...page.keys);
          cursor = page.cursor;
        } while (String(cursor) !== "0");
      }
      return found;
    },
    wait: async (replicas, timeoutMs) => (await nodes())[0]!.wait(replicas, timeoutMs),
    subscribe: (channel, hear) => subscribe(client, channel, hear),
    servers: async () =>
      (await nodes()).map((node, i) => ({
        where: (client as unknown as Partial<Cluster>).masters?.[i]?.address ?? "",
        command: (...args) => node.sendCommand([...args]),
      })),
    close: () => end(client as unknown as Ending),
  };
}

async function subscribe(
  client: NodeRedisClient,
  channel: string,
  hear: Hearing,
): Promise<Subscription> {
  const subscriber = client.duplicate() as Subscriber & Ending;
  const close = (): Promise<void> => end(subscriber);
  let first = true;
  // It connects again by itself; what is wrong shows in the commands.
  subscriber.on("error", () => {});
  subscriber.on("ready", () => {
    // It listens again before it says that it is ready.
    if (!first) hear.back();
    first = false;
  });
  try {
    await subscriber.connect();
    await subscriber.subscribe(channel, (text) => hear.message(text));
  } catch (error) {
    await close();
    throw error;
  }
  return { ping: () => subscriber.ping(), close };
}
