import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { reasonOf } from "./core/cause.js";
import type { Store } from "./core/store.js";
import { danger, type Finding, note, ok, SEE_OTHERS } from "./doctor/finding.js";
import { createLocks, type Locks } from "./locks.js";
import { kindOf, parseStoreUrl } from "./stores/registry.js";

const ABOUT = "trial";
const TTL_MS = 10_000;
const WAIT_MS = 2_000;
/** A notification that takes longer was lost, and the waiter learned of its grant by polling. */
const NOTIFIED_WITHIN_MS = 500;
const LOOK_EVERY_MS = 10;

/**
 * Reports what endangers locks on the store behind a URL. Rejects with InvalidArgumentError if the
 * URL is wrong, and with StoreUnavailableError if the store can't be reached.
 */
export async function examineStore(url: string): Promise<readonly Finding[]> {
  const parsed = parseStoreUrl(url);
  return kindOf(parsed).examine(parsed, tryStore);
}

/** Takes a name of its own, waits for it, is handed it, renews it and releases it. Closes the store. */
async function tryStore(store: Store): Promise<Finding> {
  const ttl = Math.min(TTL_MS, store.traits.maxTtlMs ?? TTL_MS);
  const locks = createLocks(store, { namespace: "holdfast-doctor", ttl, wait: WAIT_MS });
  const name = randomUUID();
  let step = "take a free name";
  try {
    const first = await locks.acquire(name, { wait: 0 });
    step = "queue a waiter for a name";
    const waiting = locks.acquire(name);
    // A step that fails before the wait ends is the one to report.
    waiting.catch(() => {});
    // Where waiters have no place in the store, nobody can see this one.
    if (locks.traits.fair) await queued(locks, name, waiting);
    step = "hand a name over to its waiter";
    const released = await first.release();
    const releasedAtMs = performance.now();
    if (released !== "released") throw new Error(`the release was answered with "${released}"`);
    const second = await waiting;
    const notifiedMs = performance.now() - releasedAtMs;
    step = "renew a lease";
    await second.renew();
    await second.release();
    if (notifiedMs <= NOTIFIED_WITHIN_MS) {
      return ok(ABOUT, "a name was taken, waited for, handed over, renewed and released");
    }
    return note(
      ABOUT,
      `a name was handed over, but its waiter was notified only after ${Math.round(notifiedMs)} ms: the notification came late or not at all`,
    );
  } catch (error) {
    return danger(ABOUT, `the store failed to ${step}: ${reasonOf(error)}`, SEE_OTHERS);
  } finally {
    await locks.close();
  }
}

/** Resolves when the name has its waiter. The wait has an end of its own, which rejects. */
async function queued(locks: Locks, name: string, waiting: Promise<unknown>): Promise<void> {
  const granted = waiting.then(() => true);
  granted.catch(() => {});
  while ((await locks.inspect(name))?.waiters.length !== 1) {
    if (await Promise.race([granted, sleep(LOOK_EVERY_MS)])) {
      throw new Error("the name was granted to a second holder while the first held it");
    }
  }
}
