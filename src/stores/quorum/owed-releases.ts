import type { Clock, Timer } from "../../core/clock.js";

const RETRY_MS = { first: 100, most: 2_000 };
/** The number of releases that are repeated. The others wait until the node answers one of these. */
const MOST_REPEATED = 100;
/** Releases beyond this number are left to expire. The first ones count most: the node may have their records. */
const MOST_WAITING = 10_000;

interface Owed<T> {
  readonly release: T;
  readonly pauseMs: number;
}

/**
 * The releases that one node did not answer. While it is away, a few of them are repeated: all of them would take
 * the whole time of a busy process.
 */
export class OwedReleases<T extends { readonly untilMs: number }> {
  readonly #clock: Clock;
  readonly #send: (release: T, answered: (hasAnswered: boolean) => void) => void;
  /** The releases that are repeated next, each of which can be sent at once. */
  readonly #timers = new Map<Timer, Owed<T>>();
  readonly #waiting = new Set<T>();
  /** How many releases are repeated: with a timer, or sent and without an answer. */
  #repeated = 0;

  /** `send` calls `answered` once; with false, if the release has to be repeated. */
  constructor(clock: Clock, send: (release: T, answered: (hasAnswered: boolean) => void) => void) {
    this.#clock = clock;
    this.#send = send;
  }

  add(release: T): void {
    if (this.#repeated < MOST_REPEATED) this.#sendLater({ release, pauseMs: RETRY_MS.first });
    else if (this.#waiting.size < MOST_WAITING) this.#waiting.add(release);
  }

  /** Sends all at once. */
  sendAll(): void {
    for (const [timer, owed] of this.#timers) {
      timer.cancel();
      this.#timers.delete(timer);
      this.#sendNow(owed);
    }
    for (const release of this.#waiting) {
      this.#waiting.delete(release);
      this.#repeated++;
      this.#sendNow({ release, pauseMs: RETRY_MS.first });
    }
  }

  clear(): void {
    for (const timer of this.#timers.keys()) timer.cancel();
    this.#repeated -= this.#timers.size;
    this.#timers.clear();
    this.#waiting.clear();
  }

  #sendLater(owed: Owed<T>): void {
    const { release, pauseMs } = owed;
    if (this.#clock.elapsedMs() + pauseMs >= release.untilMs) return;
    this.#repeated++;
    const timer = this.#clock.after(pauseMs, () => {
      this.#timers.delete(timer);
      this.#sendNow(owed);
    });
    this.#timers.set(timer, owed);
  }

  #sendNow({ release, pauseMs }: Owed<T>): void {
    this.#send(release, (hasAnswered) => {
      this.#repeated--;
      const nextPauseMs = Math.min(2 * pauseMs, RETRY_MS.most);
      if (!hasAnswered) this.#sendLater({ release, pauseMs: nextPauseMs });
      for (const next of this.#waiting) {
        if (this.#repeated >= MOST_REPEATED) break;
        this.#waiting.delete(next);
        this.#sendLater({ release: next, pauseMs: hasAnswered ? 0 : RETRY_MS.first });
      }
    });
  }
}
