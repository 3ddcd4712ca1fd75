import { danger, type Finding, note, ok, unknown } from "./finding.js";

const CLOCK_READINGS = 5;
const ROUND_TRIPS = 15;
const SLOW_ROUND_TRIP_MS = 50;
/** Synchronised clocks differ by milliseconds. */
export const CLOCK_MS = 1_000;

export const megabytes = (bytes: number): string =>
  `${(bytes / 2 ** 20).toFixed(bytes < 2 ** 20 ? 1 : 0)} MB`;

export const percent = (part: number, whole: number): string =>
  `${Math.floor((100 * part) / whole)} %`;

/** The first of these items, and how many more there are. */
export function listFirst(items: readonly string[], most: number): string {
  const more = items.length - most;
  return [...items.slice(0, most), ...(more > 0 ? [`and ${more} more`] : [])].join("; ");
}

export const isLoopback = (host: string): boolean =>
  /^(localhost|127(\.\d+){3}|\[?::1\]?)$/i.test(host);

/** Judges the median of measured times, and advises a ttl of a hundred times the median. */
export function latency(
  what: string,
  tookMs: readonly number[],
  slow: { readonly fromMs: number; readonly because: string; readonly advice: string },
): Finding {
  const sorted = [...tookMs].sort((a, b) => a - b);
  const medianMs = sorted[sorted.length >> 1]!;
  const text = `${what} takes ${medianMs.toFixed(1)} ms (the slowest of ${sorted.length} took ${sorted.at(-1)!.toFixed(1)} ms)`;
  if (medianMs < slow.fromMs) return ok("latency", text);
  const ttl = `a ttl of ${Math.ceil((100 * medianMs) / 1_000)} s or more`;
  return note("latency", `${text}: ${slow.because}`, `${slow.advice}, and choose ${ttl}.`);
}

/** Measures round trips to a server, one after the other. */
export async function measureRoundTrips(send: () => Promise<unknown>): Promise<Finding> {
  const tookMs: number[] = [];
  for (let i = 0; i < ROUND_TRIPS; i++) {
    const startMs = performance.now();
    await send();
    tookMs.push(performance.now() - startMs);
  }
  return latency("a round trip", tookMs, {
    fromMs: SLOW_ROUND_TRIP_MS,
    because: "acquire, renew and release take one each",
    advice: "Use a server nearby",
  });
}

/** How far a server's clock is ahead of this machine's, and by how much that may be wrong. */
export interface ClockDifference {
  readonly aheadMs: number;
  readonly unsureMs: number;
}

/** Reads a server's clock several times, and keeps the reading that took the shortest. A text says why there is none. */
export async function readClock(
  readMs: () => Promise<number | string>,
): Promise<ClockDifference | string> {
  let best: { aheadMs: number; tripMs: number } | undefined;
  for (let i = 0; i < CLOCK_READINGS; i++) {
    const [sentAtMs, startMs] = [Date.now(), performance.now()];
    const reading = await readMs();
    if (typeof reading === "string") return reading;
    const tripMs = performance.now() - startMs;
    const aheadMs = reading - (sentAtMs + tripMs / 2);
    if (best === undefined || tripMs < best.tripMs) best = { aheadMs, tripMs };
  }
  // Date.now() counts whole milliseconds, and the two ways of a round trip may differ.
  return { aheadMs: best!.aheadMs, unsureMs: best!.tripMs / 2 + 1 };
}

/**
 * Compares the clock of a server with this machine's. The server's clock decides when leases end, so it must not
 * have to be set. A text instead of a reading says why there is none.
 */
export async function compareClocks(readMs: () => Promise<number | string>): Promise<Finding> {
  const read = await readClock(readMs);
  if (typeof read === "string") {
    return unknown("clock", `how far the server's clock is from this machine's (${read})`);
  }
  const { aheadMs: offMs, unsureMs } = read;
  if (Math.abs(offMs) - unsureMs <= CLOCK_MS) {
    return ok(
      "clock",
      `the server's clock minus this machine's: ${Math.round(offMs)} ms (± ${Math.ceil(unsureMs)} ms)`,
    );
  }
  const off = `${(Math.abs(offMs) / 1_000).toFixed(1)} s ${offMs > 0 ? "ahead of" : "behind"}`;
  return danger(
    "clock",
    `the server's clock is ${off} this machine's. If the server's is wrong: when it is set forward, ` +
      "leases end early and names are granted again; when it is set back, leases last longer",
    "Keep both clocks in step (NTP), by slewing, not by jumps.",
  );
}

type Hosts = readonly { readonly host: string }[];

/** Whether all hosts are this machine. */
export const areLocal = (hosts: Hosts): boolean => hosts.every(({ host }) => isLoopback(host));

/** Finds a connection to another machine without TLS. */
export const judgeEncryption = (hosts: Hosts, hasTls: boolean, advice: string): Finding[] =>
  hasTls || areLocal(hosts)
    ? []
    : [
        note(
          "transport",
          "the connection is not encrypted: anyone on the network path can read passwords, and the grantIds that prove ownership of leases",
          advice,
        ),
      ];
