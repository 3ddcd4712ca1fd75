import type { EventOf, OpId } from "./history.js";
import {
  type Access,
  type Granted,
  isExclusive,
  isGranted,
  proof,
  type Run,
  who,
} from "./operations.js";
import { firstIndex } from "./spans.js";
import type { Finding, Violation } from "./verdict.js";

/**
 * S3: a resource accepts no token below the highest floor that it has seen, and loses no update of
 * a holder that enters before it reads. It refuses no holder that nobody can have overtaken: a
 * fence that refuses everybody would be safe, but useless.
 */
export function fencing(run: Run): Finding {
  const violations: Violation[] = [];
  const undecided: Violation[] = [];
  let checked = 0;
  for (const accesses of run.accesses.values()) {
    checked += accesses.length - 1;
    const stale = staleAccess(run, accesses);
    if (stale !== undefined) violations.push(stale);
    const updates = lostUpdates(run, accesses);
    violations.push(...updates.lost);
    undecided.push(...updates.undecided);
  }
  for (const operations of run.names.values()) {
    const floors = wrongFloors(run, operations.filter(isGranted));
    checked += floors.checked;
    violations.push(...floors.violations);
  }
  const refused = wronglyRefused(run);
  checked += refused.checked;
  violations.push(...refused.violations);
  return { checked, violations, undecided, lacks: "no resource was used twice" };
}

function staleAccess(run: Run, accesses: readonly Access[]): Violation | undefined {
  let highest: Access | undefined;
  for (const access of accesses) {
    if (!access.accepted) continue;
    if (highest !== undefined && access.token < highest.floor) {
      return {
        atMs: access.atMs,
        why: `${where(access)} accepted token ${access.token} of ${access.op} at ${run.at(access.atMs)}, after floor ${highest.floor} of ${highest.op} in step ${highest.step}`,
        evidence: [highest, access],
      };
    }
    if (highest === undefined || access.floor > highest.floor) highest = access;
  }
  return undefined;
}

function lostUpdates(run: Run, accesses: readonly Access[]) {
  const lost: Violation[] = [];
  const undecided: Violation[] = [];
  const entered = new Map<OpId, Access>();
  let written: { readonly write: EventOf<"wrote">; readonly index: number } | undefined;
  for (const [index, access] of accesses.entries()) {
    if (!access.accepted) continue;
    if (access.kind === "entered") {
      entered.set(access.op, access);
      continue;
    }
    const before = written;
    written = { write: access, index };
    if (before === undefined || access.read === before.write.value) continue;
    // The fence does not keep concurrent holders apart, so they may lose each other's updates.
    if (areTogether(before.write, access)) continue;
    // A missing step may be a write of a process that was killed before it reported the write.
    if (access.step - before.write.step !== index - before.index) continue;
    const enter = entered.get(access.op);
    const between = accesses.slice(before.index, index + 1);
    const read = `${access.op} read ${access.read} and wrote ${access.value} to ${where(access)} at ${run.at(access.atMs)}`;
    const had = `though ${before.write.op} had written ${before.write.value} in step ${before.write.step}`;
    if (enter === undefined) {
      undecided.push({
        atMs: access.atMs,
        why: `an update was lost by a write without entering first, which no fence prevents: ${read}, ${had}`,
        evidence: between,
      });
    } else {
      lost.push({
        atMs: access.atMs,
        why: `an update was lost: ${read}, ${had}`,
        evidence: between.includes(enter) ? between : [enter, ...between],
      });
      break;
    }
  }
  return { lost, undecided };
}

/** Whether both holders may have held the name at the same time. */
function areTogether(one: Access, other: Access): boolean {
  if (one.op === other.op) return false;
  const [lower, higher] = one.token < other.token ? [one, other] : [other, one];
  return higher.floor <= lower.token;
}

/**
 * Finds wrong floors. A floor is the lowest token that still holds the name: for an exclusive lease
 * its own token. A floor must be above every earlier exclusive token, or old holders get in, and
 * not above a token that is still held, or holders shut each other out.
 */
function wrongFloors(
  run: Run,
  operations: readonly Granted[],
): Pick<Finding, "checked" | "violations"> {
  const violations: Violation[] = [];
  const byToken = operations.toSorted(({ granted: a }, { granted: b }) =>
    a.token < b.token ? -1 : 1,
  );
  let exclusive: Granted | undefined;
  let before: Granted[] = [];
  for (const op of byToken) {
    const { token, floor, atMs } = op.granted;
    before = before.filter((one) => one.beliefs.at(-1)!.excludesUntilMs > atMs);
    // A store that lost a grant does not know its holder. The fence refuses that holder, which is
    // safe.
    const shutOut = before.find(
      ({ asked, granted }) =>
        floor > granted.token &&
        // The grant was made after its holder's request, perhaps long before the holder learned of
        // it.
        !run.storeFaultsOf(asked.name).touches(asked.atMs, Math.max(granted.atMs, atMs)),
    );
    const letIn =
      exclusive !== undefined && floor <= exclusive.granted.token ? exclusive : undefined;
    const other = isExclusive(op) ? undefined : (shutOut ?? letIn);
    if (other !== undefined || (isExclusive(op) && floor !== token)) {
      const than = other ? `, though ${who(other)} had token ${other.granted.token}` : "";
      violations.push({
        atMs,
        why: `${who(op)} was granted ${JSON.stringify(op.asked.name)} with token ${token} and floor ${floor}${than}`,
        evidence: [op, ...(other ? [other] : [])].flatMap((one) => proof(one, atMs)),
      });
      break;
    }
    if (isExclusive(op)) exclusive = op;
    else before.push(op);
  }
  return { checked: Math.max(0, byToken.length - 1), violations };
}

/**
 * Finds refusals without a reason: no grant so far had a higher floor, so nobody can have moved the
 * fence beyond this token.
 */
function wronglyRefused(run: Run): Pick<Finding, "checked" | "violations"> {
  const floors: { readonly atMs: number; readonly floor: bigint }[] = [];
  const raise = (atMs: number, floor: bigint): void => {
    if (floors.length === 0 || floor > floors.at(-1)!.floor) floors.push({ atMs, floor });
  };
  const entered = new Map<string, Access>();
  const refused: { readonly access: Access; readonly evidence: readonly Access[] }[] = [];
  for (const event of run.events) {
    if (event.kind === "granted") raise(event.atMs, event.floor);
    if (event.kind !== "entered" && event.kind !== "wrote") continue;
    const key = JSON.stringify([event.resource, event.op]);
    const enter = entered.get(key);
    if (event.accepted) {
      raise(event.atMs, event.floor);
      if (event.kind === "entered") entered.set(key, event);
    } else if (event.kind === "entered") refused.push({ access: event, evidence: [event] });
    // A strict fence also refuses a holder that did not enter.
    else if (enter !== undefined) refused.push({ access: event, evidence: [enter, event] });
  }
  const violations = refused
    .filter(({ access }) => {
      const known = floors[firstIndex(floors, ({ atMs }) => atMs > access.atMs) - 1];
      return known === undefined || known.floor <= access.token;
    })
    .map(({ access, evidence }) => ({
      atMs: access.atMs,
      why: `${where(access)} refused token ${access.token} of ${access.op} at ${run.at(access.atMs)}, though nobody had been granted a higher floor`,
      evidence,
    }));
  return { checked: refused.length, violations };
}

const where = ({ resource, step }: Access): string => `${JSON.stringify(resource)} (step ${step})`;
