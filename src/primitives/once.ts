import type { Context } from "../core/commands.js";
import { InvalidArgumentError } from "../core/errors.js";
import type { Lease } from "../core/lease.js";
import {
  type AcquireOptions,
  acquireOptionsBut,
  refuseIfCannot,
  resolveCall,
} from "../core/options.js";
import { checkOnLost, type OnLost, workUnder } from "../core/under.js";
import { checkName, checkOptions, type Duration, parseDuration, show } from "../core/validate.js";
import { assertOpen, Waiter } from "../core/waiter.js";

export interface OnceOptions
  extends Omit<AcquireOptions, "wait" | "mode" | "atLeast" | "reentrant"> {
  /** The period. */
  every: Duration;
  /**
   * It may begin again so much earlier: machines do not wake at the same moment every time, and a
   * run that began a second late must not cost the next. Default a tenth of the period, at most a minute.
   */
  slack?: Duration | undefined;
  onLost?: OnLost | undefined;
}

/** `holder`: who has it, or had it. `nextInMs`: when it is worth asking again. */
export type OnceResult<T> =
  | { readonly ran: true; readonly value: T }
  | { readonly ran: false; readonly holder: string | null; readonly nextInMs: number };

const OPTIONS = acquireOptionsBut("wait", "mode", "atLeast", "reentrant");
const SLACK = { share: 0.1, mostMs: 60_000 };

export const slackOf = (everyMs: number): number => Math.min(everyMs * SLACK.share, SLACK.mostMs);

/** Runs `fn` unless somebody has begun it within the period: asks once, and `atLeast` keeps the name closed. */
export async function once<T>(
  context: Context,
  name: string,
  options: OnceOptions,
  fn: (lease: Lease) => T | Promise<T>,
): Promise<OnceResult<T>> {
  assertOpen(context);
  checkName(name);
  checkOptions(options, "the options of once", [...OPTIONS, "every", "slack", "onLost"]);
  if (typeof fn !== "function") {
    throw new InvalidArgumentError(`fn is ${show(fn)}; once needs a function to run`);
  }
  const { every, slack, onLost, ...rest } = options;
  const checked = checkOnLost(onLost);
  refuseIfCannot(context.store.traits, "at-least", "once");
  const everyMs = parseDuration(every, "every", { min: 1 });
  const slackMs =
    slack === undefined ? slackOf(everyMs) : parseDuration(slack, "slack", { min: 0 });
  if (slackMs >= everyMs) {
    throw new InvalidArgumentError(
      `slack is ${slackMs} ms of a period of ${everyMs} ms, and leaves nothing of it`,
    );
  }
  const call = resolveCall(rest, context.settings, context.store.traits, OPTIONS);
  const asks = { ...call, waitMs: 0, atLeastMs: everyMs - slackMs };
  const waiter = new Waiter(context, [name], asks);
  const lease = (await waiter.acquire())?.[0];
  if (lease === undefined) {
    const { holder, freeInMs } = waiter.busy;
    return { ran: false, holder, nextInMs: freeInMs };
  }
  return { ran: true, value: await workUnder(lease, checked, async () => fn(lease)) };
}
