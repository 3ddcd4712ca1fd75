import { fold } from "../check/fold.js";
import type { Event, History } from "../check/history.js";
import type { Operation, Run } from "../check/operations.js";
import { firstIndex } from "../check/spans.js";
import type { CheckResult, FaultRecord, Result, RunRecord } from "../runner/result.js";

/** A verification, grouped for the sections of the report. */
export interface Model {
  readonly result: Result;
  /** Each run folded by itself: workers of two runs may share names and ops. */
  readonly runs: readonly Run[];
  readonly operations: readonly Operation[];
  readonly faults: readonly FaultRecord[];
  /** The workers of all runs, in order. */
  readonly workers: readonly string[];
  readonly names: readonly string[];
  /** Checks whose evidence the report shows: violated, or broken where not promised. */
  readonly broken: readonly CheckResult[];
  /** The start of the first run, from which times count. */
  readonly startMs: number;
  /** The start of the time lines. */
  readonly fromMs: number;
  readonly toMs: number;
  runAt(atMs: number): Run;
  /** The end of the run that this moment belongs to: no belief or fault of the run lasts longer. */
  runEndMs(atMs: number): number;
  /** A time since `startMs`: "+1.204 s". */
  at(atMs: number): string;
}

export function modelOf(result: Result, history: History): Model {
  const sorted = history.toSorted((a, b) => a.atMs - b.atMs);
  const parts = split(sorted, result.runs);
  const runs = parts.map((part) => fold(part));
  const operations = runs
    .flatMap((run) => [...run.operations.values()])
    .sort((a, b) => a.asked.atMs - b.asked.atMs);
  const faults = result.runs.flatMap((run) => run.faults).sort((a, b) => a.fromMs - b.fromMs);
  const startMs = result.runs[0]?.fromMs ?? sorted[0]?.atMs ?? 0;
  const lastMs = Math.max(sorted.at(-1)?.atMs ?? startMs, ...result.runs.map((run) => run.untilMs));
  return {
    result,
    runs,
    operations,
    faults,
    workers: inOrder([
      ...result.runs.flatMap((run) => run.clients),
      ...operations.map(({ asked }) => asked.client),
      ...sorted.flatMap((event) => ("client" in event ? [event.client] : [])),
    ]),
    names: inOrder(operations.map(({ asked }) => asked.name)),
    broken: result.checks.filter(
      ({ verdict, evidence }) =>
        (verdict === "violated" || verdict === "expected") && evidence.length > 0,
    ),
    startMs,
    fromMs: Math.min(startMs, ...result.runs.map((run) => run.fromMs)),
    toMs: Math.max(lastMs, startMs + 1),
    runAt: (atMs) => runs[runIndex(result.runs, atMs)]!,
    runEndMs: (atMs) => {
      const run = result.runs.length < 2 ? undefined : result.runs[runIndex(result.runs, atMs)];
      return run?.untilMs ?? Math.max(lastMs, startMs + 1);
    },
    at: (atMs) => sinceStart(atMs - startMs),
  };
}

/** Splits events by runs; events between two runs belong to the earlier one. */
function split(sorted: readonly Event[], runs: readonly RunRecord[]): readonly History[] {
  if (runs.length < 2) return [sorted];
  const starts = runs.map(({ fromMs }, i) =>
    i === 0 ? 0 : firstIndex(sorted, ({ atMs }) => atMs >= fromMs),
  );
  return starts.map((start, i) => sorted.slice(start, starts[i + 1]));
}

function runIndex(runs: readonly RunRecord[], atMs: number): number {
  if (runs.length < 2) return 0;
  return Math.max(0, firstIndex(runs, ({ fromMs }) => fromMs > atMs) - 1);
}

const COLLATOR = new Intl.Collator("en", { numeric: true });

/** Without duplicates; w2 comes before w10. */
const inOrder = (texts: readonly string[]): readonly string[] =>
  [...new Set(texts)].sort((a, b) => COLLATOR.compare(a, b) || (a < b ? -1 : 1));

function sinceStart(ms: number): string {
  const text = (Math.abs(ms) / 1_000).toFixed(3);
  return `${ms < 0 && Number(text) > 0 ? "−" : "+"}${text} s`;
}
