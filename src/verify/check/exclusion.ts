import {
  type Belief,
  type Granted,
  isExclusive,
  isGranted,
  madeFor,
  type Operation,
  proof,
  type Run,
  who,
} from "./operations.js";
import type { Finding, Limits, Violation } from "./verdict.js";

/**
 * S1: while one client believes that it holds a name exclusively, no other client believes that it
 * holds the name. Where the store is observed, no client may count on a grant for longer than the
 * store keeps it, even if nobody else takes the name in that time. After a forced release, the old
 * holder may believe for the rest of its lease, but excludes nobody.
 */
export function exclusion(run: Run, { recordMs }: Limits): Finding {
  const violations: Violation[] = [];
  let checked = 0;
  for (const op of run.operations.values()) {
    if (!isGranted(op) || op.kept.length === 0) continue;
    checked++;
    const beyond = beyondTheStore(run, op, recordMs);
    if (beyond !== undefined) violations.push(beyond);
  }
  for (const [name, operations] of run.names) {
    let longest: Belief | undefined;
    let longestExclusive: Belief | undefined;
    for (const belief of beliefsOf(operations)) {
      const earlier = isExclusive(belief.op) ? longest : longestExclusive;
      if (earlier !== undefined) checked++;
      if (earlier !== undefined && earlier.excludesUntilMs > belief.fromMs) {
        violations.push({
          atMs: belief.fromMs,
          why:
            `${who(belief.op)} held ${JSON.stringify(name)} with token ${belief.op.granted?.token} from ${run.at(belief.fromMs)}, ` +
            `while ${who(earlier.op)} held it with token ${earlier.op.granted?.token} until ${run.at(earlier.excludesUntilMs)}`,
          evidence: [earlier, belief].flatMap(({ op }) => proof(op as Granted, belief.fromMs)),
        });
      }
      longest = later(longest, belief);
      if (isExclusive(belief.op)) longestExclusive = later(longestExclusive, belief);
    }
  }
  return { checked, violations, lacks: "no name was held more than once" };
}

/**
 * S8: the permits that are held of a name at one time stay within its limit. All claims use the
 * same limit until a resize, and a re-entry has the token of its lease. S1 alone reports two
 * exclusive leases that overlap.
 */
export function permits(run: Run): Finding {
  const violations: Violation[] = [];
  let checked = 0;
  for (const operations of run.names.values()) {
    const beliefs = beliefsOf(operations);
    const byEnd = beliefs.toSorted((a, b) => a.excludesUntilMs - b.excludesUntilMs);
    const active = new Set<Belief>();
    const inUse = { exclusive: 0, shared: 0 };
    const kindOf = ({ op }: Belief): keyof typeof inUse =>
      isExclusive(op) ? "exclusive" : "shared";
    const seen = { exclusive: 0, shared: 0 };
    let ended = 0;
    for (const belief of beliefs) {
      for (; ended < byEnd.length && byEnd[ended]!.excludesUntilMs <= belief.fromMs; ended++) {
        const over = byEnd[ended]!;
        if (active.delete(over)) inUse[kindOf(over)] -= over.op.asked.permits;
      }
      const { permits } = belief.op.asked;
      const limit = mostInForce(belief);
      const kind = kindOf(belief);
      if (seen.shared > 0 || (kind === "shared" && seen.exclusive > 0)) checked++;
      seen[kind]++;
      const [other] = active;
      if (other !== undefined && areOfDifferentLimits(other, belief)) {
        violations.push(together(run, [other, belief], "of different limits"));
        continue;
      }
      const others = kind === "exclusive" ? inUse.shared : inUse.shared + inUse.exclusive;
      if (others + permits > limit) {
        const some = [...active].filter((one) => kind === "shared" || kindOf(one) === "shared");
        violations.push(together(run, [...fewest(some, limit - permits), belief], "too many"));
        continue;
      }
      active.add(belief);
      inUse[kind] += permits;
    }
  }
  for (const inner of run.operations.values()) {
    const outer = run.operations.get(inner.asked.within ?? "");
    if (outer === undefined || !isGranted(outer) || !isGranted(inner)) continue;
    checked++;
    if (inner.granted.token === outer.granted.token) continue;
    violations.push({
      atMs: inner.granted.atMs,
      why: `${who(inner)} re-entered the lease of ${who(outer)} with token ${outer.granted.token} and got token ${inner.granted.token}`,
      evidence: [outer.asked, outer.granted, inner.asked, inner.granted],
    });
  }
  return {
    checked,
    violations,
    lacks: "no name was held by shared leases or permits, and no lease re-entered",
  };
}

/**
 * The highest limit that was in force between the grant and the moment when its holder learned of
 * it. Among clients that believe at one time, the latest grant was made in that interval, when all
 * of their grants were in the store.
 */
function mostInForce({ op, fromMs }: Belief): number {
  const { asked, resizes } = op;
  const made = madeFor(op);
  let most = made?.limit ?? asked.limit;
  for (const one of resizes) {
    if (one.atMs >= (made ?? asked).atMs && one.sinceMs <= fromMs) most = Math.max(most, one.limit);
  }
  return most;
}

/** Whether two beliefs rest on different limits, without a resize since the earlier request. */
function areOfDifferentLimits({ op: other }: Belief, { op, fromMs }: Belief): boolean {
  const sinceMs = Math.min(other.asked.atMs, op.asked.atMs);
  return (
    other.asked.limit !== op.asked.limit &&
    !op.resizes.some((one) => one.atMs >= sinceMs && one.sinceMs <= fromMs)
  );
}

function together(run: Run, beliefs: readonly Belief[], what: string): Violation {
  const { op: first } = beliefs[0]!;
  const { atMs, name } = { atMs: beliefs.at(-1)!.fromMs, name: first.asked.name };
  const isResized = beliefs.some(({ op }) => op.asked.limit !== first.asked.limit);
  const each = beliefs.map(
    ({ op }) =>
      `${who(op)} with ${op.asked.permits} of ${madeFor(op)?.limit ?? op.asked.limit} and token ${op.granted?.token}`,
  );
  return {
    atMs,
    why: `${what} for ${JSON.stringify(name)} at ${run.at(atMs)}: ${each.join(", ")}`,
    evidence: [
      ...beliefs.flatMap(({ op }) => [
        ...proof(op as Granted, atMs),
        ...(madeFor(op)?.limit === undefined ? [] : [madeFor(op)!]),
      ]),
      ...(isResized ? first.resizes.filter((one) => one.sinceMs <= atMs) : []),
    ],
  };
}

/** The largest beliefs first, until their sum exceeds `most`: the violation needs each of them. */
function fewest(beliefs: readonly Belief[], most: number): readonly Belief[] {
  const bySize = beliefs.toSorted((a, b) => b.op.asked.permits - a.op.asked.permits);
  let sum = 0;
  return bySize.filter(({ op }) => {
    const needed = sum <= most;
    if (needed) sum += op.asked.permits;
    return needed;
  });
}

/** The first moment at which a client counts on its grant for longer than the store keeps it. */
function beyondTheStore(run: Run, op: Granted, recordMs: number): Violation | undefined {
  const proofs = [op.granted, ...op.renewals];
  const revokedMs = op.revoked?.sinceMs ?? Number.POSITIVE_INFINITY;
  const { token } = op.granted;
  const kepts = op.kept.filter(
    (one) =>
      (one.token ?? token) === token &&
      // A renewal and the forced release may happen at the same moment.
      (one.atMs < revokedMs || (one.atMs === revokedMs && one.untilMs > revokedMs)),
  );
  const moments = [...proofs, ...op.kept].sort((a, b) => a.atMs - b.atMs);
  for (const { atMs } of moments) {
    const proved = proofs.findLast((one) => one.atMs <= atMs);
    const kept = kepts.findLast((one) => one.atMs <= atMs);
    const believes = op.beliefs.some(({ fromMs, toMs }) => fromMs <= atMs && atMs < toMs);
    if (!believes || proved === undefined || kept === undefined) continue;
    if (proved.untilMs <= kept.untilMs + recordMs) continue;
    return {
      atMs,
      why: `${who(op)} counted on ${JSON.stringify(op.asked.name)} with token ${op.granted.token} until ${run.at(proved.untilMs)}, and the store kept it until ${run.at(kept.untilMs)}`,
      evidence: [op.asked, op.granted, proved, kept],
    };
  }
  return undefined;
}

/** Beliefs that exclude others, in the order of their start. */
function beliefsOf(operations: readonly Operation[]): readonly Belief[] {
  return operations
    .flatMap(({ beliefs }) => beliefs)
    .filter(({ fromMs, excludesUntilMs }) => fromMs < excludesUntilMs)
    .sort((a, b) => a.fromMs - b.fromMs);
}

const later = (one: Belief | undefined, other: Belief): Belief =>
  one === undefined || other.excludesUntilMs > one.excludesUntilMs ? other : one;
