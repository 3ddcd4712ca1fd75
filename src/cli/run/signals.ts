import { note } from "../output.js";

/** Ends a wait; a child gets them to do with them what it likes. */
const ENDING = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"] as const;
const OTHER = ["SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT"] as const;

/** Signals to holdfast: they end the wait, and go to the child while there is one. */
export class Signals {
  /** The one that ended the wait, or would end the next. */
  ended: NodeJS.Signals | null = null;
  readonly #abort = new AbortController();
  #forward: ((signal: NodeJS.Signals) => void) | null = null;

  constructor() {
    for (const signal of ENDING) listen(signal, () => this.#ending(signal));
    for (const signal of OTHER) listen(signal, () => this.#forward?.(signal));
    // Suspended, holdfast could not renew, and the child would run on without its lease.
    listen("SIGTSTP", () => note("not suspended: nobody would renew the lease"));
  }

  get waitSignal(): AbortSignal {
    return this.#abort.signal;
  }

  /** Null: there is no child, or none any more. */
  forwardTo(forward: ((signal: NodeJS.Signals) => void) | null): void {
    this.#forward = forward;
  }

  #ending(signal: NodeJS.Signals): void {
    this.#forward?.(signal);
    // To a child it mostly means that it should read its settings again.
    if (this.#forward !== null && signal === "SIGHUP") return;
    // Who asked a child to end wants no other to begin.
    this.ended ??= signal;
    this.#abort.abort();
  }
}

function listen(signal: NodeJS.Signals, run: () => void): void {
  try {
    process.on(signal, run);
  } catch {
    // Not every system has every signal.
  }
}
