import { type Agenda, AgendaEntry } from "./agenda.js";
import { type Clock, isLate } from "./clock.js";
import { type Command, type Events, publish } from "./events.js";
import { LAST_REPLY_MS } from "./reply-timeout.js";

/** Publishes one event `request`, when the request has its reply or its timeout, whichever is first. */
export class TimedRequest extends AgendaEntry {
  readonly #agenda: Agenda;
  readonly #clock: Clock;
  readonly #about: { readonly store: string; readonly command: Command };
  readonly #ended: (request: TimedRequest) => void;
  readonly #sentAtMs: number;
  #hasEnded = false;

  /** `ended`: called once, before the event. */
  constructor(
    agenda: Agenda,
    clock: Clock,
    about: { store: string; command: Command },
    ended: (request: TimedRequest) => void,
  ) {
    super();
    this.#agenda = agenda;
    this.#clock = clock;
    this.#about = about;
    this.#ended = ended;
    this.#sentAtMs = clock.elapsedMs();
  }

  /** A client without a timeout of its own never settles while its server is silent. */
  limit(timeoutMs: number): void {
    this.#agenda.set(this, this.#sentAtMs + timeoutMs);
  }

  override wake(nowMs: number): void {
    if (isLate(this.wakeAt, nowMs)) this.#agenda.set(this, nowMs + LAST_REPLY_MS);
    else this.end("timeout");
  }

  end(outcome: Events["request"]["outcome"]): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.#agenda.remove(this);
    this.#ended(this);
    publish("request", () => {
      return { ...this.#about, ms: this.#clock.elapsedMs() - this.#sentAtMs, outcome };
    });
  }
}
