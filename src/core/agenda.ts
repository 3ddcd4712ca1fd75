import { type Clock, isLate, type Timer } from "./clock.js";
import { publish } from "./events.js";
import type { Grace } from "./grace.js";
import type { Awaitable } from "./store.js";

/** Something that is woken at a time: a lease, a waiter, an owed release. */
export abstract class AgendaEntry {
  /** On the clock's `elapsedMs`. */
  wakeAt = Number.POSITIVE_INFINITY;
  /** -1 when not on the agenda. */
  heapIndex = -1;

  abstract wake(nowMs: number): void;

  /** Called when its `Locks` closes; most entries have nothing to do. */
  close(_grace: Grace): Awaitable<void> {}
}

/** At most this many entries are woken in one turn of the event loop, so that thousands of leases do not block it. */
const WAKES_PER_TURN = 500;
/** A timer stands still while the machine sleeps, and elapsed time does not: check at least this often. */
const LONGEST_SLEEP_MS = 250;

/** One timer for all entries: a binary heap by time, in which every entry knows its index. */
export class Agenda {
  readonly #clock: Clock;
  readonly #afterTurn: () => void;
  readonly #heap: AgendaEntry[] = [];
  #timer: Timer | null = null;
  #timerAt = Number.POSITIVE_INFINITY;
  #pending = 0;
  #turning = false;

  /** `afterTurn` runs after the entries that were due together. */
  constructor(clock: Clock, afterTurn: () => void) {
    this.#clock = clock;
    this.#afterTurn = afterTurn;
  }

  entries(): readonly AgendaEntry[] {
    return this.#heap;
  }

  /** Adds the entry, or moves it to another time. */
  set(entry: AgendaEntry, wakeAt: number): void {
    const before = entry.wakeAt;
    entry.wakeAt = wakeAt;
    if (entry.heapIndex === -1) {
      entry.heapIndex = this.#heap.length;
      this.#heap.push(entry);
      this.#up(entry);
    } else if (wakeAt < before) this.#up(entry);
    else this.#down(entry);
    this.#arm();
  }

  remove(entry: AgendaEntry): void {
    if (entry.heapIndex === -1) return;
    const last = this.#heap.pop()!;
    if (last !== entry) {
      last.heapIndex = entry.heapIndex;
      this.#heap[last.heapIndex] = last;
      this.#up(last);
      this.#down(last);
    }
    entry.heapIndex = -1;
    this.#arm();
  }

  clear(): void {
    for (const entry of [...this.#heap]) this.remove(entry);
  }

  /** While an acquire is pending the timer keeps the process alive, or it would end in the middle of an `await`. */
  addPending(count: 1 | -1): void {
    this.#pending += count;
    this.#timer?.keepAlive(this.#pending > 0);
  }

  #arm(): void {
    if (this.#turning) return;
    const next = this.#heap[0]?.wakeAt ?? Number.POSITIVE_INFINITY;
    // A timer that is early is left alone: it fires, finds nothing due and is armed again.
    if (this.#timer !== null && next >= this.#timerAt && this.#heap.length > 0) return;
    this.#timer?.cancel();
    this.#timer = null;
    if (next === Number.POSITIVE_INFINITY) return;
    const nowMs = this.#clock.elapsedMs();
    this.#timerAt = Math.min(next, nowMs + LONGEST_SLEEP_MS);
    this.#timer = this.#clock.after(this.#timerAt - nowMs, () => this.#turn());
    if (this.#pending > 0) this.#timer.keepAlive(true);
  }

  #turn(): void {
    this.#timer = null;
    this.#turning = true;
    try {
      const nowMs = this.#clock.elapsedMs();
      const dueAtMs = this.#timerAt;
      if (isLate(dueAtMs, nowMs)) publish("stalled", () => ({ lateMs: nowMs - dueAtMs }));
      for (let woken = 0; woken < WAKES_PER_TURN; woken++) {
        const first = this.#heap[0];
        if (first === undefined || first.wakeAt > nowMs) break;
        this.remove(first);
        first.wake(nowMs);
      }
      this.#afterTurn();
    } finally {
      this.#turning = false;
      this.#arm();
    }
  }

  #up(entry: AgendaEntry): void {
    while (entry.heapIndex > 0) {
      const parent = this.#heap[(entry.heapIndex - 1) >> 1]!;
      if (parent.wakeAt <= entry.wakeAt) return;
      this.#swap(entry, parent);
    }
  }

  #down(entry: AgendaEntry): void {
    for (;;) {
      let child = this.#heap[2 * entry.heapIndex + 1];
      const right = this.#heap[2 * entry.heapIndex + 2];
      if (right !== undefined && right.wakeAt < child!.wakeAt) child = right;
      if (child === undefined || child.wakeAt >= entry.wakeAt) return;
      this.#swap(entry, child);
    }
  }

  #swap(one: AgendaEntry, other: AgendaEntry): void {
    const index = one.heapIndex;
    one.heapIndex = other.heapIndex;
    other.heapIndex = index;
    this.#heap[one.heapIndex] = one;
    this.#heap[index] = other;
  }
}
