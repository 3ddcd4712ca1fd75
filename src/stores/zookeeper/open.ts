import { reasonOf } from "../../core/cause.js";
import { InvalidArgumentError, StoreUnavailableError } from "../../core/errors.js";
import type { Store } from "../../core/store.js";
import { explainNetworkFailure } from "../shared/network-failure.js";
import { switchedTlsOf, tlsTrouble } from "../shared/tls.js";
import { addressOf, type StoreUrl } from "../url.js";
import { ZooKeeperClient } from "./client/client.js";
import { ZooKeeperError } from "./client/errors.js";
import { checkPath } from "./client/paths.js";
import { CREATOR_ACL } from "./client/records.js";
import { toStoreError } from "./errors.js";
import { ZooKeeperStore, type ZooKeeperStoreOptions } from "./index.js";
import { Layout, ROOT } from "./layout.js";
import { prepareRoot } from "./root.js";

export const PORT = 2181;
/** An election takes a second or two. */
const CONNECT_MS = 4_000;

/** Opens a store by URL. Resolves when a server with a majority has answered. */
export async function openZooKeeperStore(url: StoreUrl): Promise<Store> {
  const options = storeOptions(url);
  const client = await openClientOf(url);
  try {
    await prepareRoot(client, new Layout(options.root));
  } catch (error) {
    throw error instanceof ZooKeeperError ? unavailable(error, url) : error;
  } finally {
    await client.close();
  }
  return new ZooKeeperStore(options);
}

/** A client by URL. Rejects with StoreUnavailableError if no server gives a session. */
export async function openClientOf(
  url: StoreUrl,
  sessionTimeoutMs = CONNECT_MS,
): Promise<ZooKeeperClient> {
  const { root: _root, ...options } = storeOptions(url);
  try {
    return await ZooKeeperClient.open({ ...options, sessionTimeoutMs });
  } catch (error) {
    throw error instanceof ZooKeeperError ? unavailable(error, url) : error;
  }
}

function unavailable(error: ZooKeeperError, url: StoreUrl): unknown {
  const mapped = toStoreError(error);
  if (mapped !== error) return mapped;
  const hosts = url.hosts.map(({ host, port }) => addressOf(host, port ?? PORT)).join(", ");
  const explained = url.hosts.length === 1 ? explainNetworkFailure(error.message) : null;
  const text = reasonOf(error).replace(/^ZooKeeper: | \(CONNECTION_LOSS\)$/g, "");
  const why = tlsTrouble(error.message, url) ?? explained ?? text;
  return new StoreUnavailableError(`can't use ZooKeeper at ${hosts}: ${why}`, {
    cause: error,
    retryable: error.retryable,
  });
}

export function storeOptions(url: StoreUrl): ZooKeeperStoreOptions {
  const { user, password, hosts, path } = url;
  if ((user === "") !== (password === "")) {
    throw new InvalidArgumentError(
      "a zookeeper: URL with a user also needs a password: write user:password@ before the hosts",
    );
  }
  const root = path.replace(/\/$/, "");
  const tls = switchedTlsOf(url);
  return {
    servers: hosts.map(({ host, port }) => addressOf(host, port ?? PORT)),
    root: root === "" ? ROOT : checkPath(root, "the path of the zookeeper: URL"),
    connectTimeoutMs: CONNECT_MS,
    // Also for the client that makes the root, before there is a store.
    ...(user === "" ? {} : { auth: { user, password }, acl: CREATOR_ACL }),
    ...(tls === null ? {} : { tls }),
  };
}
