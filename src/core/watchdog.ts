import { Agenda, Entry } from "./agenda.js";
import { answerAt, isPromise, MissingAnswer } from "./commands.js";
import type { Runtime } from "./runtime.js";
import { RENEWALS_PER_TTL, type RenewAnswer, type Renewal, type Store } from "./store.js";

/** A lease or a ticket: what has to be renewed to stay alive. */
export abstract class Kept extends Entry {
  /** In line for the next batch. */
  due = false;
  /** What to send, called at the moment of sending; null when it is over by then. */
  abstract renewal(sentAtMs: number): Renewal | null;
  abstract answered(answer: RenewAnswer, renewal: Renewal, sentAtMs: number): void;
}

/** Items in one command: large enough to be cheap, small enough not to block anybody for long. */
const BATCH = 256;
/** Renewals fall due at a third of the ttl or a little earlier, together with others: eight times a period. */
const SLOTS_PER_TTL = 24;

/** Renews everything that one `Locks` keeps alive, in batches. */
export class Watchdog {
  readonly agenda: Agenda;
  readonly #store: Store;
  readonly #runtime: Runtime;
  /** Shifts this process's slots against those of others. */
  readonly #phase: number;
  #due: Kept[] = [];
  #flushing = false;

  constructor(store: Store, runtime: Runtime) {
    this.#store = store;
    this.#runtime = runtime;
    this.#phase = runtime.random.unit();
    this.agenda = new Agenda(runtime.clock, () => this.#flush());
  }

  /** When something proved at `provedAtMs` is to be renewed. */
  dueAt(provedAtMs: number, ttlMs: number): number {
    const slotMs = ttlMs / SLOTS_PER_TTL;
    const latest = provedAtMs + ttlMs / RENEWALS_PER_TTL;
    return (Math.floor(latest / slotMs - this.#phase) + this.#phase) * slotMs;
  }

  /** Goes with the next batch: at the end of this turn of the agenda, or of this microtask. */
  renewSoon(kept: Kept): void {
    if (kept.due) return;
    kept.due = true;
    this.#due.push(kept);
    if (this.#due.length === 1) queueMicrotask(() => this.#flush());
  }

  #flush(): void {
    if (this.#flushing || this.#due.length === 0) return;
    this.#flushing = true;
    try {
      this.#send(this.#due.splice(0, BATCH));
    } finally {
      this.#flushing = false;
    }
    // The rest in later turns: thousands of renewals must not block the event loop.
    if (this.#due.length > 0) this.#runtime.clock.after(0, () => this.#flush());
  }

  #send(batch: readonly Kept[]): void {
    const sentAtMs = this.#runtime.clock.elapsedMs();
    const kept: Kept[] = [];
    const renewals: Renewal[] = [];
    for (const one of batch) {
      one.due = false;
      const renewal = one.renewal(sentAtMs);
      if (renewal === null) continue;
      kept.push(one);
      renewals.push(renewal);
    }
    if (renewals.length === 0) return;
    const answered = (answers: readonly RenewAnswer[]): void => {
      kept.forEach((one, i) => {
        const answer = answerAt(answers, i) ?? { kind: "unknown", cause: new MissingAnswer() };
        one.answered(answer, renewals[i]!, sentAtMs);
      });
    };
    const failed = (cause: unknown): void => {
      answered(kept.map(() => ({ kind: "unknown", cause })));
    };
    // No timeout here: a batch that hangs is noticed by each lease's own patience, and a late answer still counts.
    try {
      const answers = this.#store.renew(renewals);
      if (isPromise(answers)) answers.then(answered, failed);
      else answered(answers);
    } catch (cause) {
      failed(cause);
    }
  }
}
