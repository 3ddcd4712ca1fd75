import type { Clock } from "./clock.js";
import { startReplyTimeout } from "./reply-timeout.js";

interface RenewCall {
  readonly sinceMs: number;
  /** `error` is null on success. */
  settle(error: unknown): void;
}

/** The calls of `lease.renew()` that wait for a renewal to succeed or fail. */
export class RenewCalls {
  #calls: RenewCall[] = [];

  /** Rejects with the error of `timedOut` after the timeout. */
  wait(clock: Clock, sinceMs: number, timeoutMs: number, timedOut: () => Error): Promise<void> {
    return new Promise((resolve, reject) => {
      const stopTimeout = startReplyTimeout(clock, timeoutMs, () => reject(timedOut()));
      this.#calls.push({
        sinceMs,
        settle: (error) => {
          stopTimeout();
          if (error === null) resolve();
          else reject(error);
        },
      });
    });
  }

  /** Settles the calls that were made before the renewal was sent; `error` is null on success. */
  settle(sentAtMs: number, error: unknown): void {
    const all = this.#calls;
    this.#calls = all.filter((call) => call.sinceMs > sentAtMs);
    for (const call of all) if (call.sinceMs <= sentAtMs) call.settle(error);
  }
}
