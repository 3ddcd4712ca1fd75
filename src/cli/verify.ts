import { writeFileSync } from "node:fs";
import type { History } from "../verify/check/history.js";
import { modelOf } from "../verify/report/model.js";
import { renderReport } from "../verify/report/render.js";
import { storyText } from "../verify/report/story.js";
import { count, counted, duration, faultsOf, isOffered, unseenOf } from "../verify/report/words.js";
import {
  type CheckResult,
  hasStruck,
  type Result,
  type RunRecord,
} from "../verify/runner/result.js";
import { decodePick, encodePick, type Pick as Picked } from "../verify/runner/shorten.js";
import type { Target } from "../verify/runner/target.js";
import {
  type Verification,
  type VerifyFailure,
  type VerifyOptions,
  verify,
} from "../verify/runner/verify.js";
import { withFenceServer } from "../verify/targets/fence-server.js";
import { LAB_TARGETS, type LabName } from "../verify/targets/index.js";
import { refusalOf, type Wanted, withTarget } from "../verify/targets/open.js";
import { REGISTER_FENCES, type RegisterFence } from "../verify/traffic/registers/register.js";
import { CliError, Exit, usage } from "./exit.js";
import { LiveLine } from "./live-line.js";
import { durationOption, fileOption, numberOption, type Options } from "./options.js";
import { jsonText, note, print, printable, quoted, shellWord, style, table } from "./output.js";
import { chooseStore } from "./store.js";

const MOST_SEED = 2 ** 31;
const DEFAULT_MS = 60_000;
const WORKERS = { ours: 4, given: 3, most: 16 };
const SHORTEN_MS = 120_000;
const UNKNOWN = 2;
/** This many errors of the verifier itself are shown. */
const MOST_TROUBLES = 5;

/** The options of the command line, checked. */
interface Request {
  readonly wanted: Wanted;
  readonly faults: readonly string[] | undefined;
  readonly seed: number;
  readonly forMs: number | undefined;
  readonly runs: number | undefined;
  readonly workers: number;
  readonly pick: Picked | undefined;
  readonly fence: RegisterFence | undefined;
}

export async function verifyStore(options: Options): Promise<number> {
  if (options.list) {
    print(table([["LAB", "NEEDS"], ...Object.entries(LAB_TARGETS).map(labRow)]));
    return Exit.ok;
  }
  const request = readRequest(options);
  if (options.faults === "list") {
    await withTarget(request.wanted, undefined, async ({ kinds, leftOut = [] }) => {
      const rows = kinds.map(({ name, hits, because = "" }) => [name, hits, because]);
      print(table([["FAULT", "HITS", "NOT PROMISED UNDER IT, BECAUSE"], ...rows]));
      for (const { name, because } of leftOut) note(`not made here: ${name}, because ${because}`);
    });
    return Exit.ok;
  }
  const report = fileOption(options, "report");
  const interrupted = new AbortController();
  // The first signal ends the run and shows the result so far; a second one ends the process.
  const stop = (): void => {
    note(
      "stopping after this step, then showing the result so far; press Ctrl-C again to stop at once",
    );
    interrupted.abort();
  };
  for (const one of ["SIGINT", "SIGTERM"]) process.once(one, stop);
  const verification = await withTarget(request.wanted, request.faults, async (target) => {
    refuseUnknown(target, request.faults);
    announce(target, request);
    return withFenceServer(request.fence, (register) =>
      carryOut(target, request, {
        register,
        keepsHistory: report !== undefined,
        signal: interrupted.signal,
      }),
    );
  });
  const { result, history, failure } = verification;
  if (options.json) print(jsonText(jsonOf(verification, request)));
  else show(verification, request, report);
  if (report !== undefined) writeReport(report, renderReport(result, history));
  if (failure !== null) return Exit.failed;
  return result.outcome === "held" ? Exit.ok : UNKNOWN;
}

const labRow = ([name, { needs }]: [string, { needs: readonly string[] }]): string[] => [
  name,
  needs.join(", ") || "nothing",
];

function readRequest(options: Options): Request {
  if (options.lab !== undefined && (options.store ?? options["store-file"]) !== undefined) {
    throw usage("--lab and --store contradict each other: both say what is verified");
  }
  const wanted = wantedOf(options);
  const given = numberOption(options, "seed", { min: 0, max: MOST_SEED });
  const runs = numberOption(options, "runs", { min: 1, max: MOST_SEED });
  const pick = options.pick === undefined ? undefined : decodePick(options.pick);
  if (pick === null) {
    throw usage(
      `--pick is ${quoted(options.pick!)}; it must be workers, faults and a time, such as w1,w2,f3,t4200`,
    );
  }
  if (pick !== undefined && given === undefined)
    throw usage("--pick needs --seed: it selects a part of the run of that seed");
  const forMs = durationOption(options, "for", { min: 1_000 });
  const most = numberOption(options, "workers", { min: 2, max: WORKERS.most });
  return {
    wanted,
    faults: options.faults?.split(",").map((one) => one.trim()),
    seed: given ?? Math.floor(Math.random() * MOST_SEED),
    forMs: forMs ?? (runs === undefined && pick === undefined ? DEFAULT_MS : undefined),
    runs: pick === undefined ? runs : (runs ?? 1),
    workers: most ?? ("lab" in wanted ? WORKERS.ours : WORKERS.given),
    pick,
    fence: fenceOf(options),
  };
}

function fenceOf({ fence }: Options): RegisterFence | undefined {
  if (fence === undefined) return undefined;
  const known = REGISTER_FENCES.find((one) => one === fence);
  if (known !== undefined) return known;
  throw usage(
    `there is no fence ${quoted(fence)} for a register; there are ${REGISTER_FENCES.join(", ")}`,
  );
}

function wantedOf(options: Options): Wanted {
  const { lab } = options;
  if (lab === undefined) {
    const { url, named } = chooseStore(options);
    if (named) return { store: url };
    throw usage(
      `say what to verify: --store URL for a store of yours, or --lab ${Object.keys(LAB_TARGETS).join("|")} for servers that are started for it`,
    );
  }
  if (Object.hasOwn(LAB_TARGETS, lab)) return { lab: lab as LabName };
  throw usage(`there is no lab ${quoted(lab)}; there are ${Object.keys(LAB_TARGETS).join(", ")}`);
}

function refuseUnknown(target: Target, faults: readonly string[] = []): void {
  const refusal = refusalOf(target, faults);
  if (refusal === null) return;
  throw usage(
    `${refusal}; --faults list shows the faults, and a word of the column HITS stands for all of them`,
  );
}

/** Prints what the verification will do, before it begins. */
function announce(target: Target, { seed, forMs, runs, workers, faults }: Request): void {
  const most = runs === undefined ? [] : [counted(runs, "run")];
  const time = [...(forMs === undefined ? [] : [duration(forMs)]), ...most].join(", at most ");
  note(`verifying ${printable(target.about)} with ${workers} workers for ${time}, seed ${seed}`);
  if (target.isOurs) return;
  note(
    "on your store, the verifier takes and releases locks in namespaces of its own (verify-…), on average up to about 30 a second; " +
      "faults hit only its own processes and their connections; it leaves no lock behind",
  );
  if (faults === undefined && !target.kinds.some(({ hits }) => hits === "connection")) {
    note("there are no connection faults: no proxy can stand between the workers and this store");
  }
}

async function carryOut(
  target: Target,
  { seed, forMs, runs, workers, pick, wanted, faults, fence }: Request,
  more: Pick<VerifyOptions, "register" | "keepsHistory" | "signal">,
): Promise<Verification> {
  const progress = new Progress();
  try {
    return await verify(target, {
      seed,
      forMs,
      runs,
      workers,
      pick,
      command: commandOf(wanted, { seed, forMs, runs, workers, faults, fence }),
      ...more,
      shortenMs: pick === undefined ? SHORTEN_MS : 0,
      onProgress: ({ events, activeFaults, runs: done }) =>
        progress.showRun(done + 1, events, activeFaults),
      onRun: (one) => progress.ran(one),
      onShorten: (tries) => progress.show(`shortening, try ${tries}`),
    });
  } finally {
    progress.clear();
  }
}

class Progress extends LiveLine {
  #operations = 0;
  #faults = 0;

  showRun(run: number, events: History, active: readonly string[]): void {
    if (!process.stderr.isTTY) return;
    const asked = events.filter(({ kind }) => kind === "asked").length;
    const now = active.length === 0 ? "no fault now" : `now: ${active.join(", ")}`;
    const waits = waitsOf(events.slice(-400));
    const waiting = waits.length === 0 ? "" : `, waits ${duration(waits[waits.length >> 1]!)}`;
    this.show(
      `run ${run}, ${count(this.#operations + asked)} operations${waiting}, ${counted(this.#faults, "fault")}; ${now}`,
    );
  }

  ran({ checks, faults, seed }: RunRecord): void {
    this.#operations += checks.find(({ id }) => id === "L3")?.checked ?? 0;
    this.#faults += faults.filter(hasStruck).length;
    const broken = checks.filter(({ verdict }) => verdict === "violated").map(({ id }) => id);
    if (broken.length === 0) return;
    this.clear();
    note(`seed ${seed} broke ${broken.join(", ")}`);
  }
}

/** The waits of granted acquires, sorted. */
function waitsOf(events: History): readonly number[] {
  const asked = new Map<string, number>();
  const waits: number[] = [];
  for (const event of events) {
    if (event.kind === "asked") asked.set(event.op, event.atMs);
    const fromMs = event.kind === "granted" ? asked.get(event.op) : undefined;
    if (fromMs !== undefined) waits.push(event.atMs - fromMs);
  }
  return waits.sort((a, b) => a - b);
}

const WORDS: Readonly<Record<CheckResult["verdict"], string>> = {
  held: "held",
  violated: "VIOLATED",
  expected: "held where promised",
  unknown: "not seen",
};

function show(
  { result, history, failure, troubles }: Verification,
  request: Request,
  report: string | undefined,
): void {
  const rows = result.checks.map((check) => {
    const { id, promise, verdict, checked, expected } = check;
    const word =
      verdict === "unknown" && !isOffered(check, result) ? "not offered" : WORDS[verdict];
    return [id, promise, word, count(checked), expected === 0 ? "" : count(expected)];
  });
  print(table([["", "PROMISE", "", "COMPARED", "NOT PROMISED"], ...rows]));
  print(`\n${summary(result, request)}`);
  const different = [...new Set(troubles)];
  for (const one of different.slice(0, MOST_TROUBLES)) note(printable(one));
  const more = different.length - MOST_TROUBLES;
  if (more > 0) note(`… and ${counted(more, "more error")} of the verifier, which --json lists`);
  if (failure !== null) showFailure(result, history, failure, request);
  if (report !== undefined) print(`\nReport: ${report}`);
}

function summary(result: Result, request: Request): string {
  const { about, lastedMs, operations, grants, runs, fenced, unfenced, outcome } = result;
  const unseen = unseenOf(result).join(", ");
  const words = {
    held:
      unseen === ""
        ? "Every promise held."
        : `Every promise that was tested held; not seen: ${unseen}.`,
    violated: style(process.stdout, "red", "A promise was broken."),
    unknown:
      result.faults === 0 && request.faults?.includes("none") === false
        ? "Too little happened for a verdict: none of the faults that --faults names struck."
        : "Too little happened for a verdict.",
  };
  const expected = result.checks.filter(({ verdict }) => verdict === "expected");
  return [
    words[outcome],
    `Tried: ${printable(about)}; ${counted(runs.length, "run")} in ${duration(lastedMs)}, ` +
      `${counted(operations, "operation")}, ${counted(grants, "grant")}, ${faultsOf(result)}.`,
    `Register behind a fence (${result.fence}): ${counted(fenced.writes, "write")}, ${count(fenced.lost)} lost; ${counted(fenced.refused, "stale access", "stale accesses")} refused. ` +
      `Without a fence: ${counted(unfenced.writes, "write")}, ${count(unfenced.lost)} lost.`,
    ...expected.map(
      ({ id, expected: times, why }) =>
        `${id} was broken ${counted(times, "time")} under faults for which this store does not promise it; the first: ${printable(why)}`,
    ),
  ].join("\n");
}

function showFailure(
  result: Result,
  history: History,
  { seed, outcome, shortened }: VerifyFailure,
  request: Request,
): void {
  const shown = shortened?.outcome ?? outcome;
  const model = modelOf(
    { ...result, runs: [shown.record] },
    shown === outcome ? history : shown.history,
  );
  const [first = "", ...lines] = storyText(model, shown.record.checks).map(printable);
  print(`\n${style(process.stdout, "red", first)}`);
  for (const line of lines) print(line);
  const { faults, clients } = shown.record;
  const those =
    faults
      .filter(hasStruck)
      .map(({ name }) => name)
      .join(", ") || "no fault";
  const how =
    shortened === null ? "" : ` (shortened in ${counted(shortened.tries, "try", "tries")})`;
  print(`\nIn this run${how}: workers ${clients.join(", ")}; ${printable(those)}.`);
  print(`Run it again: ${replayOf(request, seed, shortened)}`);
  if (shortened !== null) print(`The whole run:  ${replayOf(request, seed, null)}`);
}

function replayOf(
  { wanted, workers, faults, fence }: Request,
  seed: number,
  shortened: VerifyFailure["shortened"],
): string {
  const all = commandOf(wanted, { seed, runs: 1, forMs: undefined, workers, faults, fence });
  return shortened === null ? all : `${all} --pick ${encodePick(shortened.pick)}`;
}

function commandOf(
  wanted: Wanted,
  { seed, forMs, runs, workers, faults, fence }: Omit<Request, "wanted" | "pick">,
): string {
  return [
    "holdfast verify",
    // A URL may hold a password.
    "lab" in wanted ? `--lab ${wanted.lab}` : "--store URL",
    `--seed ${seed}`,
    ...(runs === undefined ? [] : [`--runs ${runs}`]),
    ...(forMs === undefined ? [] : [`--for ${Math.round(forMs / 1_000)}s`]),
    `--workers ${workers}`,
    ...(fence === undefined ? [] : [`--fence ${fence}`]),
    ...(faults === undefined ? [] : [`--faults ${shellWord(faults.join(","))}`]),
  ].join(" ");
}

function jsonOf({ result, failure, troubles }: Verification, request: Request): object {
  const { runs, ...rest } = result;
  return {
    ...rest,
    // For each check, how often it was broken where it is not promised.
    runs: runs.map(({ checks, ...run }) => ({
      ...run,
      expected: Object.fromEntries(
        checks.filter(({ expected }) => expected > 0).map(({ id, expected }) => [id, expected]),
      ),
    })),
    troubles,
    replay: failure && replayOf(request, failure.seed, failure.shortened),
  };
}

function writeReport(file: string, page: string): void {
  try {
    writeFileSync(file, page);
  } catch (error) {
    throw new CliError(Exit.failed, `the report can't be written: ${(error as Error).message}`);
  }
}
