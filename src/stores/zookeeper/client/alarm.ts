import { AgendaEntry } from "../../../core/agenda.js";

/** Calls a function at a time of the agenda. */
export class Alarm extends AgendaEntry {
  readonly #ring: () => void;

  constructor(ring: () => void) {
    super();
    this.#ring = ring;
  }

  /**
   * Rings after the data that has arrived is read: a stalled process must not take its own silence for the server's.
   */
  static afterInput(ring: () => void): Alarm {
    const alarm = new Alarm(() =>
      setImmediate(() => {
        // The bytes that were read may have set it to another time.
        if (alarm.heapIndex === -1) ring();
      }),
    );
    return alarm;
  }

  wake(): void {
    this.#ring();
  }
}
