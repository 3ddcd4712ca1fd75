import type { Event } from "./history.js";
import {
  fitTogether,
  type Granted,
  isGranted,
  madeFor,
  type Operation,
  type Run,
  who,
} from "./operations.js";
import type { Finding, Limits, Violation } from "./verdict.js";

type Closing = Granted & { readonly asked: { readonly atLeastMs: number } };

/** What is known of a moment: it was not before the one, and not after the other. */
interface Known {
  readonly atMs: number;
  readonly by: readonly Event[];
}

/**
 * S9: a name that is closed by `atLeast` is granted to nobody before its time, unless it was taken
 * by force, and is not kept closed for longer, or by who was never granted it.
 */
export function closing(run: Run, { recordMs, cleanMs }: Limits): Finding {
  const violations: Violation[] = [];
  let checked = 0;
  for (const operations of run.names.values()) {
    const grants = operations.filter(isGranted);
    for (const op of grants) {
      if (!closes(op)) continue;
      for (const next of grants) {
        if (next.granted.token <= op.granted.token || fitTogether(op, next)) continue;
        checked++;
        const early = tooEarly(run, op, next, recordMs);
        if (early !== undefined) violations.push(early);
      }
    }
  }
  for (const seen of run.events) {
    if (seen.kind !== "seen") continue;
    for (const id of seen.closed ?? []) {
      const op = run.operations.get(id);
      const openMs = op && opensBy(run, op, seen, cleanMs);
      if (op === undefined || openMs === undefined) continue;
      checked++;
      if (seen.sinceMs <= openMs + recordMs) continue;
      violations.push({
        atMs: seen.atMs,
        why: `${JSON.stringify(op.asked.name)} was closed at ${run.at(seen.sinceMs)} by ${who(op)}, which may close it until ${run.at(openMs)}`,
        evidence: [op.asked, (op.granted ?? op.notGranted)!, seen],
      });
    }
  }
  return { checked, violations, lacks: "no name was closed by atLeast" };
}

const closes = (op: Granted): op is Closing => (op.asked.atLeastMs ?? 0) > 0;

function tooEarly(run: Run, op: Closing, next: Granted, recordMs: number): Violation | undefined {
  for (const from of moments(op, op.asked)) {
    const untilMs = opensAt(run, op, from.atMs);
    const openMs = Math.min(untilMs, op.revoked?.sinceMs ?? untilMs);
    const granted = moments(next, next.granted).find(({ atMs }) => atMs + recordMs < openMs);
    if (granted === undefined) continue;
    return {
      atMs: next.granted.atMs,
      why: `${who(next)} was granted ${JSON.stringify(op.asked.name)} with token ${next.granted.token} by ${run.at(granted.atMs)}, though ${who(op)} with token ${op.granted.token} had closed it until ${run.at(openMs)}`,
      evidence: [op.asked, op.granted, ...from.by, next.asked, next.granted, ...granted.by],
    };
  }
  return undefined;
}

/** When the grant was made: as its client knows it, and as the store does. */
function moments(op: Granted, { atMs }: Event): readonly Known[] {
  const made = madeFor(op);
  return [{ atMs, by: [] }, ...(made === undefined ? [] : [{ atMs: made.atMs, by: [made] }])];
}

/** At the earliest. A wall clock that is set ahead opens it before its time. */
function opensAt(run: Run, { asked }: Closing, fromMs: number): number {
  const closedMs = fromMs + asked.atLeastMs;
  const ahead = run.clockSets.filter(
    ({ atMs, byMs }) => byMs > 0 && atMs >= fromMs && atMs < closedMs,
  );
  return ahead.reduce((openMs, { byMs }) => openMs - byMs, closedMs);
}

/** At the latest; undefined: it is not known. A wall clock that is set back keeps it closed. */
function opensBy(run: Run, op: Operation, seen: Event, cleanMs: number): number | undefined {
  const { asked, granted, notGranted, killed } = op;
  const end = granted ?? notGranted;
  if (end === undefined || killed !== undefined) return undefined;
  const isDisturbed =
    run.faults.touches(asked.atMs, seen.atMs) ||
    run.pausesOf(asked.client).touches(asked.atMs, seen.atMs);
  if (isDisturbed) return undefined;
  // Nobody worked under it.
  if (granted === undefined) return end.atMs + cleanMs;
  return end.atMs + (asked.atLeastMs ?? 0) + setBackMs(run, asked.atMs);
}

/** How much longer a name may stay closed since then. */
export function setBackMs({ clockSets }: Run, sinceMs: number): number {
  const back = clockSets.filter(({ atMs, byMs }) => byMs < 0 && atMs >= sinceMs);
  return back.reduce((sum, { byMs }) => sum - byMs, 0);
}
