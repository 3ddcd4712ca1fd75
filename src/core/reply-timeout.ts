import { type Clock, isLate, type Timer } from "./clock.js";

/** After a timeout, how long a last reply may take before the store counts as unavailable. */
export const LAST_REPLY_MS = 250;

/** Calls `timedOut` after the timeout, and keeps the process alive until then. Returns how to cancel it. */
export function startReplyTimeout(clock: Clock, ms: number, timedOut: () => void): () => void {
  const after = (delayMs: number, run: () => void): Timer => {
    const started = clock.after(delayMs, run);
    started.keepAlive(true);
    return started;
  };
  const dueAtMs = clock.elapsedMs() + ms;
  let timer = after(ms, () => {
    if (isLate(dueAtMs, clock.elapsedMs())) timer = after(LAST_REPLY_MS, timedOut);
    else timedOut();
  });
  return () => timer.cancel();
}
