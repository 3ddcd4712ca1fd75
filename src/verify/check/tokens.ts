import type { Event } from "./history.js";
import { isExclusive, type Operation, type Run, who } from "./operations.js";
import { firstIndex } from "./spans.js";
import type { Finding, Violation } from "./verdict.js";

/** A grant, and the bounds of the moment at which the store made it. */
interface Drawn {
  readonly op: Operation;
  readonly token: bigint;
  readonly event: Event;
  readonly notBeforeMs: number;
  readonly notAfterMs: number;
}

/**
 * S2: no token is given twice, and of two grants the earlier has the lower token. Where the store
 * is not observed, a grant was made between its request and its return. For exclusive leases the
 * order is known more exactly: each was alone in the store while its holder believed, so they were
 * made in the order of the beliefs, unless a fault hit the store itself.
 */
export function tokens(run: Run): Finding {
  const violations: Violation[] = [];
  let checked = 0;
  for (const [name, operations] of run.names) {
    const drawn = operations.flatMap((op) => drawnBy(op));
    checked += Math.max(0, drawn.length - 1);
    const found = repeated(drawn) ?? falling(drawn) ?? fallingBeliefs(run, drawn);
    if (found === undefined) continue;
    const [first, second] = found;
    const what = first.token === second.token ? "also had" : "had, from an earlier grant,";
    violations.push({
      atMs: second.event.atMs,
      why:
        `${who(second.op)} was granted ${JSON.stringify(name)} with token ${second.token} at ${run.at(second.event.atMs)}; ` +
        `${who(first.op)} ${what} token ${first.token} at ${run.at(first.event.atMs)}`,
      evidence: [first.op.asked, first.event, second.op.asked, second.event],
    });
  }
  return { checked, violations, lacks: "no name was granted twice" };
}

function drawnBy(op: Operation): Drawn[] {
  const { asked, made, granted } = op;
  const event = made ?? granted;
  if (event === undefined) return [];
  return [
    {
      op,
      token: event.token,
      event,
      notBeforeMs: made?.atMs ?? asked.atMs,
      notAfterMs: event.atMs,
    },
  ];
}

type Pair = readonly [Drawn, Drawn];

function repeated(drawn: readonly Drawn[]): Pair | undefined {
  const byToken = new Map<bigint, Drawn>();
  for (const one of drawn.toSorted((a, b) => a.event.atMs - b.event.atMs)) {
    const other = byToken.get(one.token);
    if (other !== undefined) return [other, one];
    byToken.set(one.token, one);
  }
  return undefined;
}

function falling(drawn: readonly Drawn[]): Pair | undefined {
  const byEnd = drawn.toSorted((a, b) => a.notAfterMs - b.notAfterMs);
  const highest = highestSoFar(byEnd);
  for (const one of drawn) {
    const before = highest[firstIndex(byEnd, (other) => other.notAfterMs >= one.notBeforeMs) - 1];
    if (before !== undefined && before.token > one.token) return [before, one];
  }
  return undefined;
}

function fallingBeliefs(run: Run, drawn: readonly Drawn[]): Pair | undefined {
  const believed = drawn
    .filter(({ op, event }) => event === op.granted && isAlone(op))
    .sort((a, b) => a.event.atMs - b.event.atMs);
  const highest = highestSoFar(believed);
  const highestExclusive = highestSoFar(believed, ({ op }) => isExclusive(op));
  for (const one of believed) {
    const earlier = firstIndex(believed, ({ event }) => event.atMs >= one.event.atMs) - 1;
    const before = (isExclusive(one.op) ? highest : highestExclusive)[earlier];
    if (before === undefined || before.token < one.token) continue;
    const sinceMs = Math.min(before.notBeforeMs, one.notBeforeMs);
    if (!run.storeFaultsOf(one.op.asked.name).touches(sinceMs, one.event.atMs))
      return [before, one];
  }
  return undefined;
}

/** Whether the grant was still good, and not revoked, when its client learned of it. */
const isAlone = ({ granted, revoked }: Operation): boolean =>
  granted !== undefined &&
  granted.atMs < Math.min(granted.untilMs, revoked?.sinceMs ?? Number.POSITIVE_INFINITY);

/** For each place, the highest token up to that place. */
function highestSoFar(
  drawn: readonly Drawn[],
  counts: (one: Drawn) => boolean = () => true,
): readonly (Drawn | undefined)[] {
  let highest: Drawn | undefined;
  return drawn.map((one) => {
    if (counts(one) && (highest === undefined || one.token > highest.token)) highest = one;
    return highest;
  });
}
