import { AsyncResource } from "node:async_hooks";
import { unlimitedController } from "./abort.js";
import { InvalidArgumentError, type LeaseLostError } from "./errors.js";
import { guarded } from "./events.js";
import type { LeaseEvents } from "./lease.js";
import { checkOneOf, show } from "./validate.js";

/** The events of `lease.on`. */
export const LEASE_EVENTS = ["jeopardy", "recovered", "lost"] as const;

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

/** The signal of a lease and the listeners of its events, each in the asynchronous context of its caller. */
export class LeaseListeners {
  /** Why the lease is lost. */
  error: LeaseLostError | null = null;
  #controller: AbortController | null = null;
  /** The first that has read the signal. */
  #signalCaller: AsyncResource | null = null;
  #listeners: Listeners | null = null;

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

  /**
   * `lost`: the loss, if it has happened. A listener that comes after it is called in a microtask. Throws
   * InvalidArgumentError for another event, and unless the listener is a function.
   */
  on<E extends keyof LeaseEvents>(
    event: E,
    listener: LeaseEvents[E],
    lost: LeaseLostError | null,
  ): void {
    checkOneOf(event, "the event", LEASE_EVENTS);
    if (typeof listener !== "function") {
      throw new InvalidArgumentError(`the listener is ${show(listener)}; it must be a function`);
    }
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

  /** Aborts the signal, and then notifies the listeners. */
  lose(error: LeaseLostError): void {
    this.error = error;
    this.#signalCaller?.runInAsyncScope(() => this.#controller?.abort(error));
    this.notify("lost", error);
  }
}
