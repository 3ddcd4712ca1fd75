import { checkHistory, RULES } from "../check/check.js";
import type { History } from "../check/history.js";
import { type Access, listIn } from "../check/operations.js";
import type { Excuse, Limits, RuleId } from "../check/verdict.js";
import type { CheckId, CheckResult, Registers } from "./result.js";
import type { RollCall } from "./roll-call.js";

/** The conduct of a run's processes, which is not in the history. */
export interface Conduct {
  /** Processes that ended by themselves, unhandled rejections, rejected calls of `close()`, printed text. */
  readonly crashes: readonly string[];
  /** Calls and processes that did not end in time. */
  readonly hung: readonly string[];
  /** Records that were left in the store; null if the store did not reply. */
  readonly left: readonly string[] | null;
  readonly roll: RollCall;
  /** Whether the verifier started the store: then nobody else can have caused an outage. */
  readonly isOurs: boolean;
  /** Commands that the store ran; null if it does not count them. */
  readonly commands: number | null;
  readonly workers: number;
}

/** The promises about a whole run. */
const CONDUCT: Readonly<Record<Exclude<CheckId, RuleId>, string>> = {
  P1: "No process crashes, leaves a rejection unhandled or prints anything, and no close() rejects.",
  P2: "Every call settles in time, and every process can close.",
  P3: "Nothing is left in the store one ttl after everybody has gone.",
  P4: "The store runs a bounded number of commands.",
  P5: "Once all faults are healed, every worker gets every name soon, and keeps it.",
};

/**
 * The server counts the commands of all traffic, not of handovers alone (L5). The history does not
 * contain stalls of the server, its disk and the proxies, and each of them can cost a short lease
 * (L6).
 */
const NOT_SEEN_HERE: readonly RuleId[] = ["L5", "L6"];

const PROMISES = {
  ...Object.fromEntries(
    Object.entries(RULES)
      .filter(([id]) => !NOT_SEEN_HERE.includes(id as RuleId))
      .map(([id, { promise }]) => [id, promise]),
  ),
  ...CONDUCT,
} as Readonly<Record<CheckId, string>>;

/** Far above the need of any traffic, and far below that of a hot loop. */
const COMMANDS = { perOperation: 40, perWorkerSecond: 100 };

export function judge(
  history: History,
  conduct: Conduct,
  {
    limits,
    excuses,
    lastedMs,
    startMs,
  }: {
    readonly limits: Partial<Limits>;
    readonly excuses: readonly Excuse[];
    readonly lastedMs: number;
    /** The moment from which times count, for people. */
    readonly startMs: number;
  },
): readonly CheckResult[] {
  const verdicts = checkHistory(history, limits, { excuses, startMs });
  const seen = verdicts.filter(({ rule }) => !NOT_SEEN_HERE.includes(rule));
  const rules = seen.map((verdict): CheckResult => {
    const { rule, checked, why, evidence, excused } = verdict;
    const isViolated = verdict.verdict === "violated";
    const expected = excused?.count ?? 0;
    const about = { id: rule, promise: PROMISES[rule], checked, expected };
    if (isViolated) return { ...about, verdict: "violated", why, evidence };
    if (excused !== undefined) {
      return { ...about, verdict: "expected", why: excused.why, evidence: excused.evidence };
    }
    return { ...about, verdict: verdict.verdict === "ok" ? "held" : "unknown", why, evidence };
  });
  const asked = history.filter(({ kind }) => kind === "asked").length;
  const most =
    asked * COMMANDS.perOperation + conduct.workers * (lastedMs / 1_000) * COMMANDS.perWorkerSecond;
  const { crashes, hung, left, commands } = conduct;
  const isHot = commands !== null && commands > most;
  return [
    ...rules,
    conductOf("P1", conduct.workers, crashes),
    conductOf(
      "P2",
      conduct.workers,
      hung.map((what) => `${what} did not end in time`),
    ),
    left === null ? unseen("P3", "the store did not reply") : conductOf("P3", 1, left),
    commands === null
      ? unseen("P4", "the store does not count its commands")
      : conductOf(
          "P4",
          commands,
          isHot
            ? [`${commands} commands for ${asked} operations in ${Math.round(lastedMs)} ms`]
            : [],
        ),
    rollCallOf(conduct),
  ];
}

/** A user's own store may be down for other reasons, so its outages prove nothing. */
function rollCallOf({ roll, isOurs }: Conduct): CheckResult {
  const { asked, failures, outages } = roll;
  if (!isOurs && outages > 0 && outages === failures.length) return unseen("P5", failures[0]!);
  return asked === 0 ? unseen("P5", "no worker was left") : conductOf("P5", asked, failures);
}

function conductOf(
  id: Exclude<CheckId, RuleId>,
  checked: number,
  found: readonly string[],
): CheckResult {
  const [first] = found;
  return {
    id,
    promise: PROMISES[id],
    verdict: first === undefined ? "held" : "violated",
    checked,
    expected: 0,
    why: first ?? `held, compared ${checked} times`,
    evidence: [],
  };
}

const unseen = (id: CheckId, why: string): CheckResult => ({
  id,
  promise: PROMISES[id],
  verdict: "unknown",
  checked: 0,
  expected: 0,
  why,
  evidence: [],
});

/** Merges the checks of several runs: the first violation counts, otherwise the first expected one. */
export function merge(runs: readonly (readonly CheckResult[])[]): readonly CheckResult[] {
  return (Object.keys(PROMISES) as CheckId[]).map((id) => {
    const all = runs.flatMap((checks) => checks.filter((one) => one.id === id));
    const worst =
      all.find(({ verdict }) => verdict === "violated") ??
      all.find(({ verdict }) => verdict === "expected") ??
      all.find(({ verdict }) => verdict === "held") ??
      all[0] ??
      unseen(id, "nothing was run");
    const checked = all.reduce((sum, one) => sum + one.checked, 0);
    const expected = all.reduce((sum, one) => sum + one.expected, 0);
    const why = worst.verdict === "held" ? `held, compared ${checked} times` : worst.why;
    return { ...worst, checked, expected, why };
  });
}

export function countRegisters(history: History): Registers {
  const fenced = { writes: 0, lost: 0, refused: 0 };
  const unfenced = { writes: 0, lost: 0, refused: 0 };
  const accesses = new Map<string, Access[]>();
  for (const event of history) {
    if (event.kind === "wrote" || event.kind === "entered") {
      listIn(accesses, event.resource).push(event);
      if (!event.accepted) fenced.refused++;
    } else if (event.kind === "wrote-unfenced") {
      unfenced.writes++;
      if (event.found !== event.read) unfenced.lost++;
    }
  }
  for (const list of accesses.values()) {
    let written: { readonly step: number; readonly value: number } | null = null;
    let step = 0;
    for (const access of list.sort((a, b) => a.step - b.step)) {
      // A missing step may be a write of a process that was killed before it reported the write.
      if (access.step !== step + 1) written = null;
      step = access.step;
      if (access.kind !== "wrote" || !access.accepted) continue;
      fenced.writes++;
      if (written !== null && written.value !== access.read) fenced.lost++;
      written = access;
    }
  }
  return { fenced, unfenced };
}
