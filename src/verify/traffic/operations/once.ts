import { setTimeout as sleep } from "node:timers/promises";
import type { Locks } from "../../../locks.js";
import { slackOf } from "../../../primitives/once.js";
import type { Performer } from "../performer.js";
import type { Once } from "../protocol.js";
import { milliseconds } from "../taken.js";

/** Runs work once per period, and returns whether it ran. */
export async function once(
  performer: Performer,
  locks: Locks,
  op: string,
  { name, workMs, ...options }: Once,
): Promise<boolean> {
  const { every, slack, ...rest } = options;
  const everyMs = milliseconds(every);
  const atLeast = everyMs - (slack === undefined ? slackOf(everyMs) : milliseconds(slack));
  const part = { op, name };
  return performer.request(op, [part], { ...rest, note: op, wait: 0, atLeast }, async (signal) => {
    const { ran } = await locks.once(name, { ...options, note: op, signal }, (lease) =>
      performer.holdDuring(locks, part, lease, () => sleep(workMs)),
    );
    performer.notGranted(op, "busy");
    return ran;
  });
}
