import { InvalidArgumentError } from "../../../core/errors.js";
import { guarded } from "../../../core/events.js";
import { checkOneOf, show } from "../../../core/validate.js";
import type { ConnectionInfo, Reply, ZooKeeperError } from "./errors.js";

/**
 * The events of a client. `lost` and `closed` are the last ones. Listeners are called at once, in the
 * order in which they were added; an error that one throws is an uncaught exception.
 */
export interface ZooKeeperEvents {
  /** The session has begun. */
  connected(connection: ConnectionInfo): void;
  /** The server is silent or gone. The session may still live: other servers are tried. */
  suspended(reason: ZooKeeperError): void;
  /** The same session goes on. Watches are set again, but persistent ones have missed all changes in between. */
  reconnected(connection: ConnectionInfo): void;
  /** The session has expired, or must be treated so: nothing was answered for its whole timeout. */
  lost(reason: ZooKeeperError): void;
  /** `close()` was called and is done. */
  closed(): void;
  /** A request or a ping was answered. Called before the promise of the request runs its callbacks. */
  replied(reply: Reply): void;
}

const EVENTS = ["connected", "suspended", "reconnected", "lost", "closed", "replied"] as const;

/** The listeners of a client's events. */
export class Listeners {
  readonly #listeners = new Map<keyof ZooKeeperEvents, Set<(...args: never[]) => void>>();

  on<E extends keyof ZooKeeperEvents>(event: E, listener: ZooKeeperEvents[E]): void {
    checkOneOf(event, "the event", EVENTS);
    checkListener(listener);
    const listeners = this.#listeners.get(event) ?? new Set();
    this.#listeners.set(event, listeners.add(listener));
  }

  off<E extends keyof ZooKeeperEvents>(event: E, listener: ZooKeeperEvents[E]): void {
    this.#listeners.get(event)?.delete(listener);
  }

  emit<E extends keyof ZooKeeperEvents>(event: E, ...args: Parameters<ZooKeeperEvents[E]>): void {
    const listeners = this.#listeners.get(event);
    if (listeners === undefined) return;
    for (const listener of [...listeners]) {
      guarded(() => (listener as (...all: unknown[]) => void)(...args));
    }
  }
}

/** Throws `InvalidArgumentError` unless it is a function. */
export function checkListener(listener: unknown): void {
  if (typeof listener === "function") return;
  throw new InvalidArgumentError(`the listener is ${show(listener)}; it must be a function`);
}
