import { type Agenda, AgendaEntry } from "./agenda.js";
import { HoldfastError } from "./errors.js";

interface Sending {
  /** The pause before the next attempt. */
  pauseMs(): number;
  send(): Promise<unknown>;
  /** Nothing is owed any more. */
  ended(): void;
}

/** A release whose outcome is unknown: repeated, one attempt at a time, while it can still matter. */
export class OwedRelease extends AgendaEntry {
  readonly #agenda: Agenda;
  #untilMs: number;
  readonly #sending: Sending;
  #inFlight = false;
  /**
   * Whether the same release has failed again since the attempt in flight was sent, whose reply does not settle it
   * then.
   */
  #again = false;

  constructor(agenda: Agenda, untilMs: number, sending: Sending) {
    super();
    this.#agenda = agenda;
    this.#untilMs = untilMs;
    this.#sending = sending;
  }

  schedule(nowMs: number): void {
    this.#agenda.set(this, nowMs + this.#sending.pauseMs());
  }

  /** Called when the same release has failed again. */
  oweAgain(untilMs: number): void {
    this.#untilMs = Math.max(this.#untilMs, untilMs);
    this.#again = this.#inFlight;
  }

  override wake(nowMs: number): void {
    if (nowMs >= this.#untilMs) {
      this.#end();
      return;
    }
    this.schedule(nowMs);
    if (this.#inFlight) return;
    this.#inFlight = true;
    this.#again = false;
    this.#sending.send().then(
      () => this.#replied(),
      (error: unknown) => {
        if (HoldfastError.is(error) && !error.retryable) this.#end();
        else this.#inFlight = false;
      },
    );
  }

  #replied(): void {
    if (this.#again) this.#inFlight = false;
    else this.#end();
  }

  #end(): void {
    this.#agenda.remove(this);
    this.#sending.ended();
  }
}
