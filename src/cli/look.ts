import { setTimeout as sleep } from "node:timers/promises";
import type { NameStatus } from "../core/name-status.js";
import type { ListOptions } from "../primitives/inspection.js";
import { Exit } from "./exit.js";
import type { Options } from "./options.js";
import { masked } from "./output.js";
import { withLocks } from "./store.js";

/** The names in use, or why the store could not be asked. */
export type Look = { names: readonly NameStatus[] } | { problem: string };

/**
 * Lists the names every `everyMs` until a signal ends holdfast, or nobody reads its output any more.
 * A store that fails is asked again.
 */
export async function lookAgain(
  options: Options,
  list: ListOptions,
  everyMs: number,
  seen: (look: Look) => void,
): Promise<number> {
  const over = new AbortController();
  const end = (): void => over.abort();
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.once(signal, end);
  process.stdout.once("error", end);
  const loop = async (look: () => Promise<readonly NameStatus[]>): Promise<number> => {
    while (!over.signal.aborted) {
      const result = await look().then(
        (names) => ({ names }),
        (error: Error) => ({ problem: masked(error.message) }),
      );
      if (!over.signal.aborted) seen(result);
      await sleep(everyMs, undefined, { signal: over.signal }).catch(() => {});
    }
    return Exit.ok;
  };
  return withLocks(options, (locks) => loop(() => locks.list(list)), Exit.ok);
}
