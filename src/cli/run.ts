import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { constants } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { systemClock } from "../core/clock.js";
import { HoldfastError } from "../core/errors.js";
import type { Lease } from "../core/lease.js";
import type { Locks } from "../core/locks.js";
import type { Options } from "./commands.js";
import { CliError, Exit, exitCodeOf } from "./exit.js";
import { whyBusy } from "./names.js";
import { formatMs, masked, note, printable, quoted } from "./output.js";
import { Child, type Ended } from "./run/child.js";
import { checkCommand } from "./run/find.js";
import { type Plan, readPlan } from "./run/plan.js";
import { Signals } from "./run/signals.js";
import { Stopper, TERM_SHARE } from "./run/stop.js";
import { WaitingLine } from "./run/waiting.js";
import { describeStore, openLocks } from "./store.js";

/** When the outcome is known, a store that does not answer keeps nobody for longer than this. */
const GOODBYE_MS = 2_000;

/** Runs a command while holding a name. */
export async function run(
  name: string,
  options: Options,
  command: readonly string[],
): Promise<number> {
  const plan = readPlan(name, options, command);
  checkCommand(plan.command[0]!);
  const signals = new Signals();
  let locks: Locks | null = null;
  try {
    let lease: Lease;
    try {
      locks = await openLocks(plan.store, plan.locksOptions);
      sayWhere(plan, locks);
      lease = await acquire(plan, locks, signals);
    } catch (error) {
      if (plan.ifUnavailable === "run" && isUnavailable(error)) {
        return await runWithout(plan, error, signals);
      }
      throw error;
    }
    return await runHeld(plan, lease, signals);
  } finally {
    await atMost(
      GOODBYE_MS,
      locks?.close().catch(() => {}),
    );
  }
}

async function acquire(plan: Plan, locks: Locks, signals: Signals): Promise<Lease> {
  const { name, waitMs } = plan;
  const line = waitMs > 0 && !plan.quiet ? new WaitingLine(locks, name, plan.holder) : null;
  const lease = await locks
    .acquire(name, {
      ...plan.acquireOptions,
      abortBefore: plan.ttlMs * TERM_SHARE,
      signal: signals.waitSignal,
    })
    .finally(() => line?.stop())
    .catch(async (error) => {
      if (signals.ended === null && HoldfastError.is(error) && error.code === "ACQUIRE_TIMEOUT") {
        throw new CliError(Exit.busy, plan.quiet ? "" : await whyNot(plan, locks, error.message));
      }
      if (signals.ended === null) throw error;
      return null;
    });
  if (signals.ended !== null) {
    await lease?.release();
    const exitCode = Exit.signal + constants.signals[signals.ended];
    throw new CliError(exitCode, `${signals.ended}: gave up waiting for ${quoted(name)}`);
  }
  return lease!;
}

async function whyNot(plan: Plan, locks: Locks, otherwise: string): Promise<string> {
  const info = await locks.inspect(plan.name).catch(() => null);
  const why = whyBusy(info);
  const asked = plan.waitMs === 0 ? "asked once, see --wait" : `waited ${formatMs(plan.waitMs)}`;
  return `not run: ${why === null ? printable(otherwise) : `${quoted(plan.name)} ${why}`} (${asked})`;
}

async function runHeld(plan: Plan, lease: Lease, signals: Signals): Promise<number> {
  if (plan.verbose) note(`got ${quoted(plan.name)} with token ${lease.token}`);
  const child = start(plan, lease, signals);
  const stopper = new Stopper(lease, child, systemClock(), plan.ttlMs);
  const onRenewed = (): void => stopper.renewed();
  subscribe("holdfast:renewed", onRenewed);
  lease.on("jeopardy", (cause) => {
    const text = cause instanceof Error ? cause.message : String(cause);
    const leftMs = lease.remainingMs;
    note(
      `the lease can't be renewed (${masked(text)}); the command is stopped in ${formatMs(leftMs)} if that goes on`,
    );
  });
  lease.on("recovered", () => note("the lease is renewed again"));
  const ended = await child.ended;
  unsubscribe("holdfast:renewed", onRenewed);
  if (stopper.loss !== null) {
    await stopper.gone();
    await atMost(GOODBYE_MS, lease.release());
    return Exit.lost;
  }
  stopper.dismiss();
  signals.forwardTo(() => {});
  return finish(plan, lease, ended);
}

/** Gives the name back, and says so if it was not ours to the end. */
async function finish(plan: Plan, lease: Lease, ended: Ended): Promise<number> {
  if (ended.problem !== undefined) note(masked(ended.problem));
  const outcome = await lease.release();
  const name = quoted(plan.name);
  if (outcome === "released" && plan.verbose) note(`released ${name}`);
  if (outcome === "unknown") {
    note(
      `the store did not answer to the release; ${name} may stay closed for ${formatMs(plan.ttlMs)}`,
    );
  }
  if (outcome === "lost") {
    note(
      `the command has ended, but the lease on ${name} was lost before: another may have run at the same time`,
    );
    return ended.exitCode === Exit.ok ? Exit.lost : ended.exitCode;
  }
  return ended.exitCode;
}

async function runWithout(plan: Plan, error: Error, signals: Signals): Promise<number> {
  note(
    `${masked(error.message)}; running WITHOUT the lock on ${quoted(plan.name)}, ` +
      "as --if-unavailable run says: others may run at the same time",
  );
  return (await start(plan, null, signals).ended).exitCode;
}

function start(plan: Plan, lease: Lease | null, signals: Signals): Child {
  const env: NodeJS.ProcessEnv = { ...process.env, HOLDFAST_NAME: plan.name };
  for (const name of ["HOLDFAST_TOKEN", "HOLDFAST_FLOOR", "HOLDFAST_HOLDER"]) delete env[name];
  if (lease !== null) {
    env["HOLDFAST_TOKEN"] = String(lease.token);
    env["HOLDFAST_FLOOR"] = String(lease.floor);
    env["HOLDFAST_HOLDER"] = lease.holder;
  }
  const child = new Child(plan.command, env);
  signals.forwardTo((signal) => child.kill(signal));
  return child;
}

/** The default store keeps out nobody on another machine. Told to people, not to cron's mails. */
function sayWhere(plan: Plan, locks: Locks): void {
  if (plan.verbose) note(`the store is ${masked(describeStore(plan.store.url))}`);
  const local = !plan.store.named && locks.traits.scope !== "network";
  if (local && (plan.verbose || (process.stderr.isTTY && !plan.quiet))) {
    note(
      "the locks are in a file on this machine, so only processes here are kept out (see --store)",
    );
  }
}

async function atMost(ms: number, work: Promise<unknown> | undefined): Promise<void> {
  await Promise.race([work, sleep(ms)]);
}

function isUnavailable(error: unknown): error is Error {
  return HoldfastError.is(error) && exitCodeOf(error) === Exit.unavailable;
}
