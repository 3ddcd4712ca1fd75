import type { Store } from "../../core/store.js";
import { delegate } from "../../testing/delegate.js";

/** A store without pushes, so its waiters poll. `queues: false`: it keeps no tickets either. */
export function polledStore(store: Store, { queues }: { readonly queues: boolean }): Store {
  return {
    ...delegate(store),
    traits: { ...store.traits, waiting: "polled", fair: queues },
    claim: (claim) => store.claim({ ...claim, queue: queues && claim.queue }, () => {}),
  };
}
