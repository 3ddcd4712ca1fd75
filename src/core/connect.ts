import { InvalidArgumentError, UnsupportedError } from "./errors.js";
import { createLocks, type Locks } from "./locks.js";
import type { LocksOptions } from "./options.js";
import type { Store } from "./store.js";
import { parseStoreUrl, type Scheme, type StoreUrl } from "./url.js";

/** Opens the store behind a URL; each loads its code, and its client library, only when asked for. */
const OPENERS: Partial<Record<Scheme, (url: StoreUrl) => Promise<Store>>> = {
  memory: async (url) => {
    refuseOptions(url, []);
    if (url.path !== "") {
      throw new InvalidArgumentError("memory: takes no path; it lives in this process alone");
    }
    return (await import("../stores/memory.js")).memoryStore();
  },
  sqlite: async (url) => {
    refuseOptions(url, []);
    const { openSqliteStore } = await import("../stores/sqlite/open.js");
    return openSqliteStore(url.path);
  },
  redis: openRedis,
  rediss: openRedis,
  etcd: async (url) => {
    const { openEtcdStore, ETCD_OPTIONS } = await import("../stores/etcd/open.js");
    refuseOptions(url, ETCD_OPTIONS);
    return openEtcdStore(url);
  },
};

async function openRedis(url: StoreUrl): Promise<Store> {
  const { openRedisStore, REDIS_OPTIONS } = await import("../stores/redis/open.js");
  refuseOptions(url, REDIS_OPTIONS);
  return openRedisStore(url);
}

/** Locks on the store behind a URL; closing them closes the connection too. */
export async function connect(url: string, options: LocksOptions = {}): Promise<Locks> {
  const store = await openStore(url);
  try {
    return createLocks(store, options);
  } catch (error) {
    await store.close();
    throw error;
  }
}

export async function openStore(url: string): Promise<Store> {
  const parsed = parseStoreUrl(url);
  const open = OPENERS[parsed.scheme];
  if (open === undefined) {
    throw new UnsupportedError(
      `the store of ${parsed.scheme}: URLs is planned, but not in this version; ` +
        `it has ${Object.keys(OPENERS)
          .map((scheme) => `${scheme}:`)
          .join(" and ")}`,
    );
  }
  return open(parsed);
}

export function refuseOptions(url: StoreUrl, known: readonly string[]): void {
  for (const key of url.options.keys()) {
    if (!known.includes(key)) {
      throw new InvalidArgumentError(
        `${url.scheme}: URLs have no option ${JSON.stringify(key)}` +
          (known.length > 0 ? `; known: ${known.join(", ")}` : ""),
      );
    }
  }
}
