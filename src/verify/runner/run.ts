import { setTimeout as sleep } from "node:timers/promises";
import { connect } from "../../core/connect.js";
import type { Locks } from "../../core/locks.js";
import type { MutantName } from "../../testing/mutants.js";
import type { Event, History } from "../check/history.js";
import type { Limits } from "../check/verdict.js";
import { machineMs, TimeLine } from "../traffic/time-line.js";
import { Member } from "./crew.js";
import { Injector } from "./injector.js";
import { type Conduct, countRegisters, judge, type Registers } from "./judge.js";
import type { Load } from "./load.js";
import { Operator } from "./operator.js";
import type { Plan } from "./plan.js";
import type { RunRecord } from "./result.js";
import type { Target } from "./target.js";

export interface RunOptions {
  readonly load: Load;
  readonly pace: number;
  /** The beginning of the first run, from which times count for people; its own if left out. */
  readonly startMs?: number | undefined;
  /** A file for the resources that the workers write to. */
  readonly resourceFile: string;
  readonly mutant?: MutantName | undefined;
  /** The built module of a worker's process, if it is another one. */
  readonly module?: string | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Called a few times a second. */
  readonly onProgress?: ((progress: Progress) => void) | undefined;
}

export interface Progress {
  readonly events: History;
  readonly activeFaults: readonly string[];
}

export interface RunOutcome {
  readonly record: RunRecord;
  readonly history: History;
  /** How many acquires were asked for; of several names, each counts. */
  readonly operations: number;
  readonly grants: number;
  readonly registers: Registers;
  /** What the verifier itself could not do; nothing is concluded from it. */
  readonly troubles: readonly string[];
}

/** How late things may be on a quiet machine, through proxies and with several clients to a core. */
const LIMITS: Partial<Limits> = {
  lossMs: 500,
  wakeMs: 500,
  recordMs: 50,
  freeMs: 3_000,
  healMs: 5_000,
  endMs: 3_000,
  commandMs: 6_000,
};
const PROGRESS_MS = 200;
const FINISH_MS = 12_000;
const CLOSE_MS = 12_000;
const LEFTOVER_MS = 4_000;
let namespaces = 0;

/** Carries out one plan with real processes, and checks what they saw. */
export async function run(target: Target, plan: Plan, options: RunOptions): Promise<RunOutcome> {
  const timeLine = new TimeLine();
  const namespace = `verify-${process.pid}-${++namespaces}-${plan.seed}`;
  const operatorLocks = await connect(target.url, { namespace, holder: "operator", ttl: "10s" });
  options.load.takeWorstMs();
  const fromMs = machineMs();
  const members = await enlist(target, plan, { ...options, timeLine, namespace });
  const injector = new Injector(target.kinds, members, timeLine);
  const operator = new Operator(operatorLocks, timeLine);
  const showing = setInterval(() => {
    options.onProgress?.({ events: timeLine.events, activeFaults: injector.active });
  }, PROGRESS_MS);
  const troubles: string[] = [];
  const hung: string[] = [];
  try {
    const before = await target.commands().catch(() => null);
    await Promise.all(members.map((member) => member.start()));
    // Counted from here: on a busy machine the processes take seconds to start.
    const untilMs = machineMs() + plan.forMs;
    for (const member of members) member.begin(untilMs);
    injector.start(plan.faults);
    operator.start(plan.interventions, () => !injector.isStoreStruck);
    await sleep(Math.max(0, untilMs - machineMs()), undefined, { signal: options.signal }).catch(
      () => {},
    );
    await Promise.all([injector.end(), operator.end()]);
    for (const member of members) await member.finish();
    for (const member of members) {
      if (!(await member.finished(FINISH_MS * options.pace)))
        hung.push(`${member.client}'s programs`);
    }
    const commands = (await target.commands().catch(() => null)) ?? null;
    for (const member of members) {
      if (!(await member.close(CLOSE_MS * options.pace))) hung.push(`${member.client}'s close()`);
    }
    const left = await leftovers(operatorLocks, longestTtl(plan) + LEFTOVER_MS * options.pace);
    troubles.push(...injector.troubles);
    const conduct: Conduct = {
      crashes: members.flatMap(({ faults }) => faults),
      hung,
      left,
      commands: before === null || commands === null ? null : commands - before,
      workers: members.length,
    };
    const slackMs = options.load.takeWorstMs();
    const history = timeLine.history();
    const checks = judge(history, conduct, {
      limits: scaled({ ...LIMITS, ...target.limits }, options.pace, slackMs),
      excuses: [...injector.excuses(longestTtl(plan)), ...operator.excuses],
      lastedMs: machineMs() - fromMs,
      startMs: options.startMs ?? fromMs,
    });
    const record: RunRecord = {
      seed: plan.seed,
      fromMs,
      untilMs: machineMs(),
      clients: members.map(({ client }) => client),
      faults: injector.records,
      checks,
    };
    const count = (wanted: Event["kind"]): number =>
      history.filter(({ kind }) => kind === wanted).length;
    return {
      record,
      history,
      operations: count("asked"),
      grants: count("granted"),
      registers: countRegisters(history),
      troubles,
    };
  } finally {
    clearInterval(showing);
    await injector.end();
    await Promise.all(members.map((member) => member.kill()));
    await Promise.all(members.map(({ way }) => way.close()));
    await operatorLocks.close().catch(() => {});
  }
}

function enlist(
  target: Target,
  plan: Plan,
  around: RunOptions & { timeLine: TimeLine; namespace: string },
): Promise<readonly Member[]> {
  const { timeLine, namespace, resourceFile, mutant, module } = around;
  const locks = { namespace, commandTimeout: plan.commandTimeoutMs };
  return Promise.all(
    plan.workers.map(async ({ client, connections, programs }) => {
      const way = await target.openWay(client);
      return new Member({
        client,
        way,
        timeLine,
        locks,
        connections,
        programs,
        resourceFile,
        mutant,
        module,
      });
    }),
  );
}

/** What is still in the store when everybody has been gone for a ttl. */
async function leftovers(locks: Locks, withinMs: number): Promise<readonly string[]> {
  const endMs = machineMs() + withinMs;
  for (;;) {
    const found = await locks.list().then(
      (names) => names.filter(({ holders, waiting }) => holders.length + waiting > 0),
      () => null,
    );
    if (found !== null && found.length === 0) return [];
    if (machineMs() > endMs) {
      return (found ?? []).map(
        ({ name, holders, waiting }) => `${name}: ${holders.length} holders, ${waiting} waiters`,
      );
    }
    await sleep(200);
  }
}

const longestTtl = ({ workers }: Plan): number =>
  Math.max(...workers.flatMap(({ programs }) => programs.flatMap(({ ttlsMs }) => ttlsMs)));

/** A busy machine is late with everything. */
function scaled(limits: Partial<Limits>, pace: number, slackMs: number): Partial<Limits> {
  const times = Object.entries(limits).map(([name, value]) => [
    name,
    name.endsWith("Ms") && typeof value === "number" ? value * pace + 2 * slackMs : value,
  ]);
  return Object.fromEntries(times) as Partial<Limits>;
}
