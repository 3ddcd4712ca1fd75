import { printable } from "./output.js";

const CLEAR = "\r\u001b[K";
/** Wide characters take two columns: a line that wraps could not be overwritten. */
const WRAP = { off: "\u001b[?7l", on: "\u001b[?7h" };

/** A line of stderr that each new text overwrites. Only on a terminal: elsewhere it prints nothing. */
export class LiveLine {
  #drawn = false;

  show(text: string): void {
    if (!process.stderr.isTTY) return;
    const width = Math.max(20, (process.stderr.columns || 80) - 1);
    process.stderr.write(`${WRAP.off}${CLEAR}${printable(text).slice(0, width)}${WRAP.on}`);
    this.#drawn = true;
  }

  clear(): void {
    if (this.#drawn) process.stderr.write(CLEAR);
    this.#drawn = false;
  }
}
