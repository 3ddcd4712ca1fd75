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

/** S5: an acquire that gave up is not granted later, and leaves nothing in the store for longer than its ttl. */
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
      why: `${who(op)} was granted ${JSON.stringify(asked.name)} at ${run.at(grantedAgain.atMs)}, though its request had ended ${before} at ${run.at(first.atMs)}`,
      evidence: [asked, first, grantedAgain],
    });
  }
  for (const seen of run.events) {
    if (seen.kind !== "seen") continue;
    for (const { op: id, token } of seen.holders) {
      const op = run.operations.get(id);
      // A late copy of its claim may have made another grant, which has another token.
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
      // A fault may have delayed a request, or the expiry in the store.
      const expiryMs = run.faults.graceAfter(end.atMs, longestTtlMs(op)) + orphanMs;
      // A client that lives undisturbed releases its claim at once.
      const isDisturbed = end.kind === "killed" || end.kind === "lost" || disturbed(run, op, seen);
      const dueMs = isDisturbed ? expiryMs : Math.min(expiryMs, end.atMs + cleanMs);
      if (seen.sinceMs <= dueMs) continue;
      violations.push({
        atMs: seen.atMs,
        why: `the store still showed ${who(op)} at ${JSON.stringify(op.asked.name)} at ${run.at(seen.sinceMs)}; its op had ended (${end.kind}) at ${run.at(end.atMs)}, with a ttl of ${longestTtlMs(op)} ms`,
        evidence: [op.asked, end, seen],
      });
    }
  }
  return { checked, violations, lacks: "no acquire gave up, and the store was not inspected" };
}

/** A grant that is still in the store after its release; null if it need not be gone yet. */
function leftInStore(
  run: Run,
  op: Granted,
  seen: EventOf<"seen">,
  repayMs: number,
): Violation | null {
  const { asked, granted, releasing, released, killed } = op;
  const isDone = released?.result === "released";
  const end = isDone ? released : releasing;
  if (end === undefined || run.storeFaultsOf(asked.name).touches(granted.atMs, seen.atMs))
    return null;
  const dueMs = isDone ? end.atMs : repaidBy(run, op, end, repayMs);
  if (seen.sinceMs <= dueMs) return null;
  // A client that died or closed sends no further release: the grant expires with its ttl.
  if (!isDone && (killed !== undefined || hasLeft(run, asked.client, seen))) return null;
  const release = isDone
    ? `its release was answered "released" at ${run.at(end.atMs)}`
    : `its release was sent at ${run.at(end.atMs)}, and was due by ${run.at(dueMs)}`;
  return {
    atMs: seen.atMs,
    why: `the store still showed ${who(op)} with token ${granted.token} at ${JSON.stringify(asked.name)} at ${run.at(seen.sinceMs)}; ${release}`,
    evidence: [asked, granted, end, seen],
  };
}

/** The time by which a failed release must be done: its client repeats it while it runs and no fault is active. */
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

/** The first event that ended the client's use of the name. */
function endOf({ notGranted, lost, releasing, killed }: Operation): Event | undefined {
  return [notGranted, lost, releasing, killed]
    .filter((event) => event !== undefined)
    .reduce<Event | undefined>((a, b) => (a !== undefined && a.atMs <= b.atMs ? a : b), undefined);
}

/**
 * S6: a client is notified of a loss by its own deadline, or as soon as it runs again if it was
 * paused then. After a forced release, the holder learns of the loss within the rest of its lease.
 * Leases on a frozen machine are left out: its timers are late, and S7 judges its `assertHeld`.
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
    // A machine that woke shortly before the deadline reads its clock a little later.
    const dueMs = run
      .pausesOf(asked.client)
      .graceAfter(deadlineMs - wakeMs, wakeMs + lossMs, wakeMs);
    if (run.frozenOf(asked.client).touches(asked.atMs, dueMs)) continue;
    if (lost !== undefined && lost.atMs <= dueMs) checked++;
    else if (Math.min(releasing?.atMs ?? dueMs, killed?.atMs ?? dueMs) >= dueMs) {
      const late = lost ?? run.after(dueMs);
      if (late === undefined) continue;
      checked++;
      const notice = lost
        ? `was notified of the loss at ${run.at(late.atMs)}`
        : "was never notified";
      violations.push({
        atMs: late.atMs,
        why: `${who(op)} ${notice}, though its lease on ${JSON.stringify(asked.name)} with token ${op.granted.token} ended at ${run.at(deadlineMs)}`,
        evidence: [asked, op.granted, provedBy, late],
      });
    }
  }
  return { checked, violations, lacks: "no lease came to its deadline" };
}

/** A proof from before the forced release is good for at most one ttl from then. */
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

/** A client's clock may run slower than the time line by this factor. */
const CLOCKS_DIFFER = 1.01;

/** S7: a lease is not granted, renewed or reported as held after its deadline, after its loss, or after its release. */
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
      // The clock that counts `maxHold` stands still during a freeze; the store's lease is longer
      // than `maxHold`.
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
        // After a freeze, the store may still have the grant though the deadline has passed. A
        // client that suspected a freeze believes again when a renewal succeeds.
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
