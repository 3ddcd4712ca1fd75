import { HoldfastError } from "../../core/errors.js";
import { connectionOf } from "../redis/client.js";
import { toConnectError } from "../redis/connect-errors.js";
import { type ConnectingClient, startClient } from "../redis/open-client.js";
import type { StoreUrl } from "../url.js";
import { majorityOf } from "./ballot.js";
import { unavailable } from "./errors.js";
import { type QuorumStore, quorumStore } from "./index.js";
import { maxTtlOf, type NodeTarget, nodesOf } from "./url.js";

/** Nodes that connect later than a majority by more than this join the quorum afterwards. */
const MINORITY_GRACE_MS = 250;

/** Opens a store when all nodes have answered, or a moment after a majority has. */
export async function openQuorumStore(url: StoreUrl): Promise<QuorumStore> {
  const nodes = nodesOf(url);
  const maxTtl = maxTtlOf(url);
  const starting = await Promise.all(nodes.map(startClient));
  const clients = starting.map(({ client }) => client);
  const store = quorumStore(clients, { closeClients: true, maxTtl });
  try {
    await majorityConnects(starting, nodes);
    await store.setUp();
  } catch (error) {
    await Promise.all(starting.map(({ disconnect }) => disconnect()));
    throw error;
  }
  for (const client of clients) connectionOf(client).unref();
  return store;
}

/** Rejects with the reasons of all nodes if fewer than a majority can be reached. */
async function majorityConnects(
  starting: readonly ConnectingClient[],
  nodes: readonly NodeTarget[],
): Promise<void> {
  const failures: Error[] = [];
  const majority = majorityOf(nodes.length);
  let connected = 0;
  let timer: NodeJS.Timeout | undefined;
  await new Promise<void>((resolve) => {
    const settled = (): void => {
      if (connected + failures.length === nodes.length) resolve();
      else if (connected >= majority) timer ??= setTimeout(resolve, MINORITY_GRACE_MS);
    };
    for (const [i, one] of starting.entries()) {
      one.connected.then(
        () => {
          connected++;
          settled();
        },
        async (error: unknown) => {
          failures.push(await toNodeError(error, nodes[i]!));
          settled();
        },
      );
    }
  });
  clearTimeout(timer);
  if (connected < majority) throw unavailable(nodes.length, failures);
}

const toNodeError = async (error: unknown, node: NodeTarget): Promise<Error> =>
  HoldfastError.is(error) ? error : toConnectError(error, node, node.url);
