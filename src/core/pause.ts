import { onAbort } from "./abort.js";
import type { Clock } from "./clock.js";

/** Resolves after the time. Rejects with the signal's reason when it aborts. Keeps the process alive. */
export function pause(clock: Clock, ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    const timer = clock.after(ms, () => {
      ignoreSignal();
      resolve();
    });
    timer.keepAlive(true);
    const ignoreSignal =
      signal === undefined
        ? () => {}
        : onAbort(signal, () => {
            timer.cancel();
            ignoreSignal();
            reject(signal.reason);
          });
  });
}
