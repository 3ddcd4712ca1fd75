import { closing } from "./closing.js";
import { cost } from "./cost.js";
import { endings } from "./endings.js";
import { exclusion, permits } from "./exclusion.js";
import { fencing } from "./fencing.js";
import { fold } from "./fold.js";
import type { Event, History } from "./history.js";
import { deadlines, losses, orphans } from "./leases.js";
import type { Operation, Run } from "./operations.js";
import { order } from "./order.js";
import { freed, resumed } from "./recovery.js";
import { stale } from "./stale.js";
import { tokens } from "./tokens.js";
import { undisturbed } from "./undisturbed.js";
import {
  type Excuse,
  type Finding,
  LIMITS,
  type Limits,
  type RuleId,
  type Verdict,
  type Violation,
} from "./verdict.js";

export { type Excuse, LIMITS, type Limits, type RuleId, type Verdict } from "./verdict.js";

export interface Rule {
  /** The promise, in one sentence. */
  readonly promise: string;
  check(history: History, limits: Limits): Verdict;
}

type Find = (run: Run, limits: Limits) => Finding;

const PROMISES: Readonly<Record<RuleId, readonly [promise: string, find: Find]>> = {
  S1: ["While a holder may believe that it holds a name alone, nobody else does.", exclusion],
  S2: ["Tokens are unique, and rise in the order of the grants.", tokens],
  S3: ["A fence accepts no token below the highest floor seen, and loses no update.", fencing],
  S4: ["A stale release or renewal does not touch a successor.", stale],
  S5: ["An acquire that gave up gets no grant later, and leaves nothing beyond its ttl.", orphans],
  S6: ["A running holder is notified of a loss by its own deadline.", losses],
  S7: ["Nothing counts as held after the deadline.", deadlines],
  S8: ["Permits stay within the limit, and a re-entry keeps the token.", permits],
  S9: ["A name that atLeast closes opens at its time, not before.", closing],
  L1: ["A dead holder's name is free again within its ttl and a little more.", freed],
  L2: ["Waiters go on within seconds of healing.", resumed],
  L3: [
    "Aborts and timeouts end the wait; a closed client holds nothing and leaves nothing.",
    endings,
  ],
  L4: ["First come, first served.", order],
  L5: ["Commands per handover do not grow with the number of waiters.", cost],
  L6: ["A client that is not disturbed keeps its lease, and sees no outage.", undisturbed],
};

/** All rules that a history is checked against, by id. */
export const RULES = Object.fromEntries(
  Object.entries(PROMISES).map(([id, [promise, find]]): [string, Rule] => [
    id,
    {
      promise,
      check(history, limits) {
        const run = fold(history);
        return conclude(id as RuleId, run, find(run, limits));
      },
    },
  ]),
) as Readonly<Record<RuleId, Rule>>;

export interface CheckOptions {
  readonly excuses?: readonly Excuse[];
  /** The moment from which the times in sentences count; by default the first event. */
  readonly startMs?: number | undefined;
}

/** Checks one history against all rules, in the order of their ids. */
export function checkHistory(
  history: History,
  limits: Partial<Limits> = {},
  { excuses = [], startMs }: CheckOptions = {},
): readonly Verdict[] {
  const run = fold(history, startMs);
  const all = { ...LIMITS, ...limits };
  return Object.entries(PROMISES).map(([id, [, find]]) => {
    const rule = id as RuleId;
    const isExcused = (violation: Violation): boolean =>
      excuses.some((excuse) => excuse.rules.includes(rule) && covers(excuse, violation, run));
    const finding = find(run, all);
    const violations = finding.violations.filter((one) => !isExcused(one));
    const excused = finding.violations.filter(isExcused);
    const first = earliest(excused);
    const verdict = conclude(rule, run, { ...finding, violations });
    if (first === undefined) return verdict;
    const { why, evidence } = first;
    return {
      ...verdict,
      excused: { count: excused.length, why, evidence: inOrder(run, evidence) },
    };
  });
}

function covers(
  { fromMs, toMs, name, client }: Excuse,
  { atMs, sinceMs = atMs, evidence }: Violation,
  { operations }: Run,
): boolean {
  if (atMs < fromMs || toMs < sinceMs) return false;
  const isOne = ({ asked }: Operation): boolean =>
    (name === undefined || asked.name === name) &&
    (client === undefined || asked.client === client);
  if (name === undefined && client === undefined) return true;
  const ops = evidence.map((event) => ("op" in event ? operations.get(event.op) : undefined));
  return ops.some((op) => op !== undefined && isOne(op));
}

function conclude(rule: RuleId, run: Run, finding: Finding): Verdict {
  const { checked, lacks } = finding;
  const violated = earliest(finding.violations);
  const undecided = earliest(finding.undecided ?? []);
  const reported = violated ?? undecided;
  if (reported !== undefined) {
    const verdict = violated === undefined ? "unknown" : "violated";
    return { rule, verdict, why: reported.why, evidence: inOrder(run, reported.evidence), checked };
  }
  return checked === 0
    ? { rule, verdict: "unknown", why: lacks, evidence: [], checked }
    : { rule, verdict: "ok", why: `held, compared ${checked} times`, evidence: [], checked };
}

function earliest(violations: readonly Violation[]): Violation | undefined {
  return violations.reduce<Violation | undefined>(
    (first, one) => (first === undefined || one.atMs < first.atMs ? one : first),
    undefined,
  );
}

function inOrder(run: Run, evidence: readonly Event[]): History {
  const places = new Map(evidence.map((event) => [event, run.events.indexOf(event)]));
  return [...places.keys()].sort((a, b) => places.get(a)! - places.get(b)!);
}
