import { constants } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { onAbort } from "../../core/abort.js";
import { HoldfastError } from "../../core/errors.js";
import { HeldLease } from "../../core/held-lease.js";
import type { Lease, ReleaseResult } from "../../core/lease.js";
import type { Locks } from "../../locks.js";
import { CliError, Exit, usage } from "../exit.js";
import { ranAlready, whyBusy } from "../names.js";
import { formatMs, note, printable, quoted } from "../output.js";
import { describeStore, openLocks } from "../store.js";
import { type Plan, ttlOf } from "./plan.js";
import type { Signals } from "./signals.js";
import { TERM_SHARE } from "./stop.js";
import { WaitingLine } from "./waiting.js";

/** At its end, holdfast waits this long for a store that does not reply. */
const BRIEFLY_MS = 2_000;

export async function openFor(plan: Plan, signals: Signals): Promise<Locks> {
  const locks = await unlessEnded(openLocks(plan.store, plan.locksOptions), plan, signals);
  if (plan.verbose) note(`the store is ${describeStore(plan.store.url)}`);
  // The default store excludes no process on another machine. Printed for people, not into cron's mails.
  const local = !plan.store.named && locks.traits.scope !== "network";
  if (local && (plan.verbose || (process.stderr.isTTY && !plan.quiet))) {
    note(
      "the locks are in a file on this machine, so only processes here are excluded (see --store)",
    );
  }
  return locks;
}

/** A signal ends the wait for a store that hangs. A store that opens later is closed again. */
function unlessEnded(opening: Promise<Locks>, { name }: Plan, signals: Signals): Promise<Locks> {
  return new Promise((resolve, reject) => {
    const end = (): void => {
      reject(gaveUp(name, signals.ended!));
      opening.then((locks) => locks.close()).catch(() => {});
    };
    const ignoreSignal = onAbort(signals.waitSignal, end);
    if (signals.ended !== null) end();
    opening.finally(ignoreSignal).then(resolve, reject);
  });
}

function gaveUp(name: string, ended: NodeJS.Signals): CliError {
  const exitCode = Exit.signal + constants.signals[ended];
  return new CliError(exitCode, `${ended}: gave up waiting for ${quoted(name)}`);
}

/** Waits as planned, unless a signal ends the wait; prints who holds the name meanwhile. */
export async function acquire(plan: Plan, locks: Locks, signals: Signals): Promise<Lease> {
  const { name, waitMs } = plan;
  const line = waitMs > 0 && !plan.quiet ? new WaitingLine(locks, name, plan.holder) : null;
  const lease = await request(plan, locks, signals.waitSignal)
    .finally(() => line?.stop())
    .catch(async (error) => {
      if (signals.ended !== null) return null;
      throw await describeFailure(error, plan, locks);
    });
  if (signals.ended !== null) {
    if (lease !== null) await giveBackUnused(lease);
    throw gaveUp(name, signals.ended);
  }
  return lease!;
}

async function request(plan: Plan, locks: Locks, signal: AbortSignal): Promise<Lease> {
  const { name, mode, atMost } = plan;
  const abortBefore = ttlOf(plan, locks) * TERM_SHARE;
  const options = { ...plan.acquireOptions, abortBefore, signal };
  return atMost === undefined
    ? locks.acquire(name, { ...options, mode })
    : locks.semaphore(name, { permits: atMost }).acquire(options);
}

/** The error in the words of the command line, if it has better ones. */
async function describeFailure(error: unknown, plan: Plan, locks: Locks): Promise<unknown> {
  if (!HoldfastError.is(error)) return error;
  if (error.code === "ACQUIRE_TIMEOUT") {
    return new CliError(Exit.busy, plan.quiet ? "" : await whyNot(plan, locks, error.message));
  }
  if (error.code === "INVALID_ARGUMENT") {
    const why = await otherUse(plan, locks);
    if (why !== null) return usage(why);
  }
  // Not a store that is down: under --if-unavailable run, every run would go without the lock.
  if (error.code === "UNSUPPORTED") {
    return usage(refusedOption(plan, locks) ?? error.message);
  }
  return error;
}

/** The option that the store can't do, as it was typed; null if it is not that. */
function refusedOption(plan: Plan, { traits }: Locks): string | null {
  const { mode, atMost, oncePer, acquireOptions } = plan;
  const given = [
    ["shared", "--shared", mode === "shared"],
    ["permits", "--at-most", atMost !== undefined],
    [
      "at-least",
      oncePer === undefined ? "--at-least" : "--once-per",
      acquireOptions.atLeast !== undefined,
    ],
  ] as const;
  for (const [feature, option, isGiven] of given) {
    const reason = traits.cannot[feature];
    if (isGiven && reason !== undefined) {
      return `the store (${traits.store}) can't do ${option}: ${reason}`;
    }
  }
  return null;
}

async function whyNot(plan: Plan, locks: Locks, otherwise: string): Promise<string> {
  const { failed, waitMs, oncePer } = plan;
  const info = await locks.inspect(plan.name).catch(() => null);
  const why = (oncePer === undefined ? null : ranAlready(info)) ?? whyBusy(info);
  const how = waitMs === 0 ? failed.triedOnce : `waited ${formatMs(waitMs)}`;
  return `${failed.what}: ${why === null ? printable(otherwise) : `${quoted(plan.name)} ${why}`} (${how})`;
}

/** One name can't be a lock and a semaphore, or two semaphores of different sizes. Null if it is not that. */
async function otherUse(plan: Plan, locks: Locks): Promise<string | null> {
  const limit = (await locks.inspect(plan.name).catch(() => null))?.limit;
  if (limit === undefined || limit === (plan.atMost ?? null)) return null;
  const use = limit === null ? "as a lock, without --at-most" : `with --at-most ${limit}`;
  const way = plan.atMost !== undefined && limit !== null ? "the same number" : "another name";
  return `${quoted(plan.name)} is in use ${use}; use ${way}, or wait until nobody holds it`;
}

/** No command has run under the lease, so the name does not stay closed. */
export function giveBackUnused(lease: Lease): Promise<ReleaseResult> {
  return lease instanceof HeldLease ? lease.abandon() : lease.release();
}

export async function waitBriefly(work: Promise<unknown> | undefined): Promise<void> {
  await Promise.race([work?.catch(() => {}), sleep(BRIEFLY_MS)]);
}
