import { LOCKS_OPTIONS, type LocksOptions } from "./core/options.js";
import type { Store } from "./core/store.js";
import { checkBoolean, checkOptions, orElse } from "./core/validate.js";
import { createLocks, type Locks } from "./locks.js";
import { kindOf, parseStoreUrl } from "./stores/registry.js";
import { lazyStore } from "./stores/shared/lazy-store.js";

/** Options of `connect`: those of `createLocks`, and `lazy`. */
export interface ConnectOptions extends LocksOptions {
  /**
   * Connects at the first request, and again after a failure: `connect` does not fail if the server
   * is down when your program starts. Default false.
   */
  lazy?: boolean | undefined;
}

/**
 * Opens the store behind a URL, and makes locks on it. `locks.close()` closes the connection too.
 * Rejects with `InvalidArgumentError` if the URL or an option is wrong, with `StoreUnavailableError`
 * if the store can't be reached (unless `lazy`), and with `UnsupportedError` if its client library
 * is not installed or the store can't do what an option requires.
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

/** Opens the store behind a URL; if `isLazy`, at the first request. */
export async function openStore(url: string, isLazy = false): Promise<Store> {
  const parsed = parseStoreUrl(url);
  const kind = kindOf(parsed);
  if (!isLazy) return kind.open(parsed);
  return lazyStore(await kind.traits(parsed), () => kind.open(parsed));
}
