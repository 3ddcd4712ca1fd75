import { onAbort } from "./abort.js";
import type { Context } from "./context.js";
import {
  AcquireTimeoutError,
  type HoldfastError,
  InvalidArgumentError,
  QueueFullError,
  StoreUnavailableError,
} from "./errors.js";
import { type AcquireFields, type Events, emit } from "./events.js";
import type { HeldLease } from "./held-lease.js";
import type { Call } from "./settings.js";
import {
  type Claim,
  type ClaimAnswer,
  type Grant,
  LOCK_LIMIT,
  modeOf,
  type Position,
} from "./store.js";

export type NotGranted = Events["not-granted"]["reason"];

/** Why a name is not free, as the store last replied. */
export interface Busy {
  readonly name: string;
  readonly holder: string | null;
  readonly freeInMs: number;
}

const BEGUN = Symbol.for("holdfast.acquires");
const thread = globalThis as { [BEGUN]?: { count: number } };
thread[BEGUN] ??= { count: 0 };
/** Acquires that have begun in this thread, in all copies of Holdfast: they publish on the same channels. */
const begun = thread[BEGUN];

/** One call of `acquire` as its caller sees it: the promise, the caller's signal, events and errors. */
export class Acquisition {
  readonly names: readonly string[];
  readonly call: Call;
  readonly startedAtMs: number;
  readonly context: Context;
  /** The number of its first name, for events; those of the others follow. */
  readonly id: number;
  #busy: Busy | null = null;
  isOver = false;
  /** One lease for each name once granted. */
  leases: readonly HeldLease[] | null = null;
  #error: { readonly value: unknown } | null = null;
  #resolve: ((leases: readonly HeldLease[] | null) => void) | null = null;
  #reject: ((error: unknown) => void) | null = null;
  #ignoreSignal: (() => void) | null = null;

  constructor(context: Context, names: readonly string[], call: Call) {
    this.context = context;
    this.names = names;
    this.call = call;
    this.id = begun.count + 1;
    begun.count += names.length;
    this.startedAtMs = context.runtime.clock.elapsedMs();
  }

  /** Whether the caller claims only once: a busy name ends the call, without a ticket and without polls. */
  get claimsOnce(): boolean {
    return this.call.waitMs === 0 || this.names.length > 1;
  }

  get endsAtMs(): number {
    const { waitMs } = this.call;
    return waitMs > 0 ? this.startedAtMs + waitMs : Number.POSITIVE_INFINITY;
  }

  get busy(): Busy {
    return this.#busy ?? { name: this.names[0]!, holder: null, freeInMs: 0 };
  }

  setBusy({ holder, freeInMs }: Position, name = this.names[0]!): void {
    this.#busy = { name, holder, freeInMs };
  }

  toClaim(grantId: string, seq: number): Claim {
    const { requests, settings } = this.context;
    const { permits, limit, ttlMs, atLeastMs, holder } = this.call;
    return {
      names: this.names.map((name) => requests.toStoreName(name)),
      grantId,
      seq,
      permits,
      limit,
      ttlMs,
      atLeastMs,
      holder,
      queue: !this.claimsOnce,
      driftFactor: settings.driftFactor,
    };
  }

  /** The result, if the acquire has already ended: a store in this process replies at once. */
  result(): readonly HeldLease[] | null {
    if (this.#error !== null) throw this.#error.value;
    return this.leases;
  }

  /** Calls `aborted` when the caller's signal aborts, or at once if it has already aborted. */
  wait(aborted: (reason: unknown) => void): Promise<readonly HeldLease[] | null> {
    const { signal } = this.call;
    const waiting = new Promise<readonly HeldLease[] | null>((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.context.agenda.addPending(1);
    if (signal !== undefined) {
      const abort = (): void => aborted(signal.reason);
      this.#ignoreSignal = onAbort(signal, abort);
      // A subscriber of the event `asked` may have aborted it.
      if (signal.aborted) abort();
    }
    return waiting;
  }

  /** Ends the wait. `resolve` or `reject` settles the promise. */
  end(reason: NotGranted | null): void {
    this.isOver = true;
    if (reason !== null) this.emitNotGranted(reason);
    if (this.#resolve === null) return;
    this.context.agenda.addPending(-1);
    this.#ignoreSignal?.();
  }

  succeed(leases: readonly HeldLease[], grants: readonly Grant[]): void {
    this.leases = leases;
    // The wait ends first, because a subscriber of `granted` may abort the signal.
    this.end(null);
    this.resolve();
    for (const [i, { token, holder }] of leases.entries()) {
      const { handedOver } = grants[i]!;
      emit("granted", this.context.settings.logger, () => {
        return { ...this.#fields(i), token, holder, waitMs: this.#waitedMs(), handedOver };
      });
    }
  }

  resolve(): void {
    this.#resolve?.(this.leases);
  }

  reject(error: unknown): void {
    this.#error = { value: error };
    this.#reject?.(error);
  }

  emitAsked(): void {
    const { holder, limit, permits } = this.call;
    for (const i of this.names.keys()) {
      emit("asked", this.context.settings.logger, () => ({
        ...this.#fields(i),
        holder,
        // An exclusive holder takes the whole limit: a number that no caller has chosen.
        permits: limit === LOCK_LIMIT ? 1 : permits,
      }));
    }
  }

  emitNotGranted(reason: NotGranted): void {
    for (const i of this.names.keys()) {
      emit("not-granted", this.context.settings.logger, () => {
        const { holder } = this.call;
        return { ...this.#fields(i), holder, waitMs: this.#waitedMs(), reason };
      });
    }
  }

  refusal(reply: Extract<ClaimAnswer, { kind: "mismatch" | "full" }>, name: string): HoldfastError {
    return reply.kind === "full"
      ? new QueueFullError(name, reply.waiting)
      : limitMismatch(name, this.call.limit, reply.limit);
  }

  /** Called after the end. `failure`: why the store could not be used then; null if the name was busy. */
  rejectTimedOut(failure: HoldfastError | null): void {
    this.emitNotGranted(failure === null ? "timeout" : "unavailable");
    this.reject(failure === null ? this.timeoutError() : this.outageError(failure));
  }

  timeoutError(): AcquireTimeoutError {
    return new AcquireTimeoutError(this.busy.name, this.call.waitMs, this.busy.holder);
  }

  /** For a wait that ended while the store could not be used: never an `AcquireTimeoutError`. */
  outageError(cause: HoldfastError): StoreUnavailableError {
    return new StoreUnavailableError(
      `waited ${Math.round(this.call.waitMs)} ms for ${this.#quotedNames}; when the wait ended, the store was not available: ${cause.message}`,
      { cause },
    );
  }

  expiredGrantError(): StoreUnavailableError {
    return new StoreUnavailableError(
      `the reply that granted ${this.#quotedNames} came after its ttl of ${this.call.ttlMs} ms; use a longer ttl`,
    );
  }

  #fields(index: number): AcquireFields {
    const { store } = this.context.store.traits;
    return { id: this.id + index, store, name: this.names[index]!, mode: modeOf(this.call) };
  }

  get #quotedNames(): string {
    return this.names.map((name) => JSON.stringify(name)).join(", ");
  }

  #waitedMs(): number {
    return this.context.runtime.clock.elapsedMs() - this.startedAtMs;
  }
}

/** The name is in use with another limit than the one that was requested. */
export function limitMismatch(
  name: string,
  requested: number,
  stored: number,
): InvalidArgumentError {
  const kind = (limit: number): string =>
    limit === LOCK_LIMIT ? "a lock" : `a semaphore of ${limit} permits`;
  return new InvalidArgumentError(
    `${JSON.stringify(name)} is in use as ${kind(stored)} and can't be taken as ${kind(requested)}; ` +
      (stored === LOCK_LIMIT || requested === LOCK_LIMIT
        ? "use another name"
        : "use the same number everywhere, or change it with resize"),
  );
}
