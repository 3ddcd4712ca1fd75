import { createRequire } from "node:module";

/**
 * A contestant of a benchmark: all that a new store has to write to be measured.
 *
 * @typedef {object} Contestant
 * @property {string} name As in the tables. The goals are about "Holdfast", unless they name another.
 * @property {boolean} [peer] Another library: "best peer" in a goal means the best of these.
 * @property {string[]} [needs] Packages of bench/node_modules; without them it is left out, with a message.
 * @property {boolean} [slow] Takes seconds for a handover: left out of quick runs.
 * @property {number} [pauseMs] How long it sleeps between two looks, if it does: a release comes at a random moment of that.
 * @property {(place: object, terms: Terms) => Promise<Lock | Waker>} open In this process or in a child. `place` is what the benchmark's own `open` put there: a folder, a URL.
 *
 * @typedef {object} Terms
 * @property {number} ttlMs For every lease.
 * @property {boolean} kept Leases are held for long: to be kept alive, where that is not the default.
 *
 * @typedef {object} Lock
 * @property {(name: string) => Promise<Handle>} acquire Waits as long as it takes.
 * @property {(handle: Handle) => Promise<void>} release
 * @property {() => Promise<void>} close
 * @property {(name: string) => Promise<Handle | null>} [tryAcquire] busy: claims once; null if the name is held.
 * @property {(handles: Handle[]) => Promise<void>} [renewAll] renewals: all at once.
 * @property {(limit: number) => Promise<object[]>} [list] list: all names that are held.
 * @property {(name: string) => Promise<number>} [expiresInMs] recovery: until the store lets the holder's lease expire.
 * @property {(handle: Handle) => boolean} [isHeld] growth: whether it is still good.
 * @property {(handle: Handle) => AbortSignal} [signal] growth: measures the cost of a signal that was used.
 *
 * @typedef {object} Waker The fastest that the store can do without a lock: the floor of a handover.
 * @property {(name: string) => Promise<{ woken: Promise<void> }>} listen Resolves when it listens; `woken` when it is woken.
 * @property {(name: string) => Promise<void>} wake
 * @property {() => Promise<void>} close
 *
 * A benchmark file exports `title`, `contestants`, `open()` and `measurements`:
 * `open()` → `{ place, commands?, packets?, logBytes?, sizeBytes?, close }`: a fresh place for each measurement; `commands()`
 * is the server's own count of commands, `packets()` that of messages in both directions, `logBytes()` how much it has written to its log, `sizeBytes(contestant)` the
 * size of a contestant's data; `place` has to survive JSON.
 * `measurements`: `{ kind, among: [names], yardstick?, goals?, byName?, ...options of the kind }`. With `byName`, one
 * runs only if its id is named: it takes long.
 */

/** Unless a kind says otherwise. */
export const TERMS = { ttlMs: 30_000, kept: false };

const require = createRequire(import.meta.url);

export function isInstalled(name) {
  try {
    require.resolve(name);
    return true;
  } catch {
    return false;
  }
}

/** Separates the contestants that are measured from those that are left out, with the reason. */
export function sortOut(contestants, { isQuick = false, isAlone = false, has = isInstalled } = {}) {
  const present = [];
  const leftOut = [];
  for (const contestant of contestants) {
    const { name, peer = false, needs = [], slow = false } = contestant;
    const missing = needs.filter((one) => !has(one));
    if (isAlone && peer) leftOut.push({ name, why: "--alone measures no other library" });
    else if (missing.length > 0)
      leftOut.push({ name, why: `needs the package ${missing.join(", ")}` });
    else if (slow && isQuick) leftOut.push({ name, why: "too slow for a quick run" });
    else present.push(contestant);
  }
  return { present, leftOut };
}
