import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { systemClock } from "../../core/clock.js";
import type { Lease } from "../../core/lease.js";
import { Exit } from "../exit.js";
import { formatMs, masked, note, quoted } from "../output.js";
import { giveBackUnused, waitBriefly } from "./acquire.js";
import { Child, type Ended } from "./child.js";
import type { Plan } from "./plan.js";
import type { Signals } from "./signals.js";
import { Stopper } from "./stop.js";

/**
 * Runs the command while the lease lasts, and releases the name. Resolves with the exit code, or
 * with `lost` if the lease was lost; then the command is stopped, with all of its group.
 */
export async function runUnder(
  plan: Plan,
  words: readonly string[],
  lease: Lease,
  ttlMs: number,
  signals: Signals,
): Promise<number | "lost"> {
  // Reads the clock: holdfast may have been stopped since the grant.
  if (lease.state === "lost") {
    note(`the lease on ${quoted(plan.name)} was lost before the command began`);
    await waitBriefly(giveBackUnused(lease));
    return "lost";
  }
  const child = start(plan, words, lease);
  const stopper = new Stopper(lease, child, systemClock(), ttlMs);
  signals.forwardTo((signal) => {
    // Reads the clock: if both were stopped past the lease, CONT must not wake the child before KILL.
    void lease.state;
    child.kill(signal);
  });
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
    signals.forwardTo(null);
    await waitBriefly(lease.release());
    return "lost";
  }
  stopper.dismiss();
  signals.forwardTo(null);
  return finish(plan, lease, ttlMs, ended);
}

export async function runWithout(
  plan: Plan,
  words: readonly string[],
  error: Error,
  signals: Signals,
): Promise<number> {
  note(
    `${masked(error.message)}; running WITHOUT the lock on ${quoted(plan.name)}, ` +
      "as --if-unavailable run says: others may run at the same time",
  );
  const child = start(plan, words, null);
  signals.forwardTo((signal) => child.kill(signal));
  return (await child.ended).exitCode;
}

/** Releases the name, and prints a warning if the lease was lost before the command ended. */
async function finish(plan: Plan, lease: Lease, ttlMs: number, ended: Ended): Promise<number> {
  const neverRan = ended.problem !== undefined;
  if (neverRan) note(masked(ended.problem));
  const outcome = await (neverRan ? giveBackUnused(lease) : lease.release());
  const name = quoted(plan.name);
  if (outcome === "released" && plan.verbose) note(`released ${name}`);
  if (outcome === "unknown") {
    note(`the store did not reply to the release; ${name} may stay held for ${formatMs(ttlMs)}`);
  }
  if (outcome === "lost") {
    note(
      `the command has ended, but the lease on ${name} was lost before: another command may have run at the same time`,
    );
    return ended.exitCode === Exit.ok ? Exit.lost : ended.exitCode;
  }
  return ended.exitCode;
}

function start({ name }: Plan, words: readonly string[], lease: Lease | null): Child {
  const env: NodeJS.ProcessEnv = { ...process.env, HOLDFAST_NAME: name };
  for (const stale of ["HOLDFAST_TOKEN", "HOLDFAST_FLOOR", "HOLDFAST_HOLDER"]) delete env[stale];
  if (lease !== null) {
    env["HOLDFAST_TOKEN"] = String(lease.token);
    env["HOLDFAST_FLOOR"] = String(lease.floor);
    env["HOLDFAST_HOLDER"] = lease.holder;
  }
  return new Child(words, env);
}
