import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { connect } from "../../connect.js";
import type { Locks } from "../../locks.js";
import type { MutantName } from "../../testing/mutants.js";
import type { Event, History } from "../check/history.js";
import type { Limits } from "../check/verdict.js";
import type { RegisterPlace } from "../traffic/registers/register.js";
import { machineMs, TimeLine } from "../traffic/time-line.js";
import { Member } from "./crew.js";
import { Injector } from "./injector.js";
import { type Conduct, countRegisters, judge } from "./judge.js";
import type { Load } from "./load.js";
import { Operator } from "./operator.js";
import type { Plan } from "./plan.js";
import type { RunRecord } from "./result.js";
import { callTheRoll, ownNameOf, type RollCall, slowHandovers } from "./roll-call.js";
import type { Target } from "./target.js";

export interface RunOptions {
  readonly load: Load;
  readonly pace: number;
  /** The start of the first run, from which times count for people; by default the start of this run. */
  readonly startMs?: number | undefined;
  /** The file of the resources that the workers write to. */
  readonly resourceFile: string;
  /** Another place for the resources, on a server that no fault hits. */
  readonly register?: RegisterPlace | undefined;
  readonly mutant?: MutantName | undefined;
  /** The built module of the worker processes, if it is not the usual one. */
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
  /** How many acquires began; each name of a multi-lock counts. */
  readonly operations: number;
  readonly grants: number;
  /** Errors of the verifier itself; they do not affect the verdicts. */
  readonly troubles: readonly string[];
}

/** Tolerances on a quiet machine, through proxies and with several clients per processor. */
const LIMITS: Partial<Limits> = {
  lossMs: 500,
  wakeMs: 500,
  recordMs: 50,
  freeMs: 3_000,
  healMs: 5_000,
  endMs: 3_000,
  commandMs: 6_000,
};
const MOST_RECORD_MS = 200;
const PROGRESS_MS = 200;
const FINISH_MS = 12_000;
const CLOSE_MS = 12_000;
const LEFTOVER_MS = 4_000;

/** A namespace that no other run uses: process ids and seeds repeat in containers that share a store. */
export const newNamespace = (seed: number): string =>
  `verify-${seed}-${randomBytes(6).toString("hex")}`;

/** Carries out one plan with real processes, and checks the history. */
export async function run(target: Target, plan: Plan, options: RunOptions): Promise<RunOutcome> {
  const timeLine = new TimeLine();
  const namespace = newNamespace(plan.seed);
  const operatorLocks = await connect(target.url, {
    namespace,
    holder: "operator",
    ttl: "10s",
    // A user's store is opened at once, so that a mistake in its URL shows. Otherwise only when an operator
    // acts: as long as this process has an SQLite file open, nobody removes the log under the workers.
    lazy: target.isOurs,
  });
  options.load.takeWorstMs();
  const fromMs = machineMs();
  const members: Member[] = [];
  const injector = new Injector(target.kinds, members, timeLine);
  const operator = new Operator(operatorLocks, timeLine);
  const showing = setInterval(() => {
    options.onProgress?.({ events: timeLine.events, activeFaults: injector.active });
  }, PROGRESS_MS);
  try {
    await enlist(members, target, plan, { ...options, timeLine, namespace });
    const before = await target.commands().catch(() => null);
    await Promise.all(members.map((member) => member.start()));
    await contend(plan, members, injector, operator, options.signal);
    const hung = await finish(members, options.pace);
    await operator.end();
    const [ttlMs] = target.ttlsMs as [number];
    const roll =
      options.signal?.aborted || injector.isLockedOut || injector.hasUnhealed
        ? NO_ROLL
        : await callTheRoll(members, plan, { pace: options.pace, ttlMs, timeLine });
    const after = await target.commands().catch(() => null);
    for (const member of members) {
      if (!(await member.close(CLOSE_MS * options.pace))) hung.push(`${member.client}'s close()`);
    }
    const left = await leftovers(
      operatorLocks,
      plan,
      async (names) =>
        injector.hasSetClock
          ? []
          : ((await target.leftOf?.(names.map((name) => `${namespace}:${name}`))) ?? []),
      LEFTOVER_MS * options.pace,
    );
    const slackMs = options.load.takeWorstMs();
    const history = timeLine.history();
    const slow = slowHandovers(history, plan, {
      pace: options.pace,
      slackMs,
      handoverMs: target.handoverMs,
    });
    const conduct: Conduct = {
      crashes: [
        ...members.flatMap(({ faults }) => faults),
        ...(target.isOurs && !injector.isLockedOut && !injector.hasUnhealed
          ? outagesOf(members)
          : []),
      ],
      hung,
      left,
      roll: { ...roll, failures: [...roll.failures, ...slow] },
      // A restarted server counts from 0 again.
      commands: before === null || after === null || after < before ? null : after - before,
      workers: members.length,
      isOurs: target.isOurs,
    };
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
      registers: countRegisters(history),
    };
    return outcomeOf(record, history, injector.troubles);
  } finally {
    clearInterval(showing);
    await injector.end();
    await Promise.all(members.map((member) => member.kill()));
    await Promise.all(members.map(({ way }) => way.close()));
    await operatorLocks.close().catch(() => {});
  }
}

const NO_ROLL: RollCall = { asked: 0, failures: [], outages: 0 };

/** Runs traffic and faults until the time is over and all faults are healed. */
async function contend(
  plan: Plan,
  members: readonly Member[],
  injector: Injector,
  operator: Operator,
  signal: AbortSignal | undefined,
): Promise<void> {
  // The time counts from here: on a busy machine the processes take seconds to start.
  const untilMs = machineMs() + plan.forMs;
  for (const member of members) member.begin(untilMs);
  injector.start(plan.faults);
  operator.start(plan.interventions, () => !injector.isStoreStruck);
  await sleep(Math.max(0, untilMs - machineMs()), undefined, { signal }).catch(() => {});
  await injector.end();
}

/** A server or its disk may stand still for a moment, so a missing reply to close() counts only if every worker missed it. */
function outagesOf(members: readonly Member[]): readonly string[] {
  const outages = members.flatMap(({ outage }) => outage ?? []);
  return outages.length === members.length ? outages : [];
}

/** Ends the programs, and returns those that did not end in time. */
async function finish(members: readonly Member[], pace: number): Promise<string[]> {
  const hung: string[] = [];
  for (const member of members) await member.finish();
  for (const member of members) {
    if (!(await member.finished(FINISH_MS * pace))) hung.push(`${member.client}'s programs`);
  }
  return hung;
}

function outcomeOf(record: RunRecord, history: History, troubles: readonly string[]): RunOutcome {
  const count = (wanted: Event["kind"]): number =>
    history.filter(({ kind }) => kind === wanted).length;
  return {
    record,
    history,
    operations: count("asked"),
    grants: count("granted"),
    troubles,
  };
}

/** Adds the members one by one, so that the ways that were opened before a failure can be closed. */
async function enlist(
  members: Member[],
  target: Target,
  plan: Plan,
  around: RunOptions & { timeLine: TimeLine; namespace: string },
): Promise<void> {
  const { timeLine, namespace, resourceFile, register, mutant, module } = around;
  const locks = { namespace, commandTimeout: plan.commandTimeoutMs };
  for (const { client, ttlMs, connections, programs } of plan.workers) {
    const way = await target.openWay(client);
    const member = new Member({
      client,
      way,
      timeLine,
      locks: ttlMs === undefined ? locks : { ...locks, ttl: ttlMs },
      connections,
      programs,
      resourceFile,
      register,
      mutant,
      module,
    });
    members.push(member);
  }
}

/**
 * The records that are still in the store one ttl after all clients have gone; null if the store
 * did not reply. Only the names of this run are read: on a user's own store, a list would read all
 * keys.
 */
async function leftovers(
  locks: Locks,
  plan: Plan,
  leftOf: (names: readonly string[]) => Promise<readonly string[]>,
  moreMs: number,
): Promise<readonly string[] | null> {
  const endMs = machineMs() + longestTtl(plan) + moreMs;
  const names = [
    ...plan.names.map(({ name }) => name),
    ...plan.workers.map(({ client }) => ownNameOf(client)),
  ];
  // A note of the forced release stays for an hour.
  const isForced = (one: string): boolean =>
    plan.interventions.some(({ does, name }) => does === "force a release" && name === one);
  const unforced = names.filter((name) => !isForced(name));
  const read = async (): Promise<readonly string[]> => {
    const infos = await Promise.all(names.map((name) => locks.inspect(name)));
    const shown = infos.filter((one) => one !== null && one.holders.length + one.waiting > 0);
    if (shown.length > 0) {
      return shown.map(
        (one) => `${one!.name}: ${one!.holders.length} holders, ${one!.waiting} waiters`,
      );
    }
    const left = await leftOf(unforced);
    return left.map((one) => `${one} is still in the store, though inspect() shows nothing`);
  };
  for (;;) {
    const found = await read().catch(() => null);
    if (found?.length === 0 || machineMs() > endMs) return found;
    await sleep(200);
  }
}

const longestTtl = ({ workers }: Plan): number =>
  Math.max(...workers.flatMap(({ programs }) => programs.flatMap(({ ttlsMs }) => ttlsMs)));

/**
 * Scales the tolerances: a busy machine is late with everything. The lag of a record stays below
 * the `atLeast` of the programs.
 */
function scaled(limits: Partial<Limits>, pace: number, slackMs: number): Partial<Limits> {
  const times = Object.entries(limits).map(([name, value]) => [
    name,
    name.endsWith("Ms") && typeof value === "number" ? value * pace + 2 * slackMs : value,
  ]);
  const { recordMs = 0, ...rest } = Object.fromEntries(times) as Partial<Limits>;
  return { ...rest, recordMs: Math.min(recordMs, MOST_RECORD_MS) };
}
