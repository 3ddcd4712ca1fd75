import { constants } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { unlessAborted } from "../core/abort.js";
import type { NameStatus } from "../core/name-status.js";
import type { Locks } from "../locks.js";
import type { ListOptions } from "../primitives/inspection.js";
import { Exit } from "./exit.js";
import type { Options } from "./options.js";
import { masked } from "./output.js";
import { chooseStore, missing, withLocks } from "./store.js";

/** The names in use, and whether their waiters have a place in the store. */
export interface Seen {
  readonly names: readonly NameStatus[];
  readonly knowsWaiters: boolean;
}

/** The names in use, or why the store could not be asked. */
export type Look = Seen | { problem: string };

export async function look(locks: Locks, list: ListOptions): Promise<Seen> {
  return { names: await locks.list(list), knowsWaiters: locks.traits.fair };
}

/**
 * Lists the names every `everyMs` until a signal ends holdfast, or nobody reads its output any more.
 * A store that fails, or a file that does not exist yet, is asked again.
 */
export async function lookAgain(
  options: Options,
  list: ListOptions,
  everyMs: number,
  seen: (look: Look) => void,
): Promise<number> {
  const over = new AbortController();
  const { signal } = over;
  for (const name of ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"] as const) {
    // The second one does not wait for a store that hangs.
    process.on(name, () => {
      if (signal.aborted) process.exit(Exit.signal + constants.signals[name]);
      over.abort();
    });
  }
  process.stdout.once("error", () => over.abort());
  const pause = (): Promise<void> => sleep(everyMs, undefined, { signal }).catch(() => {});
  const loop = async (locks: Locks): Promise<void> => {
    while (!signal.aborted) {
      const result = await unlessAborted(look(locks, list), signal).catch((error: Error) => ({
        problem: masked(error.message),
      }));
      if (signal.aborted) return;
      seen(result);
      await pause();
    }
  };
  const { url } = chooseStore(options);
  for (let problem = missing(url); problem !== null; problem = missing(url)) {
    seen({ problem });
    await pause();
    if (signal.aborted) return Exit.ok;
  }
  await withLocks(options, loop, undefined);
  return Exit.ok;
}
