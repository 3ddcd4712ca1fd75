import { constants } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { HoldfastError } from "../../core/errors.js";
import type { Lease } from "../../core/lease.js";
import type { Locks } from "../../core/locks.js";
import { LOCK_LIMIT } from "../../core/store.js";
import { CliError, Exit, usage } from "../exit.js";
import { ranAlready, whyBusy } from "../names.js";
import { formatMs, masked, note, printable, quoted } from "../output.js";
import { describeStore, openLocks } from "../store.js";
import type { Plan } from "./plan.js";
import type { Signals } from "./signals.js";
import { WaitingLine } from "./waiting.js";

/** When the outcome is known, a store that does not answer keeps nobody for longer than this. */
const GOODBYE_MS = 2_000;

export async function openFor(plan: Plan): Promise<Locks> {
  const locks = await openLocks(plan.store, plan.locksOptions);
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
    await lease?.release();
    const exitCode = Exit.signal + constants.signals[signals.ended];
    throw new CliError(exitCode, `${signals.ended}: gave up waiting for ${quoted(name)}`);
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
  if (limit === undefined || limit === (plan.atMost ?? LOCK_LIMIT)) return null;
  const use = limit === LOCK_LIMIT ? "as a lock, without --at-most" : `with --at-most ${limit}`;
  const way =
    plan.atMost !== undefined && limit !== LOCK_LIMIT ? "the same number" : "another name";
  return `${quoted(plan.name)} is in use ${use}; use ${way}, or wait until nobody has it`;
}

export async function goodbye(work: Promise<unknown> | undefined): Promise<void> {
  await Promise.race([work?.catch(() => {}), sleep(GOODBYE_MS)]);
}
