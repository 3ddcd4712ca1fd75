import { subscribe, unsubscribe } from "node:diagnostics_channel";
import type { EventName, Events } from "../core/events.js";

/** Subscriptions to events that end together. */
export class Listeners {
  readonly #ends: (() => void)[] = [];

  on<E extends EventName>(event: E, heard: (fields: Events[E]) => void): void {
    const listener = (fields: unknown): void => heard(fields as Events[E]);
    subscribe(`holdfast:${event}`, listener);
    this.#ends.push(() => unsubscribe(`holdfast:${event}`, listener));
  }

  stop(): void {
    for (const end of this.#ends.splice(0)) end();
  }
}
