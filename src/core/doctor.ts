import { randomUUID } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { createLocks } from "./locks.js";
import type { Store } from "./store.js";
import type { StoreUrl } from "./url.js";

/** What a look at a store has found: what can go wrong with locks there, and what helps. */
export interface Finding {
  /** What was looked at, in a word that stays the same. */
  readonly about: string;
  /** `danger`: a name can be granted twice, leases can be lost, or nothing can be locked. `unknown`: it could not be looked at. `note`: a lesser risk, or something slow. */
  readonly level: Level;
  readonly what: string;
  readonly advice?: string;
  /** Which of several servers, where it is not so on all. */
  readonly where?: string;
}

export type Level = "danger" | "unknown" | "note" | "ok";

/** Looks at the store behind a URL. Rejects if it can't be reached at all. */
export type Doctor = (url: StoreUrl) => Promise<readonly Finding[]>;

const TRIAL = { ttl: 10_000, wait: 2_000, push: 500, look: 10 };

const TWICE = "it was granted to another while it was held";

/** Takes a name of its own, waits for it in line, is handed it, renews it and gives it back. Closes the store. */
export async function tryOut(store: Store): Promise<Finding> {
  const { ttl, wait } = TRIAL;
  const locks = createLocks(store, { namespace: "holdfast-doctor", ttl, wait });
  const name = randomUUID();
  let step = "take a free name";
  try {
    const first = await locks.acquire(name, { wait: 0 });
    step = "wait in line for a name";
    const waiting = locks.acquire(name);
    const early = waiting.then(() => true);
    early.catch(() => {});
    const queued = async (): Promise<boolean> => (await locks.inspect(name))?.waiters.length === 1;
    // Who waits in vain gives up.
    while (!(await queued())) {
      if (await Promise.race([early, pause(TRIAL.look)])) throw new Error(TWICE);
    }
    step = "hand a name over to who waits";
    const released = await first.release();
    const at = performance.now();
    if (released !== "released") throw new Error(`the release was answered with "${released}"`);
    const second = await waiting;
    const toldMs = performance.now() - at;
    step = "renew a lease";
    await second.renew();
    await second.release();
    if (toldMs > TRIAL.push) {
      return {
        about: "trial",
        level: "note",
        what: `a name was handed over, but who waited was told only after ${Math.round(toldMs)} ms: its message came late or not at all`,
      };
    }
    return {
      about: "trial",
      level: "ok",
      what: "a name was taken, waited for, handed over, renewed and given back",
    };
  } catch (error) {
    return {
      about: "trial",
      level: "danger",
      what: `it was not possible to ${step}: ${reasonOf(error)}`,
      advice: "What stands in the way is often another finding here.",
    };
  } finally {
    await locks.close();
  }
}

export const reasonOf = (error: unknown): string =>
  error instanceof Error ? error.message : String(error);

export const megabytes = (bytes: number): string =>
  `${(bytes / 2 ** 20).toFixed(bytes < 2 ** 20 ? 1 : 0)} MB`;

export const percent = (part: number, whole: number): string =>
  `${Math.floor((100 * part) / whole)} %`;

export const isLoopback = (host: string): boolean =>
  /^(localhost|127(\.\d+){3}|\[?::1\]?)$/i.test(host);
