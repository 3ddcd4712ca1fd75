import { setTimeout as sleepMs } from "node:timers/promises";

/** The machine's monotonic clock: comparable between processes. */
export const machineMs = () => Number(process.hrtime.bigint()) / 1e6;

export { sleepMs };

export async function within(ms, promise, what) {
  const timer = new AbortController();
  const late = sleepMs(ms, undefined, { signal: timer.signal }).then(
    () => Promise.reject(new Error(`${what} took more than ${ms / 1_000} s`)),
    () => {},
  );
  try {
    return await Promise.race([promise, late]);
  } finally {
    timer.abort();
  }
}
