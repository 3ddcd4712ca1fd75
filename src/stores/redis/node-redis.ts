import { setImmediate as turn } from "node:timers/promises";
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
  readonly options?: { readonly socket?: object };
  duplicate(overrides: object): unknown;
}

interface Cluster {
  readonly masters: readonly { readonly address?: string }[];
  readonly replicas: readonly { readonly address?: string }[];
  nodeClient(node: unknown): Node | Promise<Node>;
}

interface Subscriber {
  readonly isOpen: boolean;
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

/** QUIT makes the server end the connection. One that waited for the next connection would end that, too. */
function leaving(client: Node): (error: unknown) => void {
  let isLeaving = false;
  return (error) => {
    if (isLeaving || !isDemoted(error) || !leavesDemoted.has(client)) return;
    isLeaving = true;
    const left = (): void => {
      isLeaving = false;
    };
    client.sendCommand(["QUIT"]).then(left, left);
  };
}

export function nodeRedisConnection(client: NodeRedisClient): Connection {
  const cluster = Array.isArray((client as unknown as Cluster).masters);
  const nodes = (): Promise<Node[]> => {
    const { masters } = client as unknown as Cluster;
    if (!cluster) return Promise.resolve([client as unknown as Node]);
    return Promise.all(masters.map((one) => (client as unknown as Cluster).nodeClient(one)));
  };
  const watch = Watch.of(client, ["reconnecting", "end"]);
  const next = inTurn();
  const caught = leaving(client as unknown as Node);
  return {
    cluster,
    get losses() {
      return watch.losses;
    },
    onBack: (back) => watch.onBack(back),
    async run({ sha, code }, keys, args) {
      const evaluation = { keys: [...keys], arguments: [...args] };
      try {
        return await client.evalSha(sha, evaluation);
      } catch (error) {
        caught(error);
        if (!isNoScript(error)) throw error;
        return await client.eval(code, evaluation);
      }
    },
    caught,
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
    async subscribe(channel, hear, signal) {
      if (!cluster) {
        return subscribe(client.duplicate() as Subscriber & Ending, channel, hear, signal);
      }
      // What is published reaches every node. It ends with its connection, and the next goes elsewhere.
      const all = client as unknown as Cluster;
      const master = next(all.masters);
      const node = await unlessAborted(Promise.resolve(all.nodeClient(master)), signal);
      const socket = { ...node.options?.socket, reconnectStrategy: false };
      const subscriber = node.duplicate({ socket }) as Subscriber & Ending;
      const subscription = await subscribe(subscriber, channel, hear, signal);
      return whileMember(subscription, () =>
        [...all.masters, ...all.replicas].some(({ address }) => address === master.address),
      );
    },
    servers: async () =>
      (await nodes()).map((node, i) => ({
        where: (client as unknown as Partial<Cluster>).masters?.[i]?.address ?? "",
        command: (...args) => node.sendCommand([...args]),
      })),
    close: () => end(client as unknown as Ending),
  };
}

async function subscribe(
  subscriber: Subscriber & Ending,
  channel: string,
  hear: Hearing,
  signal?: AbortSignal,
): Promise<Subscription> {
  const close = (): Promise<void> => end(subscriber);
  let first = true;
  // What is wrong shows in the commands.
  subscriber.on("error", () => {
    if (!subscriber.isOpen) hear.ended?.();
  });
  subscriber.on("ready", () => {
    // It listens again before it says that it is ready.
    if (!first) hear.back();
    first = false;
  });
  const listening = async (): Promise<void> => {
    await subscriber.connect();
    await subscriber.subscribe(channel, (text) => hear.message(text));
  };
  try {
    await unlessAborted(listening(), signal);
  } catch (error) {
    await close();
    throw error;
  }
  return { ping: () => subscriber.ping(), close };
}
