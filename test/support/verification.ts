import { MUTANTS, type MutantName } from "../../src/testing.js";
import { checkHistory, RULES, type RuleId, type Verdict } from "../../src/verify/check/check.js";
import type { History } from "../../src/verify/check/history.js";
import type { CheckResult, FaultRecord, Result } from "../../src/verify/runner/result.js";
import { search } from "../../src/verify/simulate/search.js";
import { type Busy, busyHistory } from "./busy-history.js";

export interface Verification {
  readonly result: Result;
  readonly history: History;
}

/** The result of a run as real workers would have it, from a model of them. */
export function busyVerification(options: Busy = {}, parts: Partial<Result> = {}): Verification {
  const { history, faults } = busyHistory(options);
  return verificationOf(history, faults, { seed: options.seed ?? 1, ...parts });
}

/** A run of the simulator in which a mutant breaks a promise. */
export async function mutantVerification(name: MutantName): Promise<Verification> {
  const { failure } = await search({ seed: 1, runs: 400, mutant: MUTANTS[name] });
  if (failure === null) throw new Error(`nothing found of: ${name}`);
  const { history, verdicts, schedule } = failure.outcome;
  return verificationOf(history, faultsOf(history), {
    target: "simulated",
    about: `the simulator with the mutant “${name}”`,
    seed: schedule.seed,
    checks: verdicts.map(toCheck),
    outcome: "violated",
  });
}

export function verificationOf(
  history: History,
  faults: readonly FaultRecord[],
  parts: Partial<Result> = {},
): Verification {
  const checks =
    parts.checks ?? checkHistory(history, { healMs: 60_000, endMs: 5_000 }).map(toCheck);
  const untilMs = history.at(-1)?.atMs ?? 0;
  const writes = history.filter((event) => event.kind === "wrote");
  const refused = writes.filter(({ accepted }) => !accepted).length;
  const clients = [
    ...new Set(history.flatMap((event) => ("client" in event ? [event.client] : []))),
  ].sort();
  const seed = parts.seed ?? 1;
  const registers = {
    fenced: { writes: writes.length - refused, lost: 0, refused },
    unfenced: { writes: writes.length, lost: refused, refused: 0 },
  };
  const result: Result = {
    target: "redis-cluster",
    about: "a Redis Cluster of three primaries, each with a replica",
    fence: "sqlite",
    versions: { node: "20.20.2", "redis-server": "7.0.15", ioredis: "6.0.0" },
    startedAt: "2026-11-17T04:49:00.000Z",
    lastedMs: untilMs + 4_200,
    seed,
    command: `npx holdfast verify redis-cluster --for 60s --workers 8 --seed ${seed} --report out.html`,
    runs: [{ seed, fromMs: 0, untilMs, clients, faults, checks, registers }],
    kinds: [],
    checks,
    notOffered: [],
    outcome: checks.some(({ verdict }) => verdict === "violated") ? "violated" : "held",
    operations: history.filter(({ kind }) => kind === "asked").length,
    grants: history.filter(({ kind }) => kind === "granted").length,
    faults: faults.length,
    failedFaults: 0,
    ...registers,
    ...parts,
  };
  return { result, history };
}

function toCheck({ rule, verdict, why, evidence, checked }: Verdict): CheckResult {
  const { promise } = RULES[rule as RuleId];
  const outcome = verdict === "ok" ? "held" : verdict;
  return { id: rule, promise, verdict: outcome, checked, expected: 0, why, evidence };
}

/** The same result, with one violated check counted as expected. */
export function asExpected({ result, history }: Verification): Verification {
  const checks = result.checks.map((check) =>
    check.verdict === "violated" ? { ...check, verdict: "expected" as const, expected: 3 } : check,
  );
  return { history, result: { ...result, checks, outcome: "held" } };
}

/** The faults that a history of the simulator names, as "client-1: what (times)". */
function faultsOf(history: History): readonly FaultRecord[] {
  return history.flatMap((event): FaultRecord[] => {
    if (event.kind !== "injected") return [];
    const [before, after] = event.fault.replace(/ \(.*\)$/, "").split(": ");
    const healed = history.find((one) => one.kind === "healed" && one.fault === event.fault);
    const span = { fromMs: event.atMs, untilMs: healed?.atMs ?? Number.POSITIVE_INFINITY };
    const { fault: name } = event;
    return after === undefined
      ? [{ kind: before!, hits: "server", name, ...span }]
      : [{ kind: after, hits: "connection", name, client: before!, ...span }];
  });
}
