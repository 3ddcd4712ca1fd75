import { danger, type Finding, note, ok, unknown } from "../../../doctor/finding.js";
import type { StoreUrl } from "../../url.js";
import { LONGEST_MS } from "../client/options.js";
import { TIMEOUT_PER_TTL } from "../link.js";
import { openClientOf } from "../open.js";
import type { ServerStatus } from "./status.js";

/** The default ttl, and the session's timeout that it needs. */
const DEFAULT_TTL_MS = 30_000;
const WANTED_MS = DEFAULT_TTL_MS * TIMEOUT_PER_TTL;
/** Two ticks of the default, 2 s. */
const DEFAULT_SHORTEST_MS = 4_000;

/** The limits of a session's timeout, as servers grant them. */
interface Granted {
  readonly longestMs: number;
  readonly shortestMs: number;
}

/** Checks the limits that servers have for a session's timeout. */
export async function checkSession(
  statuses: readonly ServerStatus[],
  url: StoreUrl,
): Promise<Finding[]> {
  const granted = async (requestedMs: number): Promise<number> => {
    const client = await openClientOf(url, requestedMs);
    await client.close();
    return client.sessionTimeoutMs;
  };
  const [longestMs, shortestMs] = [await granted(LONGEST_MS), await granted(1)];
  return judgeSession({ longestMs, shortestMs }, statuses);
}

/** Findings from the limits that were granted, and from those that the servers tell. */
export function judgeSession(granted: Granted, statuses: readonly ServerStatus[]): Finding[] {
  return [judgeLongest(granted), judgeShortest(granted, statuses), ...judgeDifferences(statuses)];
}

function judgeLongest({ longestMs }: Granted): Finding {
  const ttlMs = Math.floor(longestMs / TIMEOUT_PER_TTL);
  if (longestMs >= WANTED_MS) {
    const what = `it lasts ${longestMs} ms at most, so leases can have a ttl of up to ${ttlMs} ms`;
    return ok("session", what);
  }
  return note(
    "session",
    `it lasts ${longestMs} ms at most, so leases get a ttl of ${ttlMs} ms at most, even if you ask for more, such as the default of 30 s`,
    "For a longer ttl, set maxSessionTimeout to 1.7 times the ttl on all servers.",
  );
}

function judgeShortest({ shortestMs }: Granted, statuses: readonly ServerStatus[]): Finding {
  const least = `it lasts ${shortestMs} ms at least: a name stays taken for that long after a crash`;
  const unsafe = statuses.find(
    ({ tickMs, minSessionMs }) =>
      tickMs !== null && minSessionMs !== null && minSessionMs < 2 * tickMs,
  );
  if (unsafe !== undefined) {
    const { minSessionMs, tickMs } = unsafe;
    const ttlMs = Math.ceil((2 * tickMs!) / TIMEOUT_PER_TTL);
    return danger(
      "session",
      `minSessionTimeout is ${minSessionMs} ms with a tickTime of ${tickMs} ms: a name can be granted twice if the ttl is below ${ttlMs} ms, because servers tell their leader of pings too late`,
      "Set minSessionTimeout to two ticks or more on all servers, as it is by default.",
    );
  }
  if (statuses.length > 0 && statuses.every(({ tickMs }) => tickMs !== null)) {
    return ok("session", least);
  }
  const advice =
    "minSessionTimeout must be two ticks (2 × tickTime) or more on all servers, as it is by default. " +
    "To let the doctor check it, add conf to 4lw.commands.whitelist.";
  return shortestMs < DEFAULT_SHORTEST_MS
    ? unknown("session", `${least}; not all servers tell whether that is two ticks`, advice)
    : note("session", `${least}; not all servers tell their tickTime`, advice);
}

/** A session that moves to a server with other limits gets another timeout. */
function judgeDifferences(statuses: readonly ServerStatus[]): Finding[] {
  const settings = {
    tickTime: statuses.map(({ tickMs }) => tickMs),
    minSessionTimeout: statuses.map(({ minSessionMs }) => minSessionMs),
    maxSessionTimeout: statuses.map(({ maxSessionMs }) => maxSessionMs),
  };
  return Object.entries(settings).flatMap(([name, values]) => {
    const different = [...new Set(values.filter((value) => value !== null))];
    if (different.length < 2) return [];
    const what = `${name} differs between the servers (${different.join(", ")} ms): leases can be lost when a client moves to another server`;
    return [danger("session", what, "Give all servers the same settings.")];
  });
}
