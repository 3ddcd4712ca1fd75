import { InvalidArgumentError, UnsupportedError } from "./errors.js";
import { lazyStore } from "./lazy-store.js";
import { createLocks, type Locks } from "./locks.js";
import { LOCKS_OPTIONS, type LocksOptions } from "./options.js";
import type { Store, Traits } from "./store.js";
import { parseStoreUrl, type Scheme, type StoreUrl } from "./url.js";
import { checkBoolean, checkOptions, orElse } from "./validate.js";

export interface ConnectOptions extends LocksOptions {
  /**
   * Connects when the first lock is asked for, and again after a failure: a server that is down
   * when your program starts is then no error of `connect`. Default false.
   */
  lazy?: boolean | undefined;
}

/** A kind of store, as its URLs describe it. */
interface StoreKind {
  readonly options: readonly string[];
  traits(url: StoreUrl): Traits;
  open(url: StoreUrl): Promise<Store>;
}

/** Each loads its code, and its client library, only when asked for. */
const KINDS: Partial<Record<Scheme, () => Promise<StoreKind>>> = {
  memory: async () => {
    const { MEMORY_TRAITS, memoryStore } = await import("../stores/memory.js");
    return {
      options: [],
      traits: () => MEMORY_TRAITS,
      open: async ({ path }) => {
        if (path === "") return memoryStore();
        throw new InvalidArgumentError("memory: takes no path; it lives in this process alone");
      },
    };
  },
  sqlite: async () => {
    const { openSqliteStore } = await import("../stores/sqlite/open.js");
    const { SQLITE_TRAITS } = await import("../stores/sqlite/index.js");
    return {
      options: [],
      traits: () => SQLITE_TRAITS,
      open: ({ path }) => openSqliteStore(path),
    };
  },
  redis: redisKind,
  rediss: redisKind,
  etcd: async () => {
    const { openEtcdStore, ETCD_OPTIONS } = await import("../stores/etcd/open.js");
    const { ETCD_TRAITS } = await import("../stores/etcd/index.js");
    return { options: ETCD_OPTIONS, traits: () => ETCD_TRAITS, open: openEtcdStore };
  },
};

async function redisKind(): Promise<StoreKind> {
  const { openRedisStore, REDIS_OPTIONS } = await import("../stores/redis/open.js");
  const { REDIS_CLUSTER_TRAITS, REDIS_TRAITS } = await import("../stores/redis/index.js");
  return {
    options: REDIS_OPTIONS,
    traits: ({ options }) => (options.has("cluster") ? REDIS_CLUSTER_TRAITS : REDIS_TRAITS),
    open: openRedisStore,
  };
}

/**
 * Locks on the store behind a URL. Closing them closes the connection too. Rejects with
 * `StoreUnavailableError` if the store can't be reached, unless `lazy`.
 *
 * @example
 * const locks = await connect("redis://127.0.0.1:6379", { ttl: "30s" });
 * await locks.withLock("order:123", async (lease) => save(order, lease.token));
 * await locks.close();
 */
export async function connect(url: string, options: ConnectOptions = {}): Promise<Locks> {
  checkOptions(options, "the options of connect", [...LOCKS_OPTIONS, "lazy"]);
  const { lazy, ...rest } = options;
  const store = await openStore(url, checkBoolean(orElse(lazy, false), "lazy"));
  try {
    return createLocks(store, rest);
  } catch (error) {
    await store.close();
    throw error;
  }
}

export async function openStore(url: string, isLazy = false): Promise<Store> {
  const parsed = parseStoreUrl(url);
  const kindOf = KINDS[parsed.scheme];
  if (kindOf === undefined) {
    throw new UnsupportedError(
      `the store of ${parsed.scheme}: URLs is planned, but not in this version; it has ${SCHEMES_HERE}`,
    );
  }
  const kind = await kindOf();
  refuseOptions(parsed, kind.options);
  return isLazy ? lazyStore(kind.traits(parsed), () => kind.open(parsed)) : kind.open(parsed);
}

const SCHEMES_HERE = Object.keys(KINDS)
  .map((scheme) => `${scheme}:`)
  .join(" ");

export function refuseOptions(url: StoreUrl, known: readonly string[]): void {
  const unknown = [...url.options.keys()].find((key) => !known.includes(key));
  if (unknown === undefined) return;
  const list = known.length > 0 ? `; known: ${known.join(", ")}` : "";
  // Behind a "?" that belongs to a password, the options are the rest of it.
  const isSecret = [...url.options].flat().some((text) => text.includes("@"));
  throw new InvalidArgumentError(
    isSecret
      ? `a ${url.scheme}: URL has an unknown option${list}; a "?" in a password is written as %3F`
      : `${url.scheme}: URLs have no option ${JSON.stringify(unknown)}${list}`,
  );
}
