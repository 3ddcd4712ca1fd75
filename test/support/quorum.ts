import { Redis } from "ioredis";
import type { Store } from "../../src/core/store.js";
import { type QuorumStoreOptions, quorumStore } from "../../src/stores/quorum/index.js";
import type { RedisServer } from "../../src/verify/lab/redis.js";

/** A store on these servers, which closes its clients. */
export async function byQuorum(
  servers: readonly Pick<RedisServer, "address" | "port">[],
  { db = 0, ...options }: QuorumStoreOptions & { db?: number } = {},
): Promise<Store> {
  const clients = servers.map(({ address, port }) => {
    return new Redis({ host: address, port, db, maxRetriesPerRequest: 0 }).on("error", () => {});
  });
  const store = quorumStore(clients, { closeClients: true, ...options });
  await store.setUp();
  return store;
}

/** The URL of a quorum. `login`: `user:password@`. */
export const redlockUrl = (
  servers: readonly { readonly address: string; readonly port: number }[],
  login = "",
): string =>
  `redlock://${login}${servers.map(({ address, port }) => `${address}:${port}`).join(",")}`;
