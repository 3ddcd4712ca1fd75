import { readFileSync } from "node:fs";
import { monitorEventLoopDelay } from "node:perf_hooks";
import { machineMs, sleepMs } from "./clock.mjs";

/** Returns a function that says what share of a core this process has used since, in percent. */
export function startCpu() {
  const cpuMs = startCpuMs();
  const fromMs = machineMs();
  return () => (cpuMs() / (machineMs() - fromMs)) * 100;
}

/** Returns a function that says how much CPU time this process has used since. */
export function startCpuMs() {
  const before = process.cpuUsage();
  return () => {
    const { user, system } = process.cpuUsage(before);
    return (user + system) / 1_000;
  };
}

/** The CPU time that another process has used, in steps of 10 ms. */
export function cpuMsOf(pid) {
  const [, fields] = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ");
  const [utime, stime] = fields.split(" ").slice(11, 13).map(Number);
  return (utime + stime) * 10;
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
