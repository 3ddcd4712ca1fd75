import { assertOpen, type Context } from "../core/context.js";
import { InvalidArgumentError } from "../core/errors.js";
import type { Lease } from "../core/lease.js";
import { type AcquireOptions, acquireOptionsBut } from "../core/options.js";
import { refuseIfCannot, resolveCall } from "../core/settings.js";
import { checkName, checkOptions, type Duration, parseDuration } from "../core/validate.js";
import { Waiter } from "../core/waiter.js";
import { checkOnLost, checkWork, type OnLost, workUnder } from "../core/work.js";

/** Options of `once`. */
export interface OnceOptions
  extends Omit<AcquireOptions, "wait" | "mode" | "atLeast" | "reentrant"> {
  /** The period: at most one run begins in it. */
  every: Duration;
  /**
   * The next run may begin this much before the period is over: machines do not wake at the same moment every time, and a
   * run that began a second late must not cost the next. Default a tenth of the period, at most a minute.
   */
  slack?: Duration | undefined;
  /** When `fn` succeeds but the lease was lost on the way: reject, or return the value. Default `"throw"`. */
  onLost?: OnLost | undefined;
}

/** Whether `fn` ran. `holder`: the holder that runs it, or ran it. `nextInMs`: when the next call can succeed. */
export type OnceResult<T> =
  | { readonly ran: true; readonly value: T }
  | { readonly ran: false; readonly holder: string | null; readonly nextInMs: number };

const OPTIONS = acquireOptionsBut("wait", "mode", "atLeast", "reentrant");
const SLACK = { share: 0.1, mostMs: 60_000 };

export const slackOf = (everyMs: number): number => Math.min(everyMs * SLACK.share, SLACK.mostMs);

/** Runs `fn` unless a run has begun within the period: claims once, and `atLeast` keeps the name closed. */
export async function once<T>(
  context: Context,
  name: string,
  options: OnceOptions,
  fn: (lease: Lease) => T | Promise<T>,
): Promise<OnceResult<T>> {
  assertOpen(context);
  checkName(name);
  checkOptions(options, "the options of once", [...OPTIONS, "every", "slack", "onLost"]);
  checkWork(fn, "once");
  const { every, slack, onLost, ...rest } = options;
  const checked = checkOnLost(onLost);
  refuseIfCannot(context.store.traits, "at-least", "once");
  const everyMs = parseDuration(every, "every", { min: 1 });
  const slackMs =
    slack === undefined ? slackOf(everyMs) : parseDuration(slack, "slack", { min: 0 });
  if (slackMs >= everyMs) {
    throw new InvalidArgumentError(
      `slack is ${slackMs} ms; it must be shorter than the period of ${everyMs} ms`,
    );
  }
  const call = resolveCall(rest, context.settings, context.store.traits, OPTIONS);
  const claim = { ...call, waitMs: 0, atLeastMs: everyMs - slackMs };
  const waiter = new Waiter(context, [name], claim);
  const lease = (await waiter.acquire())?.[0];
  if (lease === undefined) {
    const { holder, freeInMs } = waiter.busy;
    return { ran: false, holder, nextInMs: freeInMs };
  }
  return { ran: true, value: await workUnder(lease, checked, async () => fn(lease)) };
}
