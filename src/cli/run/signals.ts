import { note } from "../output.js";

/** Ends a wait; a child gets them to do with them what it likes. */
const ENDING = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"] as const;
const OTHER = ["SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT"] as const;

/** Signals to holdfast: they end the wait, and go to the child once there is one. */
export class Signals {
  /** The one that ended the wait. */
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

  forwardTo(forward: (signal: NodeJS.Signals) => void): void {
    this.#forward = forward;
  }

  #ending(signal: NodeJS.Signals): void {
    if (this.#forward !== null) this.#forward(signal);
    else {
      this.ended ??= signal;
      this.#abort.abort();
    }
  }
}

function listen(signal: NodeJS.Signals, run: () => void): void {
  try {
    process.on(signal, run);
  } catch {
    // Not every system has every signal.
  }
}
