import { expect, onTestFinished } from "vitest";
import type { LocksOptions } from "../../src/index.js";
import { checkHistory, type Limits } from "../../src/verify/check/check.js";
import type { Event, EventOf } from "../../src/verify/check/history.js";
import { until as untilWithin } from "../../src/verify/lab/until.js";
import { machineMs, TimeLine } from "../../src/verify/traffic/time-line.js";
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

/** No promise was broken, and these rules were tested. */
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

/** Two held a name at the same time, and nothing else was broken: tokens rose, and the fence refused the first. */
export function expectHeldTwice(timeLine: TimeLine): void {
  const verdicts = checkHistory(timeLine.history());
  const rules = (verdict: string): string[] =>
    verdicts.filter((one) => one.verdict === verdict).map(({ rule }) => rule);
  expect(rules("violated")).toEqual(["S1"]);
  expect(rules("ok")).toEqual(expect.arrayContaining(["S2", "S3"]));
}

/** Polls until the condition is true, or fails after a generous time. */
export const until = (
  what: string,
  isSo: () => boolean | Promise<boolean>,
  withinMs = 10_000,
): Promise<void> => untilWithin(what, withinMs, isSo);

export function eventsOf<K extends Event["kind"]>(timeLine: TimeLine, kind: K): EventOf<K>[] {
  return timeLine.history().filter((event): event is EventOf<K> => event.kind === kind);
}

/** Resolves with the first of these events, as soon as there is one. */
export async function happens<K extends Event["kind"]>(
  timeLine: TimeLine,
  kind: K,
  isIt: (event: EventOf<K>) => boolean,
  withinMs?: number,
): Promise<EventOf<K>> {
  let found: EventOf<K> | undefined;
  const look = (): boolean => {
    found = eventsOf(timeLine, kind).find(isIt);
    return found !== undefined;
  };
  await until(`"${kind}" is reported`, look, withinMs);
  return found!;
}

/**
 * Waits until the worker has entered the resource, where it pauses before it writes: it is to be
 * stopped there, and not in the middle of a transaction, which would block everybody else.
 */
export async function atWork(worker: Worker): Promise<EventOf<"entered">> {
  const fromMs = machineMs();
  return happens(
    worker.timeLine,
    "entered",
    ({ op, atMs, accepted }) => accepted && atMs > fromMs && op.startsWith(`${worker.client}.`),
  );
}
