import { type Agenda, Entry } from "./agenda.js";
import { reasonOf, safeCause } from "./cause.js";
import { ClosedError, HoldfastError, StoreUnavailableError } from "./errors.js";
import type { Settings } from "./options.js";
import type { Runtime } from "./runtime.js";
import type { Awaitable, Release, ReleaseAnswer, Store } from "./store.js";
import type { Watchdog } from "./watchdog.js";

/** What a lease and a waiter need of the `Locks` that they belong to. */
export interface Context {
  readonly store: Store;
  readonly settings: Settings;
  readonly runtime: Runtime;
  readonly watchdog: Watchdog;
  readonly commands: Commands;
  /** Aborts when the `Locks` begins to close. */
  readonly closing: AbortSignal;
}

export type ReleaseOutcome = ReleaseAnswer | HoldfastError;

/** Commands to the store, each with a deadline of our own: a stopped server accepts and never answers. */
export class Commands {
  readonly #store: Store;
  readonly #settings: Settings;
  readonly #runtime: Runtime;
  readonly #watchdog: Watchdog;
  readonly #releasing = new Set<Promise<ReleaseOutcome>>();
  /** Gives up a command that was not answered yet. */
  readonly #pending = new Set<(error: HoldfastError) => void>();
  #closed = false;

  constructor(store: Store, settings: Settings, runtime: Runtime, watchdog: Watchdog) {
    this.#store = store;
    this.#settings = settings;
    this.#runtime = runtime;
    this.#watchdog = watchdog;
  }

  /**
   * The name under which the store knows it. A namespace has no colon, so no two pairs collide. A join
   * is one flat string; a template would be a rope, which some stores keep for as long as the lease.
   */
  key(name: string): string {
    return [this.#settings.namespace, name].join(":");
  }

  nameOf(key: string): string {
    return key.slice(this.#settings.namespace.length + 1);
  }

  /** Runs one command; whatever fails without saying that nothing happened is StoreUnavailableError. */
  async run<T>(what: string, command: () => Awaitable<T>): Promise<T> {
    try {
      const answer = command();
      if (!isPromise(answer)) return answer;
      return await new Promise<T>((answered, failed) => {
        this.#bound(what, answer, undefined, { answered, failed });
      });
    } catch (error) {
      throw this.unavailable(what, error);
    }
  }

  unavailable(what: string, failure: unknown): HoldfastError {
    const cause = safeCause(failure);
    if (HoldfastError.is(cause)) return cause;
    return new StoreUnavailableError(
      `the ${this.#store.traits.store} store failed to ${what}: ${reasonOf(cause)}`,
      { cause },
    );
  }

  noAnswer(what: string, ms: number): StoreUnavailableError {
    return new StoreUnavailableError(
      `the ${this.#store.traits.store} store gave no reply to the request to ${what} within ${Math.round(ms)} ms`,
    );
  }

  /**
   * Gives a grant or ticket back. An error is an answer here, not thrown: then the release is owed,
   * and tried again until the store has let it go by itself.
   */
  release(release: Release, ttlMs: number, timeoutMs?: number): Awaitable<ReleaseOutcome> {
    const failed = (error: unknown): HoldfastError => {
      const failure = this.unavailable("release", error);
      // What is refused for good is not owed: that would be asked for ever.
      if (failure.retryable) this.#owe(release, ttlMs);
      return failure;
    };
    const told = (answers: readonly ReleaseAnswer[]): ReleaseOutcome =>
      answerAt(answers, 0) ?? failed(new MissingAnswer());
    try {
      const answers = this.#store.release([release]);
      if (!isPromise(answers)) return told(answers);
      // Sent once, and not waited for: a store that hangs must not hold up anybody after the end.
      if (this.#closed) {
        answers.catch(() => {});
        return new ClosedError();
      }
      const outcome = new Promise<ReleaseOutcome>((resolve) => {
        const done = (how: ReleaseOutcome): void => {
          this.#releasing.delete(outcome);
          resolve(how);
        };
        this.#bound("release", answers, timeoutMs, {
          answered: (all) => done(told(all)),
          failed: (error) => done(failed(error)),
        });
      });
      this.#releasing.add(outcome);
      return outcome;
    } catch (error) {
      return failed(error);
    }
  }

  /** Waits for what is on its way, also if nobody else does. What is still owed after that is paid by its ttl. */
  async close(): Promise<void> {
    while (this.#releasing.size > 0) await Promise.all(this.#releasing);
    this.#closed = true;
    // An owed release may hang: its timer would outlive us.
    for (const giveUp of [...this.#pending]) giveUp(new ClosedError());
    const { agenda } = this.#watchdog;
    for (const entry of [...agenda.entries()]) agenda.remove(entry);
  }

  #owe(release: Release, ttlMs: number): void {
    if (this.#closed) return;
    const { clock, random } = this.#runtime;
    const untilMs =
      this.#store.traits.liveness === "session"
        ? Number.POSITIVE_INFINITY
        : clock.elapsedMs() + ttlMs;
    const owed = new OwedRelease(this.#watchdog.agenda, untilMs, {
      pauseMs: () => jittered(this.#settings.retry, random.unit()),
      pay: async () => {
        const answers = await this.run("release", () => this.#store.release([release]));
        if (answerAt(answers, 0) === undefined) throw new MissingAnswer();
      },
    });
    owed.begin(clock.elapsedMs());
  }

  /** Calls one of the two, within the time. */
  #bound<T>(
    what: string,
    answer: Promise<T>,
    timeoutMs = this.#settings.commandTimeoutMs,
    { answered, failed }: { answered(value: T): void; failed(error: unknown): void },
  ): void {
    let pending = true;
    const giveUp = (error: unknown): void => {
      if (ended()) failed(error);
    };
    const timer = this.#runtime.clock.after(timeoutMs, () =>
      giveUp(this.noAnswer(what, timeoutMs)),
    );
    timer.keepAlive(true);
    this.#pending.add(giveUp);
    const ended = (): boolean => {
      if (!pending) return false;
      pending = false;
      timer.cancel();
      this.#pending.delete(giveUp);
      return true;
    };
    answer.then((value) => {
      if (ended()) answered(value);
    }, giveUp);
  }
}

/** A deletion that could not be made: tried again, one at a time, while it can still matter. */
class OwedRelease extends Entry {
  readonly #agenda: Agenda;
  readonly #untilMs: number;
  readonly #how: { pauseMs(): number; pay(): Promise<unknown> };
  #paying = false;

  constructor(
    agenda: Agenda,
    untilMs: number,
    how: { pauseMs(): number; pay(): Promise<unknown> },
  ) {
    super();
    this.#agenda = agenda;
    this.#untilMs = untilMs;
    this.#how = how;
  }

  begin(nowMs: number): void {
    this.#agenda.set(this, nowMs + this.#how.pauseMs());
  }

  override wake(nowMs: number): void {
    if (nowMs >= this.#untilMs) return;
    this.begin(nowMs);
    if (this.#paying) return;
    this.#paying = true;
    this.#how.pay().then(
      () => this.#agenda.remove(this),
      (error: unknown) => {
        if (HoldfastError.is(error) && !error.retryable) this.#agenda.remove(this);
        else this.#paying = false;
      },
    );
  }
}

/** A batch was answered, and one of its requests was not: whether that one was done is unknown. */
export class MissingAnswer extends Error {
  constructor() {
    super("its reply has fewer answers than the batch had requests");
  }
}

/** The answer to one request of a batch; undefined if the reply is too short, or no list at all. */
export function answerAt<T>(answers: readonly T[], place: number): T | undefined {
  return Array.isArray(answers) ? answers[place] : undefined;
}

export function isPromise<T>(value: Awaitable<T>): value is Promise<T> {
  return typeof (value as Promise<T> | undefined)?.then === "function";
}

/** A pause, shortened by a random share of at most `jitter`. */
export function jittered(rule: { pauseMs: number; jitter: number }, unit: number): number {
  return rule.pauseMs * (1 - rule.jitter * unit);
}
