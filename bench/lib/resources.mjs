import { monitorEventLoopDelay } from "node:perf_hooks";
import { machineMs, sleepMs } from "./clock.mjs";

/** Returns a function that says what share of a core this process has used since, in percent. */
export function startCpu() {
  const before = process.cpuUsage();
  const fromMs = machineMs();
  return () => {
    const { user, system } = process.cpuUsage(before);
    return ((user + system) / 1_000 / (machineMs() - fromMs)) * 100;
  };
}

/** The size of all reachable objects; needs `--expose-gc`. */
export function heapBytes() {
  for (let i = 0; i < 4; i++) gc();
  return process.memoryUsage().heapUsed;
}

export const rssBytes = () => process.memoryUsage().rss;

/** The longest that the event loop was not served within the next `ms`. */
export async function longestBlockMs(ms) {
  const delay = monitorEventLoopDelay({ resolution: 1 });
  delay.enable();
  await sleepMs(ms);
  delay.disable();
  return delay.max / 1e6;
}
