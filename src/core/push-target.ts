import type { HeldLease } from "./held-lease.js";
import type { Push } from "./store.js";

/**
 * Passes a store's pushes to the waiter, and after the grant to the leases: a store may keep `push` as long as they
 * live, and the waiter is several times as large.
 */
export class PushTarget {
  #waiter: ((push: Push) => void) | null;
  #leases: readonly HeldLease[] = [];

  constructor(waiter: (push: Push) => void) {
    this.#waiter = waiter;
  }

  readonly push = (push: Push): void => {
    this.#waiter?.(push);
    if (push.kind !== "lost") return;
    // The message may be about a former grant: a renewal shows whether the lease is lost.
    for (const lease of this.#leases) lease.renewNow();
  };

  granted(leases: readonly HeldLease[]): void {
    this.#waiter = null;
    this.#leases = leases;
  }
}
