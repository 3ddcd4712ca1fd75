import type { Event, History, OpId } from "../check/history.js";

/** The machine's monotonic clock: the same for all processes of this machine. */
export const machineMs = (): number => Number(process.hrtime.bigint()) / 1e6;

/** An event without its time, kind by kind. */
export type EventWithoutTime<E extends Event = Event> = E extends unknown ? Omit<E, "atMs"> : never;

/** Where all that is seen of a run comes together: what workers report, and what is done to them. */
export class TimeLine {
  readonly #events: Event[] = [];

  add(event: Event): void {
    this.#events.push(event);
  }

  now(event: EventWithoutTime): void {
    this.#events.push({ atMs: machineMs(), ...event } as Event);
  }

  /** Who said that it was granted the name with this token. */
  opOf(name: string, token: bigint): OpId | undefined {
    const ofName = new Set<OpId>();
    for (const event of this.#events) {
      if (event.kind === "asked" && event.name === name) ofName.add(event.op);
      if (event.kind === "granted" && event.token === token && ofName.has(event.op)) {
        return event.op;
      }
    }
    return undefined;
  }

  /** As they came, so far. */
  get events(): History {
    return this.#events;
  }

  /** In order of time: reports of several processes arrive as they please. */
  history(): History {
    return this.#events.toSorted((a, b) => a.atMs - b.atMs);
  }
}
