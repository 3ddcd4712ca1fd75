import { constants } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { onAbort, unlessAborted } from "../core/abort.js";
import type { NameStatus } from "../core/name-status.js";
import type { Locks } from "../locks.js";
import type { ListOptions } from "../primitives/inspection.js";
import { Exit } from "./exit.js";
import type { Options } from "./options.js";
import { masked } from "./output.js";
import { chooseStore, describeStore, missing, withLocks } from "./store.js";

/** The names in use, and whether their waiters have a place in the store. */
export interface Seen {
  readonly names: readonly NameStatus[];
  readonly knowsWaiters: boolean;
}

/** The names in use, or why the store could not be asked, or where holdfast connects to. */
export type Look = Seen | { problem: string } | { connecting: string };

/** A store that opens faster is not worth a message. */
const QUICKLY_MS = 1_000;

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
    // The second one does not wait for a look at a store that hangs, or for its end.
    process.on(name, () => {
      if (signal.aborted) process.exit(Exit.signal + constants.signals[name]);
      over.abort();
    });
  }
  process.stdout.once("error", () => over.abort());
  const pause = (): Promise<void> => sleep(everyMs, undefined, { signal }).catch(() => {});
  let isOpen = false;
  const loop = async (locks: Locks): Promise<void> => {
    isOpen = true;
    clearTimeout(slow);
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
  const slow = setTimeout(
    () => seen({ connecting: `connecting to ${describeStore(url)} …` }),
    QUICKLY_MS,
  );
  const looking = withLocks(options, loop, undefined);
  await new Promise<void>((resolve, reject) => {
    onAbort(signal, () => {
      if (!isOpen) resolve();
    });
    looking.then(resolve, reject);
  }).finally(() => clearTimeout(slow));
  return Exit.ok;
}
