import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { MutantName } from "../../testing/mutants.js";
import type { Event, History } from "../check/history.js";
import { countRegisters, merge } from "./judge.js";
import { Load } from "./load.js";
import { drawPlan, type Plan } from "./plan.js";
import type { RegisterCount, Result, RunRecord } from "./result.js";
import { type Progress, type RunOutcome, run } from "./run.js";
import type { Target } from "./target.js";

export interface VerifyOptions {
  readonly seed: number;
  /** How long new runs begin. */
  readonly forMs?: number | undefined;
  /** At most so many runs. */
  readonly runs?: number | undefined;
  readonly workers: number;
  /** How long the traffic of one run lasts. */
  readonly runMs?: number | undefined;
  /** The mean pause between two operations of a program. */
  readonly pauseMs?: number | undefined;
  readonly mutant?: MutantName | undefined;
  /** The built module of a worker's process, if it is another one. */
  readonly module?: string | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: ((progress: Progress & { readonly runs: number }) => void) | undefined;
  readonly onRun?: ((run: RunRecord) => void) | undefined;
  /** The command that repeats it, for people. */
  readonly command: string;
}

/** The result, and all events of all runs on one time line. */
export interface Verification {
  readonly result: Result;
  readonly history: History;
  /** The first plan that broke a promise. */
  readonly failed: Plan | null;
  /** What the verifier itself could not do. */
  readonly troubles: readonly string[];
}

export const RUN_MS = 10_000;
const PAUSE_MS = 15;

/** Runs from consecutive seeds until the time is over or a promise is broken. */
export async function verify(target: Target, options: VerifyOptions): Promise<Verification> {
  const { seed, forMs = Number.POSITIVE_INFINITY, runs = Number.POSITIVE_INFINITY } = options;
  const startedAt = new Date().toISOString();
  const startedMs = performance.now();
  const outcomes: RunOutcome[] = [];
  const versions = { node: process.versions.node, ...(await target.versions()) };
  let failed: Plan | null = null;
  await inFolder(async (folder) => {
    const load = new Load();
    try {
      for (let i = 0; i < runs && failed === null && !options.signal?.aborted; i++) {
        if (i > 0 && performance.now() - startedMs >= forMs) break;
        const pace = await load.pace();
        const plan = drawPlan(seed + i, target, {
          workers: options.workers,
          forMs: (options.runMs ?? RUN_MS) * pace,
          pace,
          pauseMs: options.pauseMs ?? PAUSE_MS,
        });
        const outcome = await carryOut(target, plan, { ...options, load, pace, folder }, i);
        outcomes.push(outcome);
        options.onRun?.(outcome.record);
        if (isViolated(outcome)) failed = plan;
        await target.recover();
      }
    } finally {
      load.stop();
    }
  });
  return { ...conclude(target, outcomes, options, { versions, startedAt, startedMs }), failed };
}

/** One plan, in the folder of its resources; for repeating one that failed. */
export function carryOut(
  target: Target,
  plan: Plan,
  options: VerifyOptions & {
    readonly load: Load;
    readonly pace: number;
    readonly folder: string;
  },
  runs = 0,
): Promise<RunOutcome> {
  const { load, pace, folder, mutant, module, signal, onProgress } = options;
  return run(target, plan, {
    load,
    pace,
    folder,
    mutant,
    module,
    signal,
    onProgress: onProgress && ((progress) => onProgress({ ...progress, runs })),
  });
}

export const isViolated = ({ record }: RunOutcome): boolean =>
  record.checks.some(({ verdict }) => verdict === "violated");

/** A temporary folder, removed afterwards. */
export async function inFolder<T>(act: (folder: string) => Promise<T>): Promise<T> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-verify-"));
  try {
    return await act(folder);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

type Registers = ReturnType<typeof countRegisters>;

/** Each run has registers of its own. */
function sumRegisters(all: readonly Registers[]): Registers {
  const sum = (of: (one: Registers) => RegisterCount): RegisterCount =>
    all.map(of).reduce(
      (a, b) => ({
        writes: a.writes + b.writes,
        lost: a.lost + b.lost,
        refused: a.refused + b.refused,
      }),
      { writes: 0, lost: 0, refused: 0 },
    );
  return { fenced: sum((one) => one.fenced), unfenced: sum((one) => one.unfenced) };
}

function conclude(
  target: Target,
  outcomes: readonly RunOutcome[],
  { seed, command }: VerifyOptions,
  {
    versions,
    startedAt,
    startedMs,
  }: { versions: Record<string, string>; startedAt: string; startedMs: number },
): Omit<Verification, "failed"> {
  const history: Event[] = outcomes.flatMap((one) => one.history);
  const records = outcomes.map(({ record }) => record);
  const checks = merge(records.map((one) => one.checks));
  const isBroken = checks.some(({ verdict }) => verdict === "violated");
  const grants = history.filter(({ kind }) => kind === "granted").length;
  const result: Result = {
    target: target.name,
    about: target.about,
    versions,
    startedAt,
    lastedMs: performance.now() - startedMs,
    seed,
    command,
    runs: records,
    checks,
    // Without a second grant nothing was put to the test.
    outcome: isBroken ? "violated" : grants > 1 ? "held" : "unknown",
    operations: history.filter(({ kind }) => kind === "asked").length,
    grants,
    faults: records.reduce((sum, one) => sum + one.faults.length, 0),
    ...sumRegisters(outcomes.map((one) => countRegisters(one.history))),
  };
  return { result, history, troubles: outcomes.flatMap((one) => one.troubles) };
}
