import { InvalidArgumentError } from "../../core/errors.js";
import type { Plan } from "./plan.js";
import type { CheckId } from "./result.js";
import type { RunOutcome } from "./run.js";

/** The part of a plan that is kept: the numbers of its workers and faults, and its duration. */
export interface Pick {
  readonly workers: readonly number[];
  readonly faults: readonly number[];
  /** The duration at pace 1: the same plan takes longer on a machine that is busier. */
  readonly forMs: number;
}

export const wholeOf = ({ workers, faults, forMs, pace }: Plan): Pick => ({
  workers: workers.map((_, i) => i),
  faults: faults.map((_, i) => i),
  forMs: forMs / pace,
});

/** The plan reduced to a part. Faults of workers that are left out are left out, too. */
export function pickFrom(plan: Plan, { workers, faults, forMs: atPaceOneMs }: Pick): Plan {
  const forMs = atPaceOneMs * plan.pace;
  return {
    ...plan,
    forMs,
    workers: plan.workers.filter((_, i) => workers.includes(i)),
    faults: plan.faults
      .filter((one, i) => faults.includes(i) && workers.includes(one.worker) && one.atMs < forMs)
      .map((one) => ({ ...one, worker: workers.indexOf(one.worker) })),
    interventions: plan.interventions.filter(({ atMs }) => atMs < forMs),
  };
}

/** Throws `InvalidArgumentError` if the plan has no worker or no fault of a number that is picked. */
export function checkPick({ seed, workers, faults }: Plan, pick: Pick): void {
  const name = (letter: string, numbers: readonly number[], count: number): string[] =>
    numbers.filter((i) => i >= count).map((i) => `${letter}${i + 1}`);
  const [outside] = [
    ...name("w", pick.workers, workers.length),
    ...name("f", pick.faults, faults.length),
  ];
  if (outside === undefined) return;
  throw new InvalidArgumentError(
    `the pick names ${outside}, but the run of seed ${seed} has ${workers.length} workers and ${faults.length} faults here; repeat it with the --workers and --faults of the original run, on a machine where the same faults can be made`,
  );
}

/** Encodes a part as text. `w1,w3,f2,t4200`: workers 1 and 3, the second fault, for 4,200 ms at pace 1. */
export const encodePick = ({ workers, faults, forMs }: Pick): string =>
  [
    ...workers.map((i) => `w${i + 1}`),
    ...faults.map((i) => `f${i + 1}`),
    `t${Math.round(forMs)}`,
  ].join(",");

/** Decodes a part; null if the text is not one. */
export function decodePick(text: string): Pick | null {
  const pick = { workers: [] as number[], faults: [] as number[], forMs: Number.NaN };
  for (const part of text.split(",")) {
    const [, kind, digits] = /^([wft])(\d{1,9})$/.exec(part.trim()) ?? [];
    const number = Number(digits);
    if (number === 0) return null;
    if (kind === "w") pick.workers.push(number - 1);
    else if (kind === "f") pick.faults.push(number - 1);
    else if (kind === "t" && Number.isNaN(pick.forMs)) pick.forMs = number;
    else return null;
  }
  // In the order of the plan, because the workers of faults get new numbers.
  const workers = [...new Set(pick.workers)].sort((a, b) => a - b);
  return workers.length > 0 && pick.forMs > 0 ? { ...pick, workers } : null;
}

/** The rules that the run broke. */
export const brokenBy = ({ record }: RunOutcome): readonly CheckId[] =>
  record.checks.filter(({ verdict }) => verdict === "violated").map(({ id }) => id);

export interface Shortened {
  readonly pick: Pick;
  readonly outcome: RunOutcome;
  /** How many runs it took. */
  readonly tries: number;
}

const TIME_AFTER_MS = 1_500;
const TRIES_EACH = 2;

/**
 * Repeats a run that broke a promise with smaller and smaller parts of its plan, as long as one of
 * the same promises breaks again, there is time and `canGoOn`. Real processes do not repeat
 * themselves exactly, so a part that does not break a promise is tried twice. `repeat` resolves to
 * null if the run could not be made.
 */
export async function shorten(
  plan: Plan,
  failed: RunOutcome,
  repeat: (plan: Plan) => Promise<RunOutcome | null>,
  {
    untilMs,
    canGoOn = () => true,
    signal,
    onTry,
  }: {
    readonly untilMs: number;
    readonly canGoOn?: () => boolean;
    readonly signal?: AbortSignal | undefined;
    readonly onTry?: (tries: number) => void;
  },
): Promise<Shortened> {
  const wanted = brokenBy(failed);
  const isOver = (): boolean =>
    performance.now() >= untilMs || signal?.aborted === true || !canGoOn();
  let best: Shortened = { pick: wholeOf(plan), outcome: failed, tries: 0 };
  let tries = 0;
  const isBroken = async (pick: Pick): Promise<boolean> => {
    for (let i = 0; i < TRIES_EACH; i++) {
      if (isOver()) return false;
      tries++;
      onTry?.(tries);
      const outcome = await repeat(pickFrom(plan, pick));
      // Ctrl-C reaches servers and workers, too, so this run proves nothing.
      if (outcome === null || signal?.aborted) return false;
      if (!brokenBy(outcome).some((id) => wanted.includes(id))) continue;
      best = { pick, outcome, tries };
      return true;
    }
    return false;
  };
  const brokenAtMs = lastEvidenceMs(failed) - failed.record.fromMs;
  if (brokenAtMs > 0) {
    const forMs = Math.min(plan.forMs, brokenAtMs + TIME_AFTER_MS);
    await isBroken({ ...best.pick, forMs: Math.round(forMs / plan.pace) });
  }
  // First halves, then single faults.
  for (let size = Math.ceil(plan.faults.length / 2); size >= 1; size = Math.floor(size / 2)) {
    for (let from = 0; from < best.pick.faults.length; ) {
      const { faults } = best.pick;
      const fewer = [...faults.slice(0, from), ...faults.slice(from + size)];
      if (!(await isBroken({ ...best.pick, faults: fewer }))) from += size;
      if (isOver()) break;
    }
  }
  for (const worker of best.pick.workers) {
    const workers = best.pick.workers.filter((one) => one !== worker);
    if (workers.length >= 2) await isBroken({ ...best.pick, workers });
  }
  return { ...best, tries };
}

function lastEvidenceMs({ record }: RunOutcome): number {
  const broken = record.checks.filter(({ verdict }) => verdict === "violated");
  return Math.max(...broken.map(({ evidence }) => evidence.at(-1)?.atMs ?? 0));
}
