import { unlimitedController } from "./abort.js";
import { LeaseLostError } from "./errors.js";
import type { Lease, LeaseState, ReleaseResult } from "./lease.js";
import type { ClaimMode } from "./store.js";

/** What `fn` gets when it runs without the lock: no lease, and it says so. Its token is below all others. */
export class UnprotectedLease implements Lease {
  readonly name: string;
  readonly holder: string;
  readonly mode: ClaimMode;
  readonly token = 0n;
  readonly floor = 0n;
  readonly permits = 1;
  readonly state: LeaseState = "lost";
  readonly remainingMs = 0;
  /** There is nothing to lose: it never aborts. */
  readonly signal: AbortSignal = unlimitedController().signal;
  readonly #cause: Error;

  constructor(of: { name: string; holder: string; mode: ClaimMode }, cause: Error) {
    this.name = of.name;
    this.holder = of.holder;
    this.mode = of.mode;
    this.#cause = cause;
  }

  assertHeld(): void {
    throw new LeaseLostError(this, "expired", {
      detail: 'it never was one: the store was unavailable, and onUnavailable is "run"',
      cause: this.#cause,
    });
  }

  on(): this {
    return this;
  }

  off(): this {
    return this;
  }

  async renew(): Promise<void> {
    this.assertHeld();
  }

  async release(): Promise<ReleaseResult> {
    return "lost";
  }

  async [Symbol.asyncDispose](): Promise<void> {}

  toJSON(): ReturnType<Lease["toJSON"]> {
    const { name, holder, mode } = this;
    return { name, token: "0", floor: "0", holder, mode };
  }
}
