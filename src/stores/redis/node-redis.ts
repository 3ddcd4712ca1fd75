import { setImmediate as turn } from "node:timers/promises";
import { unlessAborted } from "../../core/abort.js";
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

/** node-redis's own classes, as far as we use them: a client, a cluster, and the clients of its nodes. */
interface Client extends NodeRedisClient {
  readonly isOpen: boolean;
  readonly options?: {
    readonly socket?: Address;
    readonly database?: number;
    /** Since version 6. */
    readonly keyPrefix?: unknown;
  };
  sendCommand(args: string[]): Promise<unknown>;
  wait(replicas: number, timeoutMs: number): Promise<number>;
  connect(): Promise<unknown>;
  subscribe(channel: string, listener: (text: string) => void): Promise<unknown>;
  ping(): Promise<unknown>;
  on(event: string, listener: () => void): unknown;
  duplicate(overrides?: object): Client;
  unref?(): void;
  /** Version 4 has no destroy, and its disconnect is a promise. */
  destroy?(): void;
  disconnect?(): Promise<unknown>;
}

interface Cluster extends Client {
  readonly masters: readonly { readonly address?: string }[];
  readonly replicas: readonly { readonly address?: string }[];
  nodeClient(node: unknown): Client | Promise<Client>;
}

const LOSS_EVENTS = ["reconnecting", "end"];
const CLOSE_TIMEOUT_MS = 1_000;

/** QUIT is not sent: a server that is down or silent would not reply. */
async function destroyClient(client: Client): Promise<void> {
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
async function closeClient(client: Client, state: ConnectionState): Promise<void> {
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
function quitWhenDemoted(client: Client): (error: unknown) => void {
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

export function nodeRedisConnection(given: NodeRedisClient): Connection {
  const client = given as Cluster;
  const cluster = Array.isArray(client.masters);
  const primaries = async (): Promise<readonly Client[]> =>
    cluster ? Promise.all(client.masters.map((one) => client.nodeClient(one))) : [client];
  const state = ConnectionState.of(client, LOSS_EVENTS);
  const nextNode = roundRobin();
  const reportCaughtError = quitWhenDemoted(client);
  const { options } = client;
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
    get allLosses() {
      return state.losses;
    },
    onReconnect: (reconnected) => state.onReconnect(reconnected),
    keyPrefix: String(options?.keyPrefix ?? ""),
    async run(script, keys, args, argsToLoad = () => args) {
      const { sha, code } = inDatabase(script);
      try {
        return await client.evalSha(sha, { keys: [...keys], arguments: [...args] });
      } catch (error) {
        reportCaughtError(error);
        if (!isNoScript(error)) throw error;
        return await client.eval(code, { keys: [...keys], arguments: [...argsToLoad()] });
      }
    },
    reportCaughtError,
    wait: (replicas, timeoutMs) => client.wait(replicas, timeoutMs),
    subscribe: async (channel, events, signal) =>
      cluster
        ? subscribeAtNode(client, nextNode(client.masters), channel, events, signal)
        : subscribe(client.duplicate(), channel, events, signal),
    servers: async () =>
      (await primaries()).map((node, i) => ({
        where: cluster ? (client.masters[i]?.address ?? "") : "",
        command: (...args) => node.sendCommand([...args]),
        run: (script, args) => node.sendCommand(["EVAL", inDatabase(script).code, "0", ...args]),
      })),
    unref() {
      // A cluster unrefs the nodes that it knows by now.
      void primaries().then((all) => {
        for (const node of all) node.unref?.();
      });
    },
    close: () => closeClient(client, state),
  };
}

/** Messages reach every node of a cluster. A subscription ends with its connection, and the next goes to another node. */
async function subscribeAtNode(
  cluster: Cluster,
  master: Cluster["masters"][number],
  channel: string,
  events: SubscriptionEvents,
  signal?: AbortSignal,
): Promise<Subscription> {
  const node = await unlessAborted(Promise.resolve(cluster.nodeClient(master)), signal);
  const socket = { ...node.options?.socket, reconnectStrategy: false };
  const subscription = await subscribe(node.duplicate({ socket }), channel, events, signal);
  return whileMember(subscription, () =>
    [...cluster.masters, ...cluster.replicas].some(({ address }) => address === master.address),
  );
}

async function subscribe(
  subscriber: Client,
  channel: string,
  events: SubscriptionEvents,
  signal?: AbortSignal,
): Promise<Subscription> {
  let isFirst = true;
  subscriber.unref?.();
  // Errors show in the commands.
  subscriber.on("error", () => {
    if (!subscriber.isOpen) events.ended?.();
  });
  subscriber.on("ready", () => {
    // node-redis has subscribed again before it reports ready.
    if (!isFirst) events.resubscribed?.();
    isFirst = false;
  });
  const state = ConnectionState.of(subscriber, LOSS_EVENTS);
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
