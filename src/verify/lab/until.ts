import { setTimeout as sleep } from "node:timers/promises";

const FIRST_PAUSE_MS = 2;
const LAST_PAUSE_MS = 50;

/** Calls `holds` until it returns true; rejects after `timeoutMs`, or when `holds` throws. */
export async function until(
  what: string,
  timeoutMs: number,
  holds: () => boolean | Promise<boolean>,
): Promise<void> {
  const endMs = performance.now() + timeoutMs;
  for (let pauseMs = FIRST_PAUSE_MS; !(await holds()); pauseMs *= 1.5) {
    if (performance.now() > endMs) throw new Error(`not within ${timeoutMs} ms: ${what}`);
    await sleep(Math.min(pauseMs, LAST_PAUSE_MS));
  }
}
