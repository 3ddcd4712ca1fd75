import type { Event } from "./history.js";
import { type Granted, isExclusive, isGranted, proof, type Run, who } from "./operations.js";
import { firstIndex } from "./spans.js";
import type { Finding, Limits, Violation } from "./verdict.js";

/**
 * S4: a release or renewal after a successor's grant is answered as lost, and does the successor no
 * harm. Only exclusive leases have a successor. A fault that may have cost the store data explains
 * a violation, which is then undecided.
 */
export function stale(run: Run, limits: Limits): Finding {
  const violations: Violation[] = [];
  const undecided: Violation[] = [];
  let checked = 0;
  for (const operations of run.names.values()) {
    const grants = operations.filter(isGranted).sort((a, b) => a.granted.atMs - b.granted.atMs);
    const exclusive = grants.filter(isExclusive);
    const nextOf = successors(exclusive);
    for (const [i, old] of exclusive.entries()) {
      const next = nextOf[i];
      if (next === undefined) continue;
      const found = [...renewals(run, old, next), ...release(run, old, next)];
      const holder = holderAfter(exclusive, old);
      if (holder !== undefined) found.push(...harm(run, limits, old, holder, grants));
      if (isAfter(old.releasing, next)) checked++;
      checked += old.renewals.filter((one) => isAfter(one, next)).length;
      for (const one of found) {
        const struck = run.storeFaultsOf(old.asked.name).touches(old.granted.atMs, one.atMs);
        (struck ? undecided : violations).push(
          struck ? { ...one, why: `a fault of the store may explain it: ${one.why}` } : one,
        );
      }
    }
  }
  return {
    checked,
    violations,
    undecided,
    lacks: "no release and no renewal came after a successor's grant",
  };
}

/** For each grant, the next grant with a higher token. */
function successors(exclusive: readonly Granted[]): readonly (Granted | undefined)[] {
  const next: (Granted | undefined)[] = [];
  const higher: Granted[] = [];
  for (const op of exclusive.toReversed()) {
    while (higher.length > 0 && higher.at(-1)!.granted.token <= op.granted.token) higher.pop();
    next.push(higher.at(-1));
    higher.push(op);
  }
  return next.reverse();
}

const isAfter = (event: Event | undefined, { granted }: Granted): event is Event =>
  event !== undefined && event.atMs > granted.atMs;

function renewals(run: Run, old: Granted, next: Granted): Violation[] {
  // A revoked lease may count on the rest of its ttl; S6 reports any excess.
  if (old.revoked !== undefined) return [];
  // A reply that was delayed promises nothing for the successor's time.
  const renewed = old.renewals.find((one) => isAfter(one, next) && one.untilMs > next.granted.atMs);
  if (renewed === undefined) return [];
  return [
    {
      atMs: renewed.atMs,
      why: `${who(old)} with token ${old.granted.token} was renewed at ${run.at(renewed.atMs)}, after ${granted(run, next)}`,
      evidence: [old.asked, old.granted, next.asked, next.granted, renewed],
    },
  ];
}

function release(run: Run, old: Granted, next: Granted): Violation[] {
  const { releasing, released } = old;
  if (!isAfter(releasing, next) || released?.result !== "released") return [];
  return [
    {
      atMs: released.atMs,
      why: `the release of ${who(old)} with token ${old.granted.token}, sent at ${run.at(releasing.atMs)}, was answered "released", after ${granted(run, next)}`,
      evidence: [old.asked, old.granted, next.asked, next.granted, releasing, released],
    },
  ];
}

/** The client that believes that it holds the name when the old holder releases it. */
function holderAfter(exclusive: readonly Granted[], old: Granted): Granted | undefined {
  const releasing = old.releasing;
  if (releasing === undefined) return undefined;
  const holder =
    exclusive[firstIndex(exclusive, ({ granted }) => granted.atMs >= releasing.atMs) - 1];
  if (holder === undefined || holder.granted.token <= old.granted.token) return undefined;
  return (holder.beliefs.at(-1)?.excludesUntilMs ?? 0) > releasing.atMs ? holder : undefined;
}

function harm(
  run: Run,
  { recordMs }: Limits,
  old: Granted,
  holder: Granted,
  grants: readonly Granted[],
): Violation[] {
  const releasing = old.releasing!;
  const evidence = (atMs: number): Event[] => [
    old.asked,
    old.granted,
    ...proof(holder, atMs),
    releasing,
  ];
  const after = `after the release of ${who(old)} with token ${old.granted.token} at ${run.at(releasing.atMs)}`;
  const { deadlineMs, excludesUntilMs } = holder.beliefs.at(-1)!;
  // A loss after the holder's own release harms nobody: a release that was sent twice finds
  // nothing.
  const isOver = (holder.releasing?.atMs ?? Number.POSITIVE_INFINITY) <= (holder.lost?.atMs ?? 0);
  const lost = isOver ? undefined : holder.lost;
  const found: Violation[] = [];
  if (
    lost !== undefined &&
    (lost.reason === "expired" || lost.reason === "superseded") &&
    lost.atMs > releasing.atMs &&
    lost.atMs + recordMs < deadlineMs
  ) {
    found.push({
      atMs: lost.atMs,
      why: `${who(holder)} with token ${holder.granted.token} lost its lease at ${run.at(lost.atMs)}, before its deadline of ${run.at(deadlineMs)}, ${after}`,
      evidence: [...evidence(lost.atMs + recordMs), lost],
    });
  }
  for (
    let i = firstIndex(grants, (one) => one.granted.atMs > releasing.atMs);
    i < grants.length;
    i++
  ) {
    const third = grants[i]!;
    if (third.granted.atMs >= excludesUntilMs) break;
    // A grant that was made before the release is not its effect.
    if (third.made !== undefined && third.made.atMs <= releasing.atMs) continue;
    found.push({
      atMs: third.granted.atMs,
      why: `${granted(run, third)}, while ${who(holder)} held it with token ${holder.granted.token}, ${after}`,
      evidence: [...evidence(third.granted.atMs), third.asked, third.granted],
    });
    break;
  }
  return found;
}

const granted = (run: Run, op: Granted): string =>
  `${who(op)} was granted ${JSON.stringify(op.asked.name)} with token ${op.granted.token} at ${run.at(op.granted.atMs)}`;
