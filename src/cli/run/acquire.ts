import { constants } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { onAbort } from "../../core/abort.js";
import { HoldfastError } from "../../core/errors.js";
import { HeldLease } from "../../core/held-lease.js";
import type { Lease, ReleaseResult } from "../../core/lease.js";
import type { Locks } from "../../core/locks.js";
import { CliError, Exit, usage } from "../exit.js";
import { ranAlready, whyBusy } from "../names.js";
import { formatMs, masked, note, printable, quoted } from "../output.js";
import { describeStore, openLocks } from "../store.js";
import type { Plan } from "./plan.js";
import type { Signals } from "./signals.js";
import { WaitingLine } from "./waiting.js";

/** When the outcome is known, a store that does not answer keeps nobody for longer than this. */
const GOODBYE_MS = 2_000;

export async function openFor(plan: Plan, signals: Signals): Promise<Locks> {
  const locks = await unlessEnded(openLocks(plan.store, plan.locksOptions), plan, signals);
  if (plan.verbose) note(`the store is ${masked(describeStore(plan.store.url))}`);
  // The default store keeps out nobody on another machine. Told to people, not to cron's mails.
  const local = !plan.store.named && locks.traits.scope !== "network";
  if (local && (plan.verbose || (process.stderr.isTTY && !plan.quiet))) {
    note(
      "the locks are in a file on this machine, so only processes here are kept out (see --store)",
    );
  }
  return locks;
}

/** A store that hangs does not hold up a signal. What is opened after that is closed again. */
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

/** Waits as planned, unless a signal ends it; says who is in the way. */
export async function acquire(plan: Plan, locks: Locks, signals: Signals): Promise<Lease> {
  const { name, waitMs } = plan;
  const line = waitMs > 0 && !plan.quiet ? new WaitingLine(locks, name, plan.holder) : null;
  const lease = await ask(plan, locks, signals.waitSignal)
    .finally(() => line?.stop())
    .catch(async (error) => {
      if (signals.ended !== null) return null;
      throw await explained(error, plan, locks);
    });
  if (signals.ended !== null) {
    if (lease !== null) await giveBackUnused(lease);
    throw gaveUp(name, signals.ended);
  }
  return lease!;
}

async function ask(plan: Plan, locks: Locks, signal: AbortSignal): Promise<Lease> {
  const { name, mode, atMost } = plan;
  const options = { ...plan.acquireOptions, signal };
  return atMost === undefined
    ? locks.acquire(name, { ...options, mode })
    : locks.semaphore(name, { permits: atMost }).acquire(options);
}

async function explained(error: unknown, plan: Plan, locks: Locks): Promise<unknown> {
  if (!HoldfastError.is(error)) return error;
  if (error.code === "ACQUIRE_TIMEOUT") {
    return new CliError(Exit.busy, plan.quiet ? "" : await whyNot(plan, locks, error.message));
  }
  if (error.code === "INVALID_ARGUMENT") {
    const why = await otherUse(plan, locks);
    if (why !== null) return usage(why);
  }
  return error;
}

async function whyNot(plan: Plan, locks: Locks, otherwise: string): Promise<string> {
  const { failed, waitMs, oncePer } = plan;
  const info = await locks.inspect(plan.name).catch(() => null);
  const why = (oncePer === undefined ? null : ranAlready(info)) ?? whyBusy(info);
  const asked = waitMs === 0 ? failed.askedOnce : `waited ${formatMs(waitMs)}`;
  return `${failed.what}: ${why === null ? printable(otherwise) : `${quoted(plan.name)} ${why}`} (${asked})`;
}

/** A lock and a semaphore, or two of different sizes, can't be under one name; in the words of this command line. */
async function otherUse(plan: Plan, locks: Locks): Promise<string | null> {
  const limit = (await locks.inspect(plan.name).catch(() => null))?.limit;
  if (limit === undefined || limit === (plan.atMost ?? null)) return null;
  const use = limit === null ? "as a lock, without --at-most" : `with --at-most ${limit}`;
  const way = plan.atMost !== undefined && limit !== null ? "the same number" : "another name";
  return `${quoted(plan.name)} is in use ${use}; use ${way}, or wait until nobody has it`;
}

/** No command has run under it: the name does not stay closed. */
export function giveBackUnused(lease: Lease): Promise<ReleaseResult> {
  return lease instanceof HeldLease ? lease.abandon() : lease.release();
}

export async function goodbye(work: Promise<unknown> | undefined): Promise<void> {
  await Promise.race([work?.catch(() => {}), sleep(GOODBYE_MS)]);
}
