import type { LeaseLostError } from "./errors.js";
import type { Lease, LeaseEvents, LeaseState, ReleaseResult } from "./lease.js";
import { LEASE_EVENTS, LeaseListeners } from "./lease-listeners.js";
import { CLAIM, claimOf } from "./proved-grant.js";
import type { SequencerOptions } from "./sequencer.js";
import type { ClaimMode } from "./store.js";
import type { Duration } from "./validate.js";

/**
 * A lease as one of several callers gets it. It has a signal and listeners of its own, because those of the shared
 * lease would run in another caller's asynchronous context, where they could join that caller's lease.
 */
export class LeaseView implements Lease {
  readonly #lease: Lease;
  /** Made when first needed: most views are never listened to. */
  #own: LeaseListeners | null = null;
  #relays: LeaseEvents | null = null;

  constructor(lease: Lease) {
    this.#lease = lease;
  }

  get name(): string {
    return this.#lease.name;
  }

  get token(): bigint {
    return this.#lease.token;
  }

  get floor(): bigint {
    return this.#lease.floor;
  }

  get holder(): string {
    return this.#lease.holder;
  }

  get mode(): ClaimMode {
    return this.#lease.mode;
  }

  get permits(): number {
    return this.#lease.permits;
  }

  get state(): LeaseState {
    return this.#lease.state;
  }

  get remainingMs(): number {
    return this.#lease.remainingMs;
  }

  get signal(): AbortSignal {
    return this.#listeners().signal(() => this.#lease.state);
  }

  assertHeld(): void {
    this.#lease.assertHeld();
  }

  [CLAIM](): ReturnType<typeof claimOf> {
    return claimOf(this.#lease);
  }

  on<E extends keyof LeaseEvents>(event: E, listener: LeaseEvents[E]): this {
    const own = this.#listeners();
    own.on(event, listener, own.error);
    return this;
  }

  off<E extends keyof LeaseEvents>(event: E, listener: LeaseEvents[E]): this {
    this.#own?.off(event, listener);
    return this;
  }

  renew(ttl?: Duration): Promise<void> {
    return this.#lease.renew(ttl);
  }

  release(): Promise<ReleaseResult> {
    return this.#lease.release();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  sequencer(options?: SequencerOptions): string {
    return this.#lease.sequencer(options);
  }

  toJSON(): ReturnType<Lease["toJSON"]> {
    return this.#lease.toJSON();
  }

  /** The work of its caller is over. With `ended`, it ends as a loss: this one, unless the lease was lost before. */
  unlisten(ended: LeaseLostError | null = null): void {
    const loss = ended && (lossOf(this.#lease) ?? ended);
    // Listeners that come later must not be added to the lease.
    this.#own ??= new LeaseListeners();
    const relays = this.#relays;
    this.#relays = null;
    if (relays !== null) for (const event of LEASE_EVENTS) this.#lease.off(event, relays[event]);
    if (loss !== null && this.#own.error === null) this.#own.lose(loss);
  }

  #listeners(): LeaseListeners {
    if (this.#own !== null) return this.#own;
    const own = new LeaseListeners();
    this.#own = own;
    own.error = lossOf(this.#lease);
    if (own.error !== null) return own;
    const relays: LeaseEvents = {
      jeopardy: (cause) => own.notify("jeopardy", cause),
      recovered: () => own.notify("recovered"),
      lost: (error) => own.lose(error),
    };
    this.#relays = relays;
    for (const event of LEASE_EVENTS) this.#lease.on(event, relays[event]);
    return own;
  }
}

function lossOf(lease: Lease): LeaseLostError | null {
  if (lease.state !== "lost") return null;
  try {
    lease.assertHeld();
    return null;
  } catch (error) {
    return error as LeaseLostError;
  }
}
