import type { Event, History, OpId } from "../check/history.js";

/** The machine's monotonic clock: the same for all processes of this machine. */
export const machineMs = (): number => Number(process.hrtime.bigint()) / 1e6;

/** An event without its time, kind by kind. */
export type EventWithoutTime<E extends Event = Event> = E extends unknown ? Omit<E, "atMs"> : never;

/** Collects the events of a run: the reports of workers, and the faults and interventions. */
export class TimeLine {
  readonly #events: Event[] = [];

  /** Adds an event that has its time already. */
  add(event: Event): void {
    this.#events.push(event);
  }

  /** Adds an event that happens at this moment. */
  now(event: EventWithoutTime): void {
    this.#events.push({ atMs: machineMs(), ...event } as Event);
  }

  /** The op that reported a grant of the name with this token. */
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

  /** The events so far, in the order of their arrival. */
  get events(): History {
    return this.#events;
  }

  /** The events in order of time: reports of several processes arrive in any order. */
  history(): History {
    return this.#events.toSorted((a, b) => a.atMs - b.atMs);
  }
}
