import { AsyncResource } from "node:async_hooks";
import { unlimitedController } from "./abort.js";
import type { LeaseLostError } from "./errors.js";
import { guarded } from "./events.js";
import type { LeaseEvents, ReleaseResult } from "./lease.js";
import type { RenewCalls } from "./renew-calls.js";

type Listeners = { [E in keyof LeaseEvents]?: Listening<E>[] };

interface Listening<E extends keyof LeaseEvents> {
  readonly listener: LeaseEvents[E];
  readonly caller: AsyncResource;
}

/**
 * The asynchronous context of the present call, for what it wants to be told later. All leases share one timer,
 * which would call it in the context of another caller, where it could join that caller's lease.
 */
const presentCaller = (): AsyncResource =>
  new AsyncResource("holdfast.lease", { requireManualDestroy: true });

/** The parts of a lease that most leases never need: made when needed, so that ten thousand leases stay small. */
export class LeaseExtras {
  /** Why the lease is lost. */
  error: LeaseLostError | null = null;
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
  #controller: AbortController | null = null;
  /** The first that has read the signal. */
  #signalCaller: AsyncResource | null = null;
  #listeners: Listeners | null = null;
  #beforeRelease: (() => void)[] | null = null;

  /** Made when first read; `findLoss` runs before, and may set `error`. */
  signal(findLoss: () => void): AbortSignal {
    if (this.#controller === null) {
      this.#controller = unlimitedController();
      this.#signalCaller = presentCaller();
      findLoss();
      if (this.error !== null) this.#controller.abort(this.error);
    }
    return this.#controller.signal;
  }

  abort(error: LeaseLostError): void {
    this.#signalCaller?.runInAsyncScope(() => this.#controller?.abort(error));
  }

  /** `lost`: the loss, if it has happened. A listener that comes after it is called in a microtask. */
  on<E extends keyof LeaseEvents>(
    event: E,
    listener: LeaseEvents[E],
    lost: LeaseLostError | null,
  ): void {
    this.#listeners ??= {};
    const all: Listening<E>[] = this.#listeners[event] ?? [];
    const added = { listener, caller: presentCaller() };
    all.push(added);
    this.#listeners[event] = all as Listeners[E];
    if (event !== "lost" || lost === null) return;
    queueMicrotask(() => {
      if (all.includes(added)) guarded(() => (listener as LeaseEvents["lost"])(lost));
    });
  }

  off<E extends keyof LeaseEvents>(event: E, listener: LeaseEvents[E]): void {
    const all: Listening<E>[] = this.#listeners?.[event] ?? [];
    const at = all.findIndex((one) => one.listener === listener);
    if (at !== -1) all.splice(at, 1);
  }

  notify<E extends keyof LeaseEvents>(event: E, ...args: Parameters<LeaseEvents[E]>): void {
    for (const { listener, caller } of [...(this.#listeners?.[event] ?? [])]) {
      guarded(() =>
        caller.runInAsyncScope(listener as (...args: unknown[]) => void, null, ...args),
      );
    }
  }

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
