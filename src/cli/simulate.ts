import { writeFileSync } from "node:fs";
import { constants } from "node:os";
import { MUTANTS } from "../testing/mutants.js";
import { RULES, type RuleId } from "../verify/check/check.js";
import { drawText } from "../verify/check/draw.js";
import { drawBeliefs } from "../verify/check/picture.js";
import { drawSchedule } from "../verify/simulate/draw-schedule.js";
import { QUORUM_MUTANTS } from "../verify/simulate/quorum/mutants.js";
import { drawQuorumSchedule } from "../verify/simulate/quorum/schedule.js";
import type { SimulatedMutant } from "../verify/simulate/run.js";
import type { Schedule } from "../verify/simulate/schedule.js";
import { type Failure, type Found, search, shortestFailure } from "../verify/simulate/search.js";
import { Exit, usage } from "./exit.js";
import { LiveLine } from "./live-line.js";
import { fileOption, numberOption, type Options } from "./options.js";
import { jsonText, note, print, quoted, style, table } from "./output.js";

const DEFAULT_RUNS = 1_000;
const MOST = 2 ** 31;
const PROGRESS_EVERY_MS = 200;

export async function simulate(options: Options): Promise<number> {
  const mutants = options.quorum ? ofQuorum : MUTANTS;
  if (options.mutant === "list") {
    print(Object.keys(mutants).join("\n"));
    return Exit.ok;
  }
  const mutant = mutantOf(mutants, options.mutant);
  const draw = options.quorum ? drawQuorumSchedule : drawSchedule;
  const given = numberOption(options, "seed", { min: 0, max: MOST });
  const seed = given ?? Math.floor(Math.random() * MOST);
  const runs =
    numberOption(options, "runs", { min: 1, max: MOST }) ??
    (given === undefined ? DEFAULT_RUNS : 1);
  const picture = fileOption(options, "picture");
  const startedMs = performance.now();
  const interrupted = new AbortController();
  // The first signal shows the result so far; a second one ends the process.
  process.once("SIGINT", () => interrupted.abort());
  const { signal } = interrupted;
  note(`${runs} ${runs === 1 ? "run" : "runs"} from seed ${seed}`);
  const line = new LiveLine();
  const found = await search({ seed, runs, draw, mutant, signal, onRun: progress(runs, line) });
  line.clear();
  const seconds = (performance.now() - startedMs) / 1_000;
  const failure = found.failure && (await shortestFailure(found.failure, mutant));
  const replay = failure && replayCommand(failure.outcome.schedule.seed, options);
  if (failure !== null && picture !== undefined) {
    writeFileSync(picture, drawBeliefs(failure.outcome.history, failure.verdict));
  }
  if (options.json) print(asJson(seed, found, failure, replay));
  else {
    print(summary(found, failure));
    const rate = (found.runs / seconds).toFixed(found.runs / seconds < 10 ? 1 : 0);
    print(`\n${found.runs} runs from seed ${seed} in ${seconds.toFixed(1)} s: ${rate} runs/s.`);
    if (failure !== null) print(`\n${story(failure)}\nReplay it: ${replay}`);
    else print("No promise was broken.");
  }
  if (failure !== null) return Exit.failed;
  return signal.aborted ? Exit.signal + constants.signals.SIGINT : Exit.ok;
}

const ofQuorum: Readonly<Record<string, SimulatedMutant>> = Object.fromEntries(
  Object.entries(QUORUM_MUTANTS).map(([name, quorum]) => [name, { quorum }]),
);

function mutantOf(
  mutants: Readonly<Record<string, SimulatedMutant>>,
  name: string | undefined,
): SimulatedMutant {
  if (name === undefined) return {};
  const mutant = Object.hasOwn(mutants, name) ? mutants[name] : undefined;
  if (mutant === undefined) {
    throw usage(`there is no mutant ${quoted(name)}; holdfast simulate --mutant list shows them`);
  }
  return mutant;
}

function progress(runs: number, line: LiveLine): (done: number) => void {
  let saidMs = 0;
  return (done) => {
    const nowMs = performance.now();
    if (nowMs - saidMs < PROGRESS_EVERY_MS) return;
    saidMs = nowMs;
    line.show(`${done} of ${runs} runs`);
  };
}

function replayCommand(seed: number, { mutant, quorum }: Options): string {
  const of = quorum ? " --quorum" : "";
  return `holdfast simulate${of} --seed ${seed}${mutant === undefined ? "" : ` --mutant '${mutant}'`}`;
}

function summary({ checked }: Found, failure: Failure | null): string {
  const rows = Object.entries(RULES).map(([rule, { promise }]) => {
    const count = checked.get(rule as RuleId) ?? 0;
    const broken = failure?.verdict.rule === rule;
    return [rule, promise, broken ? "BROKEN" : count === 0 ? "not seen" : "held", String(count)];
  });
  return table([["", "PROMISE", "", "CHECKED"], ...rows]);
}

function story({ verdict, outcome }: Failure): string {
  const { schedule, history } = outcome;
  const { tasks, troubles } = schedule;
  const shown = history.filter(({ kind }) => kind !== "seen" && kind !== "left");
  return [
    style(process.stdout, "red", `${verdict.rule} is broken: ${verdict.why}`),
    `\nThe evidence:\n${drawText(verdict.evidence, { of: history })}`,
    `The whole run, shortened to ${tasks.length} acquires and ${troubles.length} troubles:`,
    ...troubles.map((trouble) => `  ${describeTrouble(trouble)}`),
    `\n${drawText(shown, { of: history })}`,
  ].join("\n");
}

const secondsOf = (ms: number): string => `${(ms / 1_000).toFixed(3)} s`;

function describeTrouble(trouble: Schedule["troubles"][number]): string {
  const client = "client" in trouble ? `client-${trouble.client}: ` : "";
  const who = "node" in trouble ? `${client}node-${trouble.node}: ` : client;
  const until = "toMs" in trouble ? ` until ${secondsOf(trouble.toMs)}` : "";
  const old = "oldMs" in trouble ? ` with data of ${secondsOf(trouble.oldMs ?? 0)} before` : "";
  const by = "byMs" in trouble ? ` by ${secondsOf(trouble.byMs)}` : "";
  const name = "name" in trouble ? ` name-${trouble.name}` : "";
  const limit = "limit" in trouble ? ` to ${trouble.limit}` : "";
  return `${who}${trouble.kind}${name}${limit}${by}${old}, at ${secondsOf(trouble.fromMs)}${until}`;
}

function asJson(
  seed: number,
  found: Found,
  failure: Failure | null,
  replay: string | null,
): string {
  const broken = failure && {
    rule: failure.verdict.rule,
    why: failure.verdict.why,
    evidence: failure.verdict.evidence,
    schedule: failure.outcome.schedule,
    history: failure.outcome.history,
    replay,
  };
  const { runs, checked } = found;
  return jsonText({ seed, runs, checked: Object.fromEntries(checked), broken });
}
