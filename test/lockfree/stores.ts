import { onTestFinished } from "vitest";
import type { LocksOptions } from "../../src/core/options.js";
import { connect, createLocks, type Locks } from "../../src/index.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { freshFile } from "../support/sqlite.js";

/** Opens locks on the same data each time, as processes do. They are closed when the test is over. */
type Open = (options?: LocksOptions) => Promise<Locks>;

/** The stores on which the tools are tested, each empty at the beginning of a test. */
export const STORES: readonly { readonly store: string; start(): Open }[] = [
  {
    store: "memory",
    start() {
      const store = memoryStore();
      return async (options) => closing(createLocks(store, options));
    },
  },
  {
    store: "SQLite",
    start() {
      const url = `sqlite:${freshFile()}`;
      return async (options) => closing(await connect(url, options));
    },
  },
];

function closing(locks: Locks): Locks {
  onTestFinished(() => locks.close());
  return locks;
}
