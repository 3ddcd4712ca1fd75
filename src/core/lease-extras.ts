import type { ReleaseResult } from "./lease.js";
import { LeaseListeners } from "./lease-listeners.js";
import type { RenewCalls } from "./renew-calls.js";

/** The parts of a lease that most leases never need: made when needed, so that ten thousand leases stay small. */
export class LeaseExtras extends LeaseListeners {
  /** Why the last renewal failed, if none has succeeded since. */
  failure: unknown = undefined;
  renewCalls: RenewCalls | null = null;
  releasing: Promise<ReleaseResult> | null = null;
  /** The time from which `maxHold` counts; null: from the grant. */
  holdFromMs: number | null = null;
  /** Whether the watchdog has stopped renewing the lease. */
  runsOut = false;
  /** Whether the lease was released before any work ran under it. */
  unused = false;
  /**
   * The longest ttl by which the store may still count, because no reply has confirmed the shorter one that was
   * sent.
   */
  longestTtlMs = 0;
  #beforeRelease: (() => void)[] | null = null;

  beforeRelease(listener: () => void): void {
    this.#beforeRelease ??= [];
    this.#beforeRelease.push(listener);
  }

  /** Calls each listener once, however often the lease is released. */
  notifyRelease(): void {
    const listeners = this.#beforeRelease;
    if (listeners === null) return;
    this.#beforeRelease = null;
    for (const listener of listeners) listener();
  }
}
