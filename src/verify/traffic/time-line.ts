import type { Event, History } from "../check/history.js";

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

  /** In order of time: reports of several processes arrive as they please. */
  history(): History {
    return this.#events.toSorted((a, b) => a.atMs - b.atMs);
  }
}
