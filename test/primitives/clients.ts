import type { LocksOptions } from "../../src/core/options.js";
import type { Traits } from "../../src/core/store.js";
import { type MemoryStore, memoryStore } from "../../src/stores/memory/index.js";
import { VirtualClock } from "../../src/testing/virtual-clock.js";
import { fixedRandom, never, type Stage, stage } from "../core/helpers.js";

export interface Clients {
  readonly clock: VirtualClock;
  readonly store: MemoryStore;
  /** A client with its own locks, labelled by its name. */
  on(holder: string, traits?: Partial<Traits>): Stage;
}

/** Several clients of one memory store, on one virtual clock. */
export function clients(options: LocksOptions = {}): Clients {
  const clock = new VirtualClock();
  const store = memoryStore({ clock: clock.forStore() });
  const all = new Map<string, Stage>();
  return {
    clock,
    store,
    on(holder, traits = {}) {
      const known = all.get(holder);
      if (known !== undefined) return known;
      const random = fixedRandom(0.5, holder);
      const made = stage({ holder, ...options }, { clock, inner: store, random, traits });
      all.set(holder, made);
      return made;
    },
  };
}

/** Cuts the client off: no request reaches the store any more, and no reply comes back. */
export function crash({ store }: Stage): void {
  store.onClaim = never;
  store.onRenew = never;
  store.onRelease = never;
  store.onPush = () => {};
}
