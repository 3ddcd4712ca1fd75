import { setImmediate as turn } from "node:timers/promises";
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
  wait(replicas: number, timeoutMs: number): Promise<number>;
  sendCommand(args: string[]): Promise<unknown>;
  readonly options?: {
    readonly socket?: object;
    readonly database?: number;
    /** Since version 6. */
    readonly keyPrefix?: unknown;
  };
  duplicate(overrides: object): unknown;
}

interface Unrefable {
  unref?(): void;
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
  on(event: string, listener: () => void): unknown;
  destroy?(): void;
  disconnect?(): Promise<unknown>;
}

const ENDS_WITHIN_MS = 1_000;

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

/**
 * While a client connects, destroy() would lose sight of the socket: the client goes on,
 * connected, and can't be closed any more. So it is ended as soon as the attempt has come to something;
 * an attempt that takes long is not waited for, and ends by its own timeout.
 */
async function endConnecting(client: Ending, watch: Watch): Promise<void> {
  if (!watch.isConnecting) return end(client);
  const settled = new Promise<void>((resolve) => {
    client.on("connect", resolve);
    client.on("error", resolve);
  });
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, ENDS_WITHIN_MS);
  });
  await Promise.race([settled.then(() => end(client)), late]);
  clearTimeout(timer);
}

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
  const db = cluster ? 0 : ((client as unknown as Node).options?.database ?? 0);
  const inDatabase = (script: Script): Script => (db === 0 ? script : selectingScript(script, db));
  return {
    cluster,
    db,
    where: whereOf(client, cluster),
    get outage() {
      return watch.outage;
    },
    get losses() {
      return watch.losses;
    },
    onBack: (back) => watch.onBack(back),
    keyPrefix: String((client as unknown as Node).options?.keyPrefix ?? ""),
    async run(script, keys, args) {
      const { sha, code } = inDatabase(script);
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
        run: (script, args) => node.sendCommand(["EVAL", inDatabase(script).code, "0", ...args]),
      })),
    unref() {
      // Of a cluster: the nodes that it knows by now.
      void nodes().then((all) => {
        for (const node of all) (node as Unrefable).unref?.();
      });
    },
    close: () => endConnecting(client as unknown as Ending, watch),
  };
}

interface Reached {
  readonly host?: string;
  readonly port?: number;
  readonly path?: string;
  readonly tls?: unknown;
}

function whereOf(client: NodeRedisClient, cluster: boolean): string {
  if (cluster) return "the Redis cluster";
  const socket: Reached = (client as unknown as Node).options?.socket ?? {};
  const { host = "localhost", port = PORT, path, tls } = socket;
  return path ?? `${tls ? "rediss" : "redis"}://${addressOf(host, port)}`;
}

async function subscribe(
  subscriber: Subscriber & Ending,
  channel: string,
  hear: Hearing,
  signal?: AbortSignal,
): Promise<Subscription> {
  let first = true;
  (subscriber as Unrefable).unref?.();
  // What is wrong shows in the commands.
  subscriber.on("error", () => {
    if (!subscriber.isOpen) hear.ended?.();
  });
  subscriber.on("ready", () => {
    // It listens again before it says that it is ready.
    if (!first) hear.back();
    first = false;
  });
  const watch = Watch.of(subscriber, ["reconnecting", "end"]);
  const close = (): Promise<void> => endConnecting(subscriber, watch);
  const listening = async (): Promise<void> => {
    watch.isConnecting = true;
    await subscriber.connect();
    signal?.throwIfAborted();
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
