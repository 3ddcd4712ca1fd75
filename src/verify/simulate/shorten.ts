import type { Schedule, Task, Trouble } from "./schedule.js";

type Item = { readonly task: Task } | { readonly trouble: Trouble };

/** Removes everything from a schedule that it does not need to fail in the same way. */
export async function shorten(
  schedule: Schedule,
  fails: (shorter: Schedule) => Promise<boolean>,
): Promise<Schedule> {
  const items: readonly Item[] = [
    ...schedule.troubles.map((trouble) => ({ trouble })),
    ...schedule.tasks.map((task) => ({ task })),
  ];
  const kept = await fewest(items, (some) => fails(withItems(schedule, some)));
  let shortest = withItems(schedule, kept);
  for (const plainer of plainerThan) {
    for (let i = 0; i < shortest.tasks.length; i++) {
      const candidate = plainer(shortest, i);
      if (candidate !== null && (await fails(candidate))) shortest = candidate;
    }
  }
  return shortest;
}

/** Delta debugging: leaves out ever smaller parts, until none can be left out. */
async function fewest<T>(
  items: readonly T[],
  fails: (some: readonly T[]) => Promise<boolean>,
): Promise<readonly T[]> {
  let kept = items;
  for (let size = Math.ceil(kept.length / 2); size >= 1; ) {
    let gone = false;
    for (let from = 0; from < kept.length; ) {
      const without = kept.toSpliced(from, size);
      if (await fails(without)) {
        kept = without;
        gone = true;
      } else from += size;
    }
    if (size > 1) size = Math.ceil(size / 2);
    else if (!gone) break;
  }
  return kept;
}

function withItems(schedule: Schedule, items: readonly Item[]): Schedule {
  return {
    ...schedule,
    tasks: items.flatMap((item) => ("task" in item ? [item.task] : [])),
    troubles: items.flatMap((item) => ("trouble" in item ? [item.trouble] : [])),
  };
}

/** Ways to simplify a task; null where there is nothing to simplify. */
const plainerThan: readonly ((schedule: Schedule, task: number) => Schedule | null)[] = [
  without("abortAfterMs"),
  without("maxHoldMs"),
  without("renewToMs"),
  without("atLeastMs"),
  without("renew"),
  without("terms"),
  without("limit"),
  without("also"),
  (schedule, i) =>
    schedule.tasks[i]!.shared
      ? replace(schedule, i, { ...schedule.tasks[i]!, shared: false })
      : null,
];

type Option = "abortAfterMs" | "maxHoldMs" | "renewToMs" | "atLeastMs" | "renew" | "terms";

function without(
  option: Option | "limit" | "also",
): (schedule: Schedule, task: number) => Schedule | null {
  return (schedule, i) => {
    const { [option]: value, ...task } = schedule.tasks[i]!;
    return value === undefined ? null : replace(schedule, i, task);
  };
}

function replace(schedule: Schedule, i: number, task: Task): Schedule {
  return { ...schedule, tasks: schedule.tasks.with(i, task) };
}
