import type { Store } from "../../core/store.js";
import { lazyStore } from "../../stores/shared/lazy-store.js";
import type { SimulatedProcess } from "./process.js";
import type { World } from "./world.js";

/** How long it takes to open a store that is available. */
export const OPENING_MS = 30;

/**
 * The store behind `connect(url, { lazy: true })`, which the first request opens. Until
 * `isThereAtMs()`, an attempt to open it fails, or hangs until then.
 */
export function opensLate(
  world: World,
  process: SimulatedProcess,
  client: string,
  store: Store,
  isThereAtMs: () => number,
): Store {
  let attempts = 0;
  const open = (): Promise<Store> => {
    const chance = world.chance(`${client} opens its store, attempt ${++attempts}`);
    const thereAtMs = isThereAtMs();
    const fails = thereAtMs > world.nowMs && chance.unit() < 0.5;
    const endsAtMs = (fails ? world.nowMs : thereAtMs) + chance.unit() * OPENING_MS;
    return new Promise((resolve, reject) => {
      const end = fails ? () => reject(new Error("connection refused")) : () => resolve(store);
      world.at(endsAtMs, () => process.deliver(end));
    });
  };
  return lazyStore(store.traits, open);
}
