import { mkdtempSync, realpathSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { UnsupportedError } from "../../core/errors.js";
import type { MutantName } from "../../testing/mutants.js";
import type { Event, History } from "../check/history.js";
import type { RuleId } from "../check/verdict.js";
import { Guardian } from "../lab/guardian.js";
import type { RegisterPlace } from "../traffic/registers/register.js";
import { merge } from "./judge.js";
import { Load } from "./load.js";
import { drawPlan, type Plan } from "./plan.js";
import {
  type CheckResult,
  hasStruck,
  type RegisterCount,
  type Registers,
  type Result,
  type RunRecord,
} from "./result.js";
import { type Progress, type RunOutcome, run } from "./run.js";
import {
  brokenBy,
  checkPick,
  type Pick as Picked,
  pickFrom,
  type Shortened,
  shorten,
} from "./shorten.js";
import type { Target } from "./target.js";
import { lackingClient, versionsHere } from "./versions.js";

/** Options of a verification. */
export interface VerifyOptions {
  /** The seed of the first run; the next ones count up. */
  readonly seed: number;
  /** For how long new runs begin. */
  readonly forMs?: number | undefined;
  /** The highest number of runs. */
  readonly runs?: number | undefined;
  /** How many worker processes each run has. */
  readonly workers: number;
  /** How long the traffic of one run lasts. */
  readonly runMs?: number | undefined;
  /** The mean pause between two operations of a program. Default: 15 ms; on a user's store longer with more workers. */
  readonly pauseMs?: number | undefined;
  /** Breaks the workers on purpose, to show that the verifier notices. */
  readonly mutant?: MutantName | undefined;
  /** The built module of the worker processes, if it is not the usual one. */
  readonly module?: string | undefined;
  /** Ends the verification early, with the result so far. */
  readonly signal?: AbortSignal | undefined;
  /** Called while a run goes on. */
  readonly onProgress?: ((progress: Progress & { readonly runs: number }) => void) | undefined;
  /** Called after each run. */
  readonly onRun?: ((run: RunRecord) => void) | undefined;
  /** Keeps the events of all runs, for a report; otherwise only those of a run that broke a promise. */
  readonly keepsHistory?: boolean | undefined;
  /** The part of each plan to run. */
  readonly pick?: Picked | undefined;
  /** For how long a run that broke a promise is repeated to shorten it. Default 0: not at all. */
  readonly shortenMs?: number | undefined;
  /** Called after each repetition of a run that is being shortened. */
  readonly onShorten?: ((tries: number) => void) | undefined;
  /** The fence of the resources, and its server, which no fault hits. Default: a fence in an SQLite file. */
  readonly register?: Omit<RegisterPlace, "space"> | undefined;
  /** The command that repeats the verification, for people. */
  readonly command: string;
}

/** The outcome of a verification. */
export interface Verification {
  /** Verdicts, counts and runs, as data. */
  readonly result: Result;
  /** The events of all runs that were kept, on one time line. */
  readonly history: History;
  /** The first run that broke a promise; null if none did. */
  readonly failure: VerifyFailure | null;
  /** Errors of the verifier itself. */
  readonly troubles: readonly string[];
}

/** The first run that broke a promise, and the smallest part of its plan that broke it again. */
export interface VerifyFailure {
  readonly seed: number;
  readonly outcome: RunOutcome;
  readonly shortened: Shortened | null;
}

const RUN_MS = 10_000;

/** Runs from consecutive seeds until the time is over or a promise is broken. */
export async function verify(target: Target, options: VerifyOptions): Promise<Verification> {
  const { forMs = Number.POSITIVE_INFINITY, runs = Number.POSITIVE_INFINITY, signal } = options;
  const startedAt = new Date().toISOString();
  const startedMs = performance.now();
  const outcomes: RunOutcome[] = [];
  const troubles: string[] = [];
  const lacking = lackingClient(target.url);
  if (lacking !== null) throw new UnsupportedError(lacking);
  const versions = { ...versionsHere(target.url), ...(await target.versions()) };
  let failure: VerifyFailure | null = null;
  await inFolder(async (folder) => {
    const load = new Load();
    const runner = new Runner(target, options, { load, folder, troubles });
    try {
      for (let i = 0; i < runs && failure === null && !signal?.aborted; i++) {
        if (i > 0 && performance.now() - startedMs >= forMs) break;
        const seed = options.seed + i;
        const plan = await runner.draw(seed);
        const outcome = await runner.carryOut(plan, outcomes.length);
        // Ctrl-C reaches servers and workers, too, so their conduct from then on proves nothing.
        if (outcome === null || signal?.aborted) break;
        const isBroken = brokenBy(outcome).length > 0;
        outcomes.push(isBroken || options.keepsHistory ? outcome : { ...outcome, history: [] });
        options.onRun?.(outcome.record);
        // The result so far counts, even if the servers do not recover.
        if (isBroken) {
          const shortened = runner.canGoOn ? await runner.shorten(plan, outcome) : null;
          failure = { seed, outcome, shortened };
        }
        if (!runner.canGoOn) break;
      }
    } finally {
      load.stop();
    }
  });
  const concluded = conclude(target, outcomes, options, { versions, startedAt, startedMs });
  const all = [...outcomes.flatMap((one) => one.troubles), ...troubles];
  return { ...concluded, troubles: all, failure };
}

interface Place {
  readonly load: Load;
  readonly folder: string;
  /** Errors of the verifier itself that belong to no run. */
  readonly troubles: string[];
}

class Runner {
  readonly #target: Target;
  readonly #options: VerifyOptions;
  readonly #place: Place;
  #pace = 1;
  #startMs: number | undefined;
  #resources = 0;
  /** False: the servers did not recover from the faults of the last run, or a later run could not be made. */
  canGoOn = true;

  constructor(target: Target, options: VerifyOptions, place: Place) {
    this.#target = target;
    this.#options = options;
    this.#place = place;
  }

  async draw(seed: number): Promise<Plan> {
    const { workers, runMs = RUN_MS, pauseMs, pick } = this.#options;
    this.#pace = await this.#place.load.pace();
    const pace = this.#pace;
    const plan = drawPlan(seed, this.#target, { workers, forMs: runMs * pace, pace, pauseMs });
    if (pick === undefined) return plan;
    // A later seed may draw fewer faults.
    if (seed === this.#options.seed) checkPick(plan, pick);
    return pickFrom(plan, pick);
  }

  /** Null if a run after the first one could not be made: what the earlier ones showed still counts. */
  async carryOut(plan: Plan, runs: number): Promise<RunOutcome | null> {
    try {
      return await this.#carryOut(plan, runs);
    } catch (error) {
      if (this.#startMs === undefined) throw error;
      this.canGoOn = false;
      this.#place.troubles.push(
        `a run could not be made, so no further one was: ${(error as Error).message}`,
      );
      return null;
    }
  }

  async #carryOut(plan: Plan, runs: number): Promise<RunOutcome> {
    const { mutant, module, signal, onProgress, register } = this.#options;
    const number = ++this.#resources;
    const outcome = await run(this.#target, plan, {
      load: this.#place.load,
      pace: this.#pace,
      startMs: this.#startMs,
      resourceFile: join(this.#place.folder, `${number}.db`),
      register: register && { ...register, space: `run-${number}` },
      mutant,
      module,
      signal,
      onProgress: onProgress && ((progress) => onProgress({ ...progress, runs })),
    });
    this.#startMs ??= outcome.record.fromMs;
    try {
      await this.#target.recover();
      return outcome;
    } catch (error) {
      this.canGoOn = false;
      const trouble = `the servers did not recover, so no further run was made: ${(error as Error).message}`;
      return { ...outcome, troubles: [...outcome.troubles, trouble] };
    }
  }

  async shorten(plan: Plan, outcome: RunOutcome): Promise<Shortened | null> {
    const { shortenMs = 0, onShorten } = this.#options;
    if (shortenMs === 0) return null;
    return shorten(plan, outcome, (shorter) => this.carryOut(shorter, 0), {
      untilMs: performance.now() + shortenMs,
      canGoOn: () => this.canGoOn,
      signal: this.#options.signal,
      ...(onShorten === undefined ? {} : { onTry: onShorten }),
    });
  }
}

/** Runs `act` in a temporary folder and removes it; with a guardian, also if this process is killed. */
async function inFolder<T>(act: (folder: string) => Promise<T>): Promise<T> {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), "holdfast-verify-")));
  const guardian = process.platform === "linux" ? new Guardian(folder) : null;
  try {
    return await act(folder);
  } finally {
    if (guardian === null) rmSync(folder, { recursive: true, force: true });
    else await guardian.finish();
  }
}

/** The rules about what the target refuses, or does not promise at any time. */
function notOfferedBy({ cannot = {}, limits }: Target): readonly RuleId[] {
  return [
    ...(cannot["at-least"] === undefined ? [] : (["S9"] as const)),
    ...(limits.fair === false ? (["L4"] as const) : []),
  ];
}

/** At least this many pairs of holders of one name must have been compared. */
const ENOUGH = 10;

/** Whether exclusion was tested, under one of the faults that the user chose, and workers could use the store in the end. */
const isEnough = (checks: readonly CheckResult[], faults: number, target: Target): boolean =>
  (faults > 0 || !target.isLimited) &&
  checks.every(
    ({ id, verdict, checked }) =>
      (id !== "S1" || checked >= ENOUGH) && (id !== "P5" || verdict === "held"),
  );

/** Sums up the registers of all runs: each run has its own. */
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
  { seed, command, register }: VerifyOptions,
  {
    versions,
    startedAt,
    startedMs,
  }: { versions: Record<string, string>; startedAt: string; startedMs: number },
): Pick<Verification, "result" | "history"> {
  const history: Event[] = outcomes.flatMap((one) => one.history);
  const records = outcomes.map(({ record }) => record);
  const checks = merge(records.map((one) => one.checks));
  const isBroken = checks.some(({ verdict }) => verdict === "violated");
  const total = (of: (one: RunOutcome) => number): number =>
    outcomes.reduce((sum, one) => sum + of(one), 0);
  const grants = total((one) => one.grants);
  const faults = total(({ record }) => record.faults.filter(hasStruck).length);
  const result: Result = {
    target: target.name,
    about: target.about,
    fence: register?.fence ?? "sqlite",
    versions,
    startedAt,
    lastedMs: performance.now() - startedMs,
    seed,
    command,
    runs: records,
    kinds: target.kinds.map(({ name, hits, breaks = [], because = "" }) => ({
      name,
      hits,
      breaks,
      because,
    })),
    checks,
    notOffered: notOfferedBy(target),
    outcome: isBroken ? "violated" : isEnough(checks, faults, target) ? "held" : "unknown",
    operations: total((one) => one.operations),
    grants,
    faults,
    failedFaults: total(({ record }) => record.faults.filter((one) => !hasStruck(one)).length),
    ...sumRegisters(records.map(({ registers }) => registers)),
  };
  return { result, history };
}
