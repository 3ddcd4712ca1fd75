import { report } from "./report.js";
import { machineMs } from "./time-line.js";

const BEAT_MS = 20;
/** Shorter stalls are within the tolerance of every check. */
const STALL_MS = 100;

/**
 * Notices when the event loop of this process stood still, because the process was stopped or busy,
 * or because the machine had no time for it, and reports that as a pause.
 */
export class Stalls {
  readonly #client: string;
  readonly #timer: NodeJS.Timeout;
  #beatAtMs = machineMs();

  constructor(client: string) {
    this.#client = client;
    this.#timer = setInterval(() => this.#beat(), BEAT_MS).unref();
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  #beat(): void {
    const nowMs = machineMs();
    if (nowMs - this.#beatAtMs > BEAT_MS + STALL_MS) {
      const stall = { client: this.#client, stalled: true } as const;
      report({ kind: "paused", ...stall }, this.#beatAtMs);
      report({ kind: "resumed", ...stall }, nowMs);
    }
    this.#beatAtMs = nowMs;
  }
}
