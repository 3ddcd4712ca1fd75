import type { Locks } from "../../core/locks.js";
import { whyBusy } from "../names.js";
import { formatMs, masked, note, quoted } from "../output.js";

const FIRST_LOOK_MS = 250;
const LOOK_EVERY_MS = 1_000;
const CLEAR = "\r\u001b[K";

/** Says who holds the name while we wait: a live line on a terminal, otherwise one plain line. */
export class WaitingLine {
  readonly #locks: Locks;
  readonly #name: string;
  readonly #me: string;
  readonly #startedAtMs = performance.now();
  readonly #live = process.stderr.isTTY === true;
  #timer: NodeJS.Timeout;
  #drawn = false;
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
    if (this.#drawn) process.stderr.write(CLEAR);
    this.#drawn = false;
  }

  async #look(): Promise<void> {
    const text = await this.#text();
    if (this.#stopped) return;
    if (!this.#live) {
      note(`waiting: ${text}`);
      return;
    }
    const width = Math.max(20, (process.stderr.columns || 80) - 1);
    const waited = formatMs(performance.now() - this.#startedAtMs);
    process.stderr.write(`${CLEAR}${`waiting ${waited}: ${text}`.slice(0, width)}`);
    this.#drawn = true;
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
