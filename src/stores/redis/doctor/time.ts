import type { Finding } from "../../../core/doctor.js";
import type { OneServer } from "../client.js";
import { ask, refusal } from "./ask.js";

const PINGS = 15;
const SLOW_MS = 50;
/** Clocks that are kept in step differ by milliseconds. */
const CLOCK_MS = 1_000;

/** The server's clock decides when leases end: it must not have to be set. */
export async function clockOf(server: OneServer): Promise<Finding> {
  const about = "clock";
  let best: { offMs: number; tripMs: number } | undefined;
  for (let i = 0; i < 5; i++) {
    const [sentAt, from] = [Date.now(), performance.now()];
    const answer = await ask(server, "TIME");
    if ("refused" in answer) {
      const what = `how far the server's clock is from ours (${refusal("TIME", answer)})`;
      return { about, level: "unknown", what };
    }
    const tripMs = performance.now() - from;
    const [seconds, micros] = answer.reply as [string, string];
    const offMs = Number(seconds) * 1_000 + Number(micros) / 1_000 - (sentAt + tripMs / 2);
    if (best === undefined || tripMs < best.tripMs) best = { offMs, tripMs };
  }
  const { offMs, tripMs } = best!;
  // Ours counts whole milliseconds, and the way there may take longer than the way back.
  const unsureMs = tripMs / 2 + 1;
  if (Math.abs(offMs) - unsureMs <= CLOCK_MS) {
    const [off, unsure] = [Math.round(offMs), Math.ceil(unsureMs)];
    return {
      about,
      level: "ok",
      what: `the server's clock minus ours: ${off} ms (± ${unsure} ms)`,
    };
  }
  return {
    about,
    level: "danger",
    what:
      `the server's clock is ${(Math.abs(offMs) / 1_000).toFixed(1)} s ${offMs > 0 ? "ahead of" : "behind"} ours. ` +
      "If it is the server's that is wrong: when it is set forward, leases end early and names are granted again; when it is set back, they last longer",
    advice: "Keep both clocks in step (NTP), by slewing, not by jumps.",
  };
}

export async function latencyOf(server: OneServer): Promise<Finding> {
  const about = "latency";
  const trips: number[] = [];
  for (let i = 0; i < PINGS; i++) {
    const from = performance.now();
    // Refused or not, it took its time.
    await ask(server, "PING");
    trips.push(performance.now() - from);
  }
  trips.sort((a, b) => a - b);
  const median = trips[PINGS >> 1]!;
  const what = `a round trip takes ${median.toFixed(1)} ms (the slowest of ${PINGS} took ${trips.at(-1)!.toFixed(1)} ms)`;
  if (median < SLOW_MS) return { about, level: "ok", what };
  return {
    about,
    level: "note",
    what: `${what}: acquire, renew and release take one each`,
    advice: `Take a server nearby, and a ttl of ${Math.ceil((100 * median) / 1_000)} s or more.`,
  };
}
