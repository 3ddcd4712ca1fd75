import type { Event, EventOf } from "./history.js";
import {
  type Granted,
  isGranted,
  longestTtlMs,
  type Operation,
  type Run,
  who,
} from "./operations.js";
import { Spans } from "./spans.js";
import type { Finding, Limits, Violation } from "./verdict.js";

/** S5: an acquire that was given up is not granted afterwards, and leaves nothing in the store for longer than its ttl. */
export function orphans(run: Run, { orphanMs, cleanMs, repayMs }: Limits): Finding {
  const violations: Violation[] = [];
  let checked = 0;
  for (const op of run.operations.values()) {
    const { asked, notGranted, grantedAgain } = op;
    if (notGranted !== undefined) checked++;
    if (grantedAgain === undefined) continue;
    const first = op.granted ?? notGranted!;
    const before = op.granted ? `with token ${op.granted.token}` : `"${notGranted!.outcome}"`;
    violations.push({
      atMs: grantedAgain.atMs,
      why: `${who(op)} was granted ${JSON.stringify(asked.name)} at ${run.at(grantedAgain.atMs)}, though its ask had ended ${before} at ${run.at(first.atMs)}`,
      evidence: [asked, first, grantedAgain],
    });
  }
  for (const seen of run.events) {
    if (seen.kind !== "seen") continue;
    for (const { op: id, token } of seen.holders) {
      const op = run.operations.get(id);
      // A late copy of its ask may have made another grant, which has another token.
      if (op === undefined || !isGranted(op) || token !== op.granted.token) continue;
      const left = leftInStore(run, op, seen, repayMs);
      if (left === null) continue;
      checked++;
      violations.push(left);
    }
    for (const id of [...seen.holders.map(({ op }) => op), ...seen.waiters]) {
      const op = run.operations.get(id);
      const end = op && endOf(op);
      if (op === undefined || end === undefined || end.atMs >= seen.sinceMs) continue;
      checked++;
      // A fault may have held back a request, or the store's own count.
      const expiryMs = run.faults.graceAfter(end.atMs, longestTtlMs(op)) + orphanMs;
      // Who lives, and is not disturbed, clears up.
      const isDisturbed = end.kind === "killed" || end.kind === "lost" || disturbed(run, op, seen);
      const dueMs = isDisturbed ? expiryMs : Math.min(expiryMs, end.atMs + cleanMs);
      if (seen.sinceMs <= dueMs) continue;
      violations.push({
        atMs: seen.atMs,
        why: `the store still showed ${who(op)} at ${JSON.stringify(op.asked.name)} at ${run.at(seen.sinceMs)}; it had ended (${end.kind}) at ${run.at(end.atMs)}, with a ttl of ${longestTtlMs(op)} ms`,
        evidence: [op.asked, end, seen],
      });
    }
  }
  return { checked, violations, lacks: "no acquire was given up, and the store was not looked at" };
}

/** A grant that was given back, and is still there; null: it need not be gone yet. */
function leftInStore(
  run: Run,
  op: Granted,
  seen: EventOf<"seen">,
  repayMs: number,
): Violation | null {
  const { asked, granted, releasing, released, killed } = op;
  const isDone = released?.result === "released";
  const end = isDone ? released : releasing;
  if (end === undefined || run.storeFaults.touches(granted.atMs, seen.atMs)) return null;
  const dueMs = isDone ? end.atMs : repaidBy(run, op, end, repayMs);
  if (seen.sinceMs <= dueMs) return null;
  // A client that died or closed owes nothing any more: the ttl does it.
  if (!isDone && (killed !== undefined || hasLeft(run, asked.client, seen))) return null;
  const told = isDone
    ? `its release was answered "released" at ${run.at(end.atMs)}`
    : `its release was sent at ${run.at(end.atMs)}, and was due by ${run.at(dueMs)}`;
  return {
    atMs: seen.atMs,
    why: `the store still showed ${who(op)} with token ${granted.token} at ${JSON.stringify(asked.name)} at ${run.at(seen.sinceMs)}; ${told}`,
    evidence: [asked, granted, end, seen],
  };
}

/** A release that fails is sent again when its client runs and nothing is in the way. */
function repaidBy(run: Run, { asked }: Operation, { atMs }: Event, repayMs: number): number {
  if (repayMs === Number.POSITIVE_INFINITY) return repayMs;
  const inTheWay = new Spans([...run.faults, ...run.pausesOf(asked.client)]);
  return inTheWay.graceAfter(atMs, repayMs);
}

const hasLeft = (run: Run, client: string, { atMs }: Event): boolean =>
  run.events.some(
    (event) => event.kind === "left" && event.client === client && event.atMs <= atMs,
  );

function disturbed(run: Run, { asked, killed }: Operation, { atMs }: Event): boolean {
  if (killed !== undefined) return true;
  return (
    run.faults.touches(asked.atMs, atMs) || run.pausesOf(asked.client).touches(asked.atMs, atMs)
  );
}

/** The first event with which it gave up all that it may have in the store. */
function endOf({ notGranted, lost, releasing, killed }: Operation): Event | undefined {
  return [notGranted, lost, releasing, killed]
    .filter((event) => event !== undefined)
    .reduce<Event | undefined>((a, b) => (a !== undefined && a.atMs <= b.atMs ? a : b), undefined);
}

/**
 * S6: a loss is told by the client's own deadline, or as soon as a client that was paused then goes
 * on. Who was made to give its name up learns it within what was left of its lease. The timers of a
 * machine that was frozen are late, and S7 judges what `assertHeld` says there.
 */
export function losses(run: Run, { lossMs, wakeMs }: Limits): Finding {
  const violations: Violation[] = [];
  let checked = 0;
  for (const op of run.operations.values()) {
    if (!isGranted(op)) continue;
    const { asked, lost, releasing, killed } = op;
    const { deadlineMs, provedBy } = op.beliefs.at(-1)!;
    if (op.revoked !== undefined) {
      checked++;
      const beyond = beyondTheRest(run, op, lossMs);
      if (beyond !== undefined) violations.push(beyond);
    }
    // A machine that woke shortly before looks at its clock a little later.
    const dueMs = run
      .pausesOf(asked.client)
      .graceAfter(deadlineMs - wakeMs, wakeMs + lossMs, wakeMs);
    if (run.frozenOf(asked.client).touches(asked.atMs, dueMs)) continue;
    if (lost !== undefined && lost.atMs <= dueMs) checked++;
    else if (Math.min(releasing?.atMs ?? dueMs, killed?.atMs ?? dueMs) >= dueMs) {
      const late = lost ?? run.after(dueMs);
      if (late === undefined) continue;
      checked++;
      const told = lost ? `was told of the loss at ${run.at(late.atMs)}` : "was never told";
      violations.push({
        atMs: late.atMs,
        why: `${who(op)} ${told}, though its lease on ${JSON.stringify(asked.name)} with token ${op.granted.token} ended at ${run.at(deadlineMs)}`,
        evidence: [asked, op.granted, provedBy, late],
      });
    }
  }
  return { checked, violations, lacks: "no lease came to its deadline" };
}

/** What was proved before it was taken is good for a ttl from then, at the most. */
function beyondTheRest(run: Run, op: Granted, lossMs: number): Violation | undefined {
  const { asked, granted, revoked } = op;
  const mostMs = revoked!.atMs + longestTtlMs(op) + lossMs;
  const beyond = [granted, ...op.renewals].find(({ untilMs }) => untilMs > mostMs);
  if (beyond === undefined) return undefined;
  return {
    atMs: Math.max(beyond.atMs, revoked!.atMs),
    why: `${who(op)} counted on it until ${run.at(beyond.untilMs)}, though its lease on ${JSON.stringify(asked.name)} with token ${granted.token} was taken by force at ${run.at(revoked!.atMs)}, with a ttl of ${longestTtlMs(op)} ms`,
    evidence: [asked, granted, revoked!, beyond],
  };
}

/** A client's clock may run this much slower than the time line. */
const CLOCKS_DIFFER = 1.01;

/** S7: nothing counts as held, is granted or renewed after the deadline, nor after it was told or released. */
export function deadlines(run: Run, { recordMs }: Limits): Finding {
  const violations: Violation[] = [];
  let checked = 0;
  for (const op of run.operations.values()) {
    if (!isGranted(op)) continue;
    const { asked, granted } = op;
    let inForce: EventOf<"granted" | "renewed"> = granted;
    let ended: Event | undefined;
    const frozen = run.frozenOf(asked.client);
    const maxHoldAtMs =
      granted.atMs + (asked.maxHoldMs ?? Number.POSITIVE_INFINITY) / CLOCKS_DIFFER;
    const judge = (event: Event, what: string): void => {
      checked++;
      // The clock that counts `maxHold` stands still in a freeze. The store's lease is longer than that.
      const isByMaxHold = inForce.untilMs + recordMs >= maxHoldAtMs;
      const stoodMs = isByMaxHold ? frozen.coverMs(inForce.atMs, event.atMs) : 0;
      const isLate = event.atMs >= inForce.untilMs + stoodMs + recordMs;
      if (!isLate && ended === undefined) return;
      const after = isLate ? `its deadline of ${run.at(inForce.untilMs)}` : `"${ended?.kind}"`;
      violations.push({
        atMs: event.atMs,
        why: `${who(op)} ${what} at ${run.at(event.atMs)}, after ${after}; token ${granted.token} of ${JSON.stringify(asked.name)}`,
        evidence: [asked, granted, (isLate ? inForce : ended)!, event],
      });
    };
    judge(granted, "was granted");
    const frozenMs = frozen.coverMs(granted.atMs, Number.POSITIVE_INFINITY);
    const maxHoldMs = (asked.maxHoldMs ?? Number.POSITIVE_INFINITY) + frozenMs;
    const most = granted.atMs + maxHoldMs * CLOCKS_DIFFER;
    const tooLong = [granted, ...op.renewals].find((one) => one.untilMs > most + recordMs);
    if (tooLong !== undefined) {
      violations.push({
        atMs: tooLong.atMs,
        why: `${who(op)} counted on ${JSON.stringify(asked.name)} until ${run.at(tooLong.untilMs)}, with a maxHold of ${asked.maxHoldMs} ms from ${run.at(granted.atMs)}`,
        evidence: [asked, granted, tooLong],
      });
    }
    for (const event of op.course) {
      if (event.kind === "renewed") {
        // After a freeze, the store may have it though the deadline has passed; and a client that has
        // suspected one believes again when a renewal is answered.
        const isSuspended = inForce.untilMs <= inForce.atMs;
        if (!isSuspended && !frozen.touches(asked.atMs, event.atMs)) judge(event, "was renewed");
        inForce = event;
      } else if (event.kind === "looked") {
        if (event.held) judge(event, "still counted as held");
      } else ended = event;
    }
  }
  return { checked, violations, lacks: "nothing was granted" };
}
