import type { Locks } from "../../locks.js";
import { LiveLine } from "../live-line.js";
import { whyBusy } from "../names.js";
import { formatMs, masked, note, quoted } from "../output.js";

const FIRST_LOOK_MS = 250;
const LOOK_EVERY_MS = 1_000;

/** Prints who holds the name while we wait: a live line on a terminal, otherwise one plain line. */
export class WaitingLine {
  readonly #locks: Locks;
  readonly #name: string;
  readonly #me: string;
  readonly #startedAtMs = performance.now();
  readonly #line = new LiveLine();
  #timer: NodeJS.Timeout;
  #stopped = false;

  constructor(locks: Locks, name: string, me: string) {
    this.#locks = locks;
    this.#name = name;
    this.#me = me;
    this.#timer = setTimeout(() => this.#look(), FIRST_LOOK_MS);
  }

  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#timer);
    this.#line.clear();
  }

  async #look(): Promise<void> {
    const text = await this.#text();
    if (this.#stopped) return;
    if (!process.stderr.isTTY) {
      note(`waiting: ${text}`);
      return;
    }
    this.#line.show(`waiting ${formatMs(performance.now() - this.#startedAtMs)}: ${text}`);
    this.#timer = setTimeout(() => this.#look(), LOOK_EVERY_MS);
  }

  async #text(): Promise<string> {
    try {
      const info = await this.#locks.inspect(this.#name);
      const why = whyBusy(info) ?? "is about to be free";
      const ahead = info?.waiters.findIndex((one) => one.holder === this.#me) ?? -1;
      return `${quoted(this.#name)} ${why}${ahead > 0 ? `; ${ahead} ahead of us` : ""}`;
    } catch (error) {
      return `the store does not answer: ${masked((error as Error).message)}`;
    }
  }
}
