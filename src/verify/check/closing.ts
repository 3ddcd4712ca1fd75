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

/** A bound of an unknown moment, and the events that show the bound. */
interface Known {
  readonly atMs: number;
  readonly by: readonly Event[];
}

/**
 * S9: a name that `atLeast` keeps closed is granted to nobody before its time, unless a forced
 * release opens it. It does not stay closed for longer, and a claim that was never granted does not
 * close it.
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

/** The moment of the grant, as its client knows it and, where the store is observed, as the store knows it. */
function moments(op: Granted, { atMs }: Event): readonly Known[] {
  const made = madeFor(op);
  return [{ atMs, by: [] }, ...(made === undefined ? [] : [{ atMs: made.atMs, by: [made] }])];
}

/** The earliest moment at which the name may open. A wall clock that is set ahead opens it before its time. */
function opensAt(run: Run, { asked }: Closing, fromMs: number): number {
  const closedMs = fromMs + asked.atLeastMs;
  const ahead = run.clockSets.filter(
    ({ atMs, byMs }) => byMs > 0 && atMs >= fromMs && atMs < closedMs,
  );
  return ahead.reduce((openMs, { byMs }) => openMs - byMs, closedMs);
}

/**
 * The latest moment at which the name must be open; undefined if that is unknown. A wall clock that
 * is set back keeps it closed for longer.
 */
function opensBy(run: Run, op: Operation, seen: Event, cleanMs: number): number | undefined {
  const { asked, granted, notGranted, killed } = op;
  const end = granted ?? notGranted;
  if (end === undefined || killed !== undefined) return undefined;
  const isDisturbed =
    run.faults.touches(asked.atMs, seen.atMs) ||
    run.pausesOf(asked.client).touches(asked.atMs, seen.atMs);
  if (isDisturbed) return undefined;
  // Nobody worked under this claim, so it may not keep the name closed.
  if (granted === undefined) return end.atMs + cleanMs;
  return end.atMs + (asked.atLeastMs ?? 0) + setBackMs(run, asked.atMs);
}

/** How much longer a name may stay closed because the wall clock was set back since that moment. */
export function setBackMs({ clockSets }: Run, sinceMs: number): number {
  const back = clockSets.filter(({ atMs, byMs }) => byMs < 0 && atMs >= sinceMs);
  return back.reduce((sum, { byMs }) => sum - byMs, 0);
}
