import { HoldfastError } from "../core/errors.js";
import type { Lease } from "../core/lease.js";
import type { Locks } from "../locks.js";
import { CliError, Exit, exitCodeOf } from "./exit.js";
import type { Options } from "./options.js";
import { masked, note, quoted } from "./output.js";
import { acquire, openFor, waitBriefly } from "./run/acquire.js";
import { runnable } from "./run/child.js";
import { readRunPlan, ttlOf } from "./run/plan.js";
import { Signals } from "./run/signals.js";
import { runUnder, runWithout } from "./run/work.js";

/** Runs a command while holding a name. */
export async function run(
  name: string,
  options: Options,
  command: readonly string[],
): Promise<number> {
  const plan = readRunPlan(name, options, command);
  const words = runnable(command);
  const signals = new Signals();
  let locks: Locks | null = null;
  try {
    let lease: Lease;
    try {
      locks = await openFor(plan, signals);
      lease = await acquire(plan, locks, signals);
    } catch (error) {
      if (!isUnavailable(error)) throw error;
      if (plan.ifUnavailable === "run") return await runWithout(plan, words, error, signals);
      throw new CliError(
        Exit.unavailable,
        `${masked(error.message)}; the command was not run (see --if-unavailable)`,
      );
    }
    if (plan.verbose) note(`got ${quoted(name)} with token ${lease.token}`);
    const end = await runUnder(plan, words, lease, ttlOf(plan, locks), signals);
    return end === "lost" ? Exit.lost : end;
  } finally {
    await waitBriefly(locks?.close());
  }
}

function isUnavailable(error: unknown): error is Error {
  return HoldfastError.is(error) && exitCodeOf(error) === Exit.unavailable;
}
