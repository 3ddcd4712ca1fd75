import { note } from "../output.js";

/** They end a wait. A running child gets them instead, and decides what to do. */
const ENDING = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"] as const;
const OTHER = ["SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT"] as const;

/** Signals to holdfast: they end the wait, or go to the child if there is one. */
export class Signals {
  /** The first of the signals that are meant to end holdfast or its child. */
  ended: NodeJS.Signals | null = null;
  readonly #abort = new AbortController();
  #forward: ((signal: NodeJS.Signals) => void) | null = null;

  constructor() {
    for (const signal of ENDING) listen(signal, () => this.#ending(signal));
    for (const signal of OTHER) listen(signal, () => this.#forward?.(signal));
    // A suspended holdfast could not renew, and the child would go on without its lease.
    listen("SIGTSTP", () => note("holdfast can't be suspended: the lease would not be renewed"));
  }

  get waitSignal(): AbortSignal {
    return this.#abort.signal;
  }

  /** Null if there is no child. */
  forwardTo(forward: ((signal: NodeJS.Signals) => void) | null): void {
    this.#forward = forward;
  }

  #ending(signal: NodeJS.Signals): void {
    this.#forward?.(signal);
    // To most programs, HUP means that they should read their settings again.
    if (this.#forward !== null && signal === "SIGHUP") return;
    // After a signal that ends the child, `elect` starts no other.
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
