import { setImmediate as turn } from "node:timers/promises";
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

interface Evaluation {
  keys: string[];
  arguments: string[];
}

/** The part of node-redis that is used: a client, or a cluster. */
export interface NodeRedisClient {
  evalSha(sha: string, evaluation: Evaluation): Promise<unknown>;
  eval(code: string, evaluation: Evaluation): Promise<unknown>;
  duplicate(): unknown;
}

interface Node {
  wait(replicas: number, timeoutMs: number): Promise<number>;
  sendCommand(args: string[]): Promise<unknown>;
  readonly options?: {
    readonly socket?: Address;
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

const CLOSE_TIMEOUT_MS = 1_000;

/** QUIT is not sent: a server that is down or silent would not reply. */
async function destroyClient(client: Ending): Promise<void> {
  try {
    if (client.destroy !== undefined) client.destroy();
    else await client.disconnect?.();
  } catch {
    // The client was closed already.
  }
  // The socket is closed in the next turn.
  await turn();
}

/**
 * While a client connects, destroy() would lose sight of the socket: the client continues, connected, and
 * can't be closed any more. So it is destroyed as soon as the attempt has succeeded or failed; an attempt
 * that takes long is left to its own timeout.
 */
async function closeClient(client: Ending, state: ConnectionState): Promise<void> {
  if (!state.isConnecting) return destroyClient(client);
  const settled = new Promise<void>((resolve) => {
    client.on("connect", resolve);
    client.on("error", resolve);
  });
  await settlesWithin(
    CLOSE_TIMEOUT_MS,
    settled.then(() => destroyClient(client)),
  );
}

/** Sends QUIT to a demoted server, once: a second QUIT could wait for the next connection, and end that. */
function quitWhenDemoted(client: Node): (error: unknown) => void {
  let isQuitting = false;
  return (error) => {
    if (isQuitting || !isDemoted(error) || !reconnectsWhenDemoted.has(client)) return;
    isQuitting = true;
    const done = (): void => {
      isQuitting = false;
    };
    client.sendCommand(["QUIT"]).then(done, done);
  };
}

export function nodeRedisConnection(client: NodeRedisClient): Connection {
  const cluster = Array.isArray((client as unknown as Cluster).masters);
  const nodes = (): Promise<Node[]> => {
    const { masters } = client as unknown as Cluster;
    if (!cluster) return Promise.resolve([client as unknown as Node]);
    return Promise.all(masters.map((one) => (client as unknown as Cluster).nodeClient(one)));
  };
  const state = ConnectionState.of(client, ["reconnecting", "end"]);
  const nextNode = roundRobin();
  const reportCaughtError = quitWhenDemoted(client as unknown as Node);
  const { options } = client as unknown as Node;
  const db = cluster ? 0 : (options?.database ?? 0);
  const inDatabase = (script: Script): Script => (db === 0 ? script : selectingScript(script, db));
  return {
    cluster,
    db,
    where: cluster ? "the Redis cluster" : describeAddress(options?.socket ?? {}, "localhost"),
    get outage() {
      return state.outage;
    },
    get losses() {
      return state.losses;
    },
    onReconnect: (reconnected) => state.onReconnect(reconnected),
    keyPrefix: String(options?.keyPrefix ?? ""),
    async run(script, keys, args, argsToLoad = args) {
      const { sha, code } = inDatabase(script);
      try {
        return await client.evalSha(sha, { keys: [...keys], arguments: [...args] });
      } catch (error) {
        reportCaughtError(error);
        if (!isNoScript(error)) throw error;
        return await client.eval(code, { keys: [...keys], arguments: [...argsToLoad] });
      }
    },
    reportCaughtError,
    wait: async (replicas, timeoutMs) => (await nodes())[0]!.wait(replicas, timeoutMs),
    async subscribe(channel, events, signal) {
      if (!cluster) {
        return subscribe(client.duplicate() as Subscriber & Ending, channel, events, signal);
      }
      // Messages reach every node. A subscription ends with its connection, and the next goes to another node.
      const all = client as unknown as Cluster;
      const master = nextNode(all.masters);
      const node = await unlessAborted(Promise.resolve(all.nodeClient(master)), signal);
      const socket = { ...node.options?.socket, reconnectStrategy: false };
      const subscriber = node.duplicate({ socket }) as Subscriber & Ending;
      const subscription = await subscribe(subscriber, channel, events, signal);
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
      // A cluster unrefs the nodes that it knows by now.
      void nodes().then((all) => {
        for (const node of all) (node as Unrefable).unref?.();
      });
    },
    close: () => closeClient(client as unknown as Ending, state),
  };
}

async function subscribe(
  subscriber: Subscriber & Ending,
  channel: string,
  events: SubscriptionEvents,
  signal?: AbortSignal,
): Promise<Subscription> {
  let isFirst = true;
  (subscriber as Unrefable).unref?.();
  // Errors show in the commands.
  subscriber.on("error", () => {
    if (!subscriber.isOpen) events.ended?.();
  });
  subscriber.on("ready", () => {
    // node-redis has subscribed again before it reports ready.
    if (!isFirst) events.resubscribed?.();
    isFirst = false;
  });
  const state = ConnectionState.of(subscriber, ["reconnecting", "end"]);
  const close = (): Promise<void> => closeClient(subscriber, state);
  const listening = async (): Promise<void> => {
    state.isConnecting = true;
    await subscriber.connect();
    signal?.throwIfAborted();
    await subscriber.subscribe(channel, (text) => events.message(text));
  };
  try {
    await unlessAborted(listening(), signal);
  } catch (error) {
    await close();
    throw error;
  }
  return { ping: () => subscriber.ping(), close };
}
