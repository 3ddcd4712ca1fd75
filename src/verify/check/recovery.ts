import { setBackMs } from "./closing.js";
import type { Event } from "./history.js";
import {
  endOfWait,
  type Granted,
  isGranted,
  longestTtlMs,
  type Operation,
  proof,
  type Run,
  who,
} from "./operations.js";
import { firstIndex, type Span, Spans } from "./spans.js";
import type { Finding, Limits, Violation } from "./verdict.js";

/** L1: a name whose holder died is granted to a waiter within the ttl and a little more. */
export function freed(run: Run, { freeMs, electionMs, healMs }: Limits): Finding {
  const violations: Violation[] = [];
  let checked = 0;
  for (const operations of run.names.values()) {
    const grants = operations.filter(isGranted).sort((a, b) => a.granted.atMs - b.granted.atMs);
    const dead = grants.filter(
      ({ beliefs, killed }) =>
        killed !== undefined &&
        beliefs.at(-1)!.toMs === killed.atMs &&
        beliefs.at(-1)!.fromMs < killed.atMs,
    );
    if (dead.length === 0) continue;
    const stuck = stuckIn(run, operations, freeMs + electionMs);
    for (const op of dead) {
      const killed = op.killed!;
      const next = grants[firstIndex(grants, ({ granted }) => granted.atMs > killed.atMs)];
      const nextMs = next?.granted.atMs ?? Number.POSITIVE_INFINITY;
      const found = stuck.find(({ op: waiter, sinceMs, endMs, gap }) => {
        if (gap.fromMs < killed.atMs || gap.toMs > nextMs) return false;
        // A fault may have hidden the end of the lease from the waiter already before the holder
        // died.
        const fromMs = Math.min(killed.atMs, toldFromMs(op, waiter));
        const struck = run.faults.touches(fromMs, gap.fromMs);
        return !struck || sinceMs + freeMs + electionMs + healMs < endMs;
      });
      if (next !== undefined || found !== undefined) checked++;
      if (found === undefined) continue;
      violations.push({
        atMs: found.late.atMs,
        why: `${who(op)}, who held ${JSON.stringify(op.asked.name)} with token ${op.granted.token} for ${longestTtlMs(op)} ms, was killed at ${run.at(killed.atMs)}; ${waits(run, found)}`,
        evidence: [...proof(op, killed.atMs), killed, found.op.asked, found.late],
      });
    }
  }
  return { checked, violations, lacks: "no holder was killed whose name somebody else wanted" };
}

/**
 * The moment from which a fault may have kept a waiter from learning when the holder's lease ends.
 * An earlier waiter learns it by a push in the step of the grant, which is at most one ttl before
 * the holder knows; a later waiter learns it from the reply to its claim.
 */
function toldFromMs(op: Granted, { asked }: Operation): number {
  return asked.atMs < op.granted.atMs ? op.granted.atMs - longestTtlMs(op) : asked.atMs;
}

/** L2: after healing, a name that nobody holds is granted to a waiter within seconds. */
export function resumed(run: Run, { healMs }: Limits): Finding {
  const violations: Violation[] = [];
  const { heals } = run;
  let checked = 0;
  for (const operations of heals.length === 0 ? [] : run.names.values()) {
    checked += operations.filter((op) => {
      const healed = heals[firstIndex(heals, ({ atMs }) => atMs > op.asked.atMs)];
      const end = endOfWait(op);
      return healed !== undefined && end !== undefined && healed.atMs < end.atMs;
    }).length;
    const [found] = stuckIn(run, operations, healMs, heals[0]!.atMs);
    if (found === undefined) continue;
    if (endOfWait(found.op) === undefined) checked++;
    const healed = heals[firstIndex(heals, ({ atMs }) => atMs > found.sinceMs) - 1]!;
    violations.push({
      atMs: found.late.atMs,
      why: `${JSON.stringify(healed.fault)} was healed at ${run.at(healed.atMs)}; ${waits(run, found)}`,
      evidence: [healed, found.op.asked, found.late],
    });
  }
  return { checked, violations, lacks: "nobody waited when a fault was healed" };
}

/** A waiter that should have been granted its name, because nobody else can have had it. */
interface Stuck {
  readonly op: Operation;
  readonly gap: Span;
  readonly sinceMs: number;
  readonly endMs: number;
  /** The first event after the time at which the name should have been granted. */
  readonly late: Event;
}

function stuckIn(
  run: Run,
  operations: readonly Operation[],
  graceMs: number,
  afterMs = Number.NEGATIVE_INFINITY,
): readonly Stuck[] {
  const gaps = takenTimes(run, operations)
    .gaps()
    .filter(({ fromMs, toMs }) => toMs - Math.max(fromMs, afterMs) > graceMs);
  const stuck: Stuck[] = [];
  for (const op of operations) {
    const { asked, aborting, resizes } = op;
    // The store refuses its next claim, which has the old limit.
    if (resizes.some(({ limit, atMs }) => limit !== asked.limit && atMs >= asked.atMs)) continue;
    const overMs = Math.min(
      endOfWait(op)?.atMs ?? Number.POSITIVE_INFINITY,
      aborting?.atMs ?? Number.POSITIVE_INFINITY,
      asked.atMs + asked.waitMs,
    );
    for (let i = firstIndex(gaps, ({ toMs }) => toMs > asked.atMs); i < gaps.length; i++) {
      const gap = gaps[i]!;
      if (gap.fromMs >= overMs) break;
      const freeMs = Math.max(gap.fromMs, asked.atMs, afterMs);
      const dueMs = run.pausesOf(asked.client).graceAfter(freeMs, graceMs);
      const endMs = Math.min(gap.toMs, overMs);
      const late = dueMs < endMs ? run.after(dueMs) : undefined;
      if (late !== undefined) stuck.push({ op, gap, sinceMs: dueMs - graceMs, endMs, late });
    }
  }
  return stuck.sort((a, b) => a.late.atMs - b.late.atMs);
}

/**
 * Times in which a name may have been taken: by a holder, by a grant left behind in the store, by
 * `atLeast`, by a multi-lock that still waits for its other names, and by faults.
 */
function takenTimes(run: Run, operations: readonly Operation[]): Spans {
  const taken: Span[] = [...run.faults];
  for (const op of operations) {
    const { asked, granted, notGranted, releasing, released, killed } = op;
    const closedMs =
      asked.atLeastMs === undefined ? 0 : asked.atLeastMs + setBackMs(run, asked.atMs);
    const forgotten = (fromMs: number): Span => ({
      fromMs,
      toMs: run.faults.graceAfter(fromMs, longestTtlMs(op)) + closedMs,
    });
    taken.push(...op.beliefs);
    if (granted !== undefined && closedMs > 0) {
      taken.push({ fromMs: granted.atMs, toMs: granted.atMs + closedMs });
    }
    if (op.group.length > 1) {
      const toMs = endOfWait(op)?.atMs ?? Number.POSITIVE_INFINITY;
      taken.push({ fromMs: asked.atMs, toMs });
    }
    let endMs = Number.POSITIVE_INFINITY;
    if (granted !== undefined) {
      endMs = op.beliefs.at(-1)!.toMs;
      const isClean = released?.result === "released" && releasing?.atMs === endMs;
      taken.push(isClean ? { fromMs: endMs, toMs: released.atMs } : forgotten(endMs));
    } else if (notGranted !== undefined) {
      endMs = notGranted.atMs;
      const isClean = notGranted.outcome !== "unknown" && !run.faults.touches(endMs, endMs);
      if (!isClean) taken.push(forgotten(endMs));
    } else if (killed !== undefined) {
      endMs = killed.atMs;
      taken.push(forgotten(endMs));
    }
    // The ticket of a paused client may be granted; the grant then stays until it expires.
    for (const { fromMs, toMs } of run.pausesOf(asked.client).touching(asked.atMs, endMs)) {
      const pausedMs = Math.max(fromMs, asked.atMs);
      taken.push({ fromMs: pausedMs, toMs: Math.min(toMs, forgotten(pausedMs).toMs) });
    }
  }
  return new Spans(taken);
}

const waits = (run: Run, { op, sinceMs, late }: Stuck): string =>
  `${who(op)} waited for ${JSON.stringify(op.asked.name)} from ${run.at(op.asked.atMs)}, was not granted it though it was free from ${run.at(sinceMs)}, and still waited at ${run.at(late.atMs)}`;
