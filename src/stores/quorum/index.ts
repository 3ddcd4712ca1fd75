import { InvalidArgumentError } from "../../core/errors.js";
import { checkOptions } from "../../core/validate.js";
import type { RedisClient } from "../redis/client.js";
import { checkNodeCount, parseMaxTtl, QUORUM_TRAITS } from "./options.js";
import { RedisNode } from "./redis-node.js";
import { QuorumStore } from "./store.js";

export { QUORUM_TRAITS, QuorumStore };

/** Options of `quorumStore`. */
export interface QuorumStoreOptions {
  /**
   * The longest ttl of a lease, the same in all processes. A node that has lost data stays out of the vote for this
   * time. Default "1m".
   */
  maxTtl?: number | string;
  /** Closes the clients with the first `Locks` on the store that is closed. Default false: they are the caller's. */
  closeClients?: boolean;
}

/**
 * Makes a store on an odd number of independent Redis servers, at least three, by clients of ioredis or
 * node-redis that you have built, one for each server. A lease is held by a majority of them. Throws
 * `InvalidArgumentError` if the clients or an option can't be used.
 *
 * @example
 * ```ts
 * import { createLocks } from "holdfast";
 * import { quorumStore } from "holdfast/stores/quorum";
 * import { Redis } from "ioredis";
 *
 * const clients = [7001, 7002, 7003].map((port) => new Redis({ host: "127.0.0.1", port }));
 * const locks = createLocks(quorumStore(clients), { ttl: "30s" });
 * await locks.withLock("order:123", async (lease) => console.log(lease.token));
 * await locks.close();
 * for (const client of clients) await client.quit();
 * ```
 */
export function quorumStore(
  clients: readonly RedisClient[],
  options: QuorumStoreOptions = {},
): QuorumStore {
  checkOptions(options, "the options of quorumStore", ["maxTtl", "closeClients"]);
  const count = Array.isArray(clients) ? clients.length : 0;
  checkNodeCount(count, "quorumStore() takes a list of clients");
  const twice = clients.find((client, i) => clients.indexOf(client) !== i);
  if (twice !== undefined) {
    throw new InvalidArgumentError(
      "quorumStore() got the same client twice: pass one for each server",
    );
  }
  const maxTtlMs = parseMaxTtl(options.maxTtl);
  const closeClient = options.closeClients ?? false;
  const servers = new Map<RedisNode, string>();
  const nodes = clients.map((client) => new RedisNode(client, { maxTtlMs, closeClient, servers }));
  return new QuorumStore(nodes, { maxTtlMs, closesNodes: closeClient });
}
