import type { EventOf } from "./history.js";
import type { Run } from "./operations.js";
import type { Finding, Limits } from "./verdict.js";

/** L5: a handover costs no more commands when many wait than when few do. */
export function cost(run: Run, { growth, extraCommands }: Limits): Finding {
  const counted = run.events.filter(
    (event): event is EventOf<"counted"> => event.kind === "counted" && event.handovers > 0,
  );
  // Several counts of equally many waiters: take the pair that shows the least growth, because the
  // other counts may have been disturbed.
  const few = counted.toSorted((a, b) => a.waiters - b.waiters || each(b) - each(a))[0];
  const many = counted.toSorted((a, b) => b.waiters - a.waiters || each(a) - each(b))[0];
  const lacks = "commands were not counted at two different numbers of waiters";
  if (few === undefined || many === undefined || few.waiters === many.waiters) {
    return { checked: 0, violations: [], lacks };
  }
  const isGrown = each(many) > growth * each(few) + extraCommands;
  const violation = {
    atMs: Math.max(few.atMs, many.atMs),
    why: `a handover cost ${each(few).toFixed(1)} commands when ${few.waiters} waited, and ${each(many).toFixed(1)} when ${many.waiters} did`,
    evidence: [few, many],
  };
  return { checked: counted.length, violations: isGrown ? [violation] : [], lacks };
}

const each = ({ commands, handovers }: EventOf<"counted">): number => commands / handovers;
