import { AgendaEntry } from "./agenda.js";
import type { Requests } from "./requests.js";
import type { Runtime } from "./runtime.js";
import { RENEWALS_PER_TTL, type RenewAnswer, type Renewal } from "./store.js";

/** A lease or a waiter with a ticket: it must be renewed to stay alive. */
export abstract class Renewable extends AgendaEntry {
  /** Whether it is in the next batch of renewals. */
  isInBatch = false;
  /** The renewal to send, made at the moment of sending; null when the lease or the wait is over by then. */
  abstract renewal(sentAtMs: number): Renewal | null;
  abstract replied(reply: RenewAnswer, renewal: Renewal, sentAtMs: number): void;
}

/** Renewals in one request: large enough to be cheap, small enough not to block the store for long. */
const BATCH = 256;
/** Renewals fall due at a third of the ttl or a little earlier, together with others: eight times a period. */
const SLOTS_PER_TTL = 24;

/** Renews everything that one `Locks` keeps alive, in batches. */
export class Watchdog {
  readonly #requests: Requests;
  readonly #runtime: Runtime;
  /** A random offset, so that processes do not renew at the same moments. */
  readonly #phase: number;
  #due: Renewable[] = [];
  #sending = false;

  constructor(requests: Requests, runtime: Runtime) {
    this.#requests = requests;
    this.#runtime = runtime;
    this.#phase = runtime.random.unit();
  }

  /** When a lease or a ticket that was proved at `provedAtMs` is to be renewed. */
  dueAt(provedAtMs: number, ttlMs: number): number {
    const slotMs = ttlMs / SLOTS_PER_TTL;
    const latest = provedAtMs + ttlMs / RENEWALS_PER_TTL;
    return (Math.floor(latest / slotMs - this.#phase) + this.#phase) * slotMs;
  }

  /** Renews with the next batch: at the end of this turn of the agenda, or of this microtask. */
  renewSoon(one: Renewable): void {
    if (one.isInBatch) return;
    one.isInBatch = true;
    this.#due.push(one);
    if (this.#due.length === 1) queueMicrotask(() => this.sendDue());
  }

  sendDue(): void {
    if (this.#sending || this.#due.length === 0) return;
    this.#sending = true;
    try {
      this.#send(this.#due.splice(0, BATCH));
    } finally {
      this.#sending = false;
    }
    // Renews the rest in later turns: thousands of renewals must not block the event loop.
    if (this.#due.length > 0) this.#runtime.clock.after(0, () => this.sendDue());
  }

  #send(batch: readonly Renewable[]): void {
    const sentAtMs = this.#runtime.clock.elapsedMs();
    const sent: Renewable[] = [];
    const renewals: Renewal[] = [];
    for (const one of batch) {
      one.isInBatch = false;
      const renewal = one.renewal(sentAtMs);
      if (renewal === null) continue;
      sent.push(one);
      renewals.push(renewal);
    }
    if (renewals.length === 0) return;
    this.#requests.renew(renewals, (reply, i) => sent[i]!.replied(reply, renewals[i]!, sentAtMs));
  }
}
