/** Entries that were taken stay in the array until they are this many and half of it. */
const LEAST_TAKEN = 1_024;

/** A queue that is as fast when it is long: `Array.shift` moves all that is left. */
export class Fifo<T> {
  #entries: T[] = [];
  #taken = 0;

  get length(): number {
    return this.#entries.length - this.#taken;
  }

  /** The oldest entry; undefined if there is none. */
  get first(): T | undefined {
    return this.#entries[this.#taken];
  }

  add(entry: T): void {
    this.#entries.push(entry);
  }

  /** Removes the oldest entry. */
  take(): T | undefined {
    const { first } = this;
    if (this.length > 0) this.#taken++;
    if (this.length === 0 || (this.#taken > LEAST_TAKEN && this.#taken > this.length)) {
      this.#entries = this.#entries.slice(this.#taken);
      this.#taken = 0;
    }
    return first;
  }
}
