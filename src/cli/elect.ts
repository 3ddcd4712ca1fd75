import type { Options } from "./options.js";
import { note, quoted } from "./output.js";
import { acquire, openFor, waitBriefly } from "./run/acquire.js";
import { runnable } from "./run/child.js";
import { readElectPlan, ttlOf } from "./run/plan.js";
import { Signals } from "./run/signals.js";
import { runUnder } from "./run/work.js";

/** Runs a command while elected. When leadership is lost, stops the command and campaigns again. */
export async function elect(
  name: string,
  options: Options,
  command: readonly string[],
): Promise<number> {
  const plan = readElectPlan(name, options, command);
  const words = runnable(command);
  const signals = new Signals();
  const locks = await openFor(plan, signals);
  try {
    for (;;) {
      const lease = await acquire(plan, locks, signals);
      if (!plan.quiet) note(`elected for ${quoted(name)}, with token ${lease.token}`);
      const end = await runUnder(plan, words, lease, ttlOf(plan, locks), signals);
      if (end !== "lost") return end;
      if (signals.ended === null) note(`campaigning for ${quoted(name)} again`);
    }
  } finally {
    await waitBriefly(locks.close());
  }
}
