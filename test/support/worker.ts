import { expect, onTestFinished } from "vitest";
import type { LocksOptions } from "../../src/index.js";
import { checkHistory, type Limits } from "../../src/verify/check/check.js";
import { until as untilWithin } from "../../src/verify/lab/until.js";
import { TimeLine } from "../../src/verify/traffic/time-line.js";
import { Worker, type WorkerOptions } from "../../src/verify/traffic/worker.js";

/** Workers on one store and one time line; killed when the test is over. */
export async function startWorkers(
  count: number,
  url: string,
  locks: LocksOptions = {},
  more: Partial<WorkerOptions> = {},
): Promise<{ workers: Worker[]; timeLine: TimeLine }> {
  const timeLine = more.timeLine ?? new TimeLine();
  const workers = await Promise.all(
    Array.from({ length: count }, async (_, i) => {
      const worker = await Worker.start({ client: `w${i + 1}`, url, locks, ...more, timeLine });
      onTestFinished(() => worker.kill());
      return worker;
    }),
  );
  return { workers, timeLine };
}

/** No promise was broken, and these were put to the test. */
export function expectKept(
  timeLine: TimeLine,
  rules: readonly string[],
  limits: Partial<Limits> = {},
): void {
  const verdicts = checkHistory(timeLine.history(), limits);
  expect(verdicts.filter(({ verdict }) => verdict === "violated")).toEqual([]);
  expect(verdicts.filter(({ verdict }) => verdict === "ok").map(({ rule }) => rule)).toEqual(
    expect.arrayContaining([...rules]),
  );
}

/** Looks until it is so, or fails after a generous time. */
export const until = (
  what: string,
  isSo: () => boolean | Promise<boolean>,
  withinMs = 10_000,
): Promise<void> => untilWithin(what, withinMs, isSo);
