import type { RuleId, Verdict } from "../check/check.js";
import { drawSchedule } from "./draw-schedule.js";
import { type Outcome, type SimulatedMutant, simulate } from "./run.js";
import type { Schedule } from "./schedule.js";
import { shorten } from "./shorten.js";

/** The options of a search. */
export interface Search {
  /** The seed of the first run; the next ones count up. */
  readonly seed: number;
  /** How many runs at most. */
  readonly runs: number;
  /** Draws the schedule of a seed. Default: one with a single store. */
  readonly draw?: (seed: number) => Schedule;
  /** Breaks the core, the store or a fence on purpose. */
  readonly mutant?: SimulatedMutant;
  /** Called after each run with the number of runs so far. */
  readonly onRun?: (done: number) => void;
  /** Ends the search early. */
  readonly signal?: AbortSignal;
}

/** The outcome of a search. */
export interface Found {
  /** How many runs there were. */
  readonly runs: number;
  /** How many comparisons all runs made, by rule. */
  readonly checked: ReadonlyMap<RuleId, number>;
  /** The first run that broke a rule. */
  readonly failure: Failure | null;
}

/** A run that broke a rule. */
export interface Failure {
  /** The run. */
  readonly outcome: Outcome;
  /** The rule that it broke, and the evidence. */
  readonly verdict: Verdict;
}

/** Runs one seed after another until a rule is broken. */
export async function search(options: Search): Promise<Found> {
  const { seed, runs, draw = drawSchedule, mutant, onRun, signal } = options;
  const checked = new Map<RuleId, number>();
  let done = 0;
  let failure: Failure | null = null;
  while (done < runs && failure === null && !signal?.aborted) {
    const outcome = await attempt(draw(seed + done), mutant);
    for (const one of outcome.verdicts) {
      checked.set(one.rule, (checked.get(one.rule) ?? 0) + one.checked);
    }
    failure = failureOf(outcome);
    done++;
    onRun?.(done);
  }
  return { runs: done, checked, failure };
}

/** Shortens the schedule of a failure as long as the same rule is broken. */
export async function shortestFailure(
  failure: Failure,
  mutant?: SimulatedMutant,
): Promise<Failure> {
  let shortest = failure;
  await shorten(failure.outcome.schedule, async (schedule) => {
    const outcome = await attempt(schedule, mutant);
    const again = outcome.verdicts.find(
      ({ rule, verdict }) => rule === failure.verdict.rule && verdict === "violated",
    );
    if (again !== undefined) shortest = { outcome, verdict: again };
    return again !== undefined;
  });
  return shortest;
}

/** Runs one schedule. A run that does not end is a finding, too. */
async function attempt(schedule: Schedule, mutant?: SimulatedMutant): Promise<Outcome> {
  try {
    return await simulate(schedule, mutant);
  } catch (error) {
    const why = `the run did not end: ${error instanceof Error ? error.message : error}`;
    const verdict = { rule: "L3", verdict: "violated", why, evidence: [], checked: 1 } as const;
    return { schedule, history: [], verdicts: [verdict] };
  }
}

function failureOf(outcome: Outcome): Failure | null {
  const verdict = outcome.verdicts.find((one) => one.verdict === "violated");
  return verdict === undefined ? null : { outcome, verdict };
}
