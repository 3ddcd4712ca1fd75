import { endOfWait, isExclusive, isGranted, type Operation } from "../check/operations.js";
import type { Model } from "./model.js";

export type WaitOutcome = "granted" | "timeout" | "other";

export interface Wait {
  readonly askedAtMs: number;
  readonly waitedMs: number;
  readonly outcome: WaitOutcome;
}

/** How long each acquire waited. Re-entries do not wait, and an acquire without an end has no waiting time. */
export function waitsOf({ operations }: Model): readonly Wait[] {
  return operations.flatMap((op) => {
    const end = endOfWait(op);
    if (end === undefined || op.asked.within !== undefined) return [];
    const askedAtMs = op.asked.atMs;
    return [{ askedAtMs, waitedMs: Math.max(0, end.atMs - askedAtMs), outcome: outcomeOf(op) }];
  });
}

function outcomeOf(op: Operation): WaitOutcome {
  if (op.granted !== undefined) return "granted";
  return op.notGranted?.outcome === "timeout" ? "timeout" : "other";
}

export interface Share {
  readonly worker: string;
  readonly grants: number;
}

/** Grants of each worker; a worker without a grant counts as 0. */
export function sharesOf({ workers, operations }: Model): readonly Share[] {
  const grants = new Map(workers.map((worker) => [worker, 0]));
  for (const { asked, granted } of operations) {
    if (granted === undefined || asked.within !== undefined) continue;
    grants.set(asked.client, (grants.get(asked.client) ?? 0) + 1);
  }
  return [...grants].map(([worker, count]) => ({ worker, grants: count }));
}

/** Jain's index: 1 when all have the same, 1/n when one has all. */
export function jain(values: readonly number[]): number | undefined {
  const sum = values.reduce((total, value) => total + value, 0);
  const squares = values.reduce((total, value) => total + value * value, 0);
  return squares === 0 ? undefined : (sum * sum) / (values.length * squares);
}

/**
 * Times from the start of a release to the next grant of the same name, if the next holder already
 * waited. Both leases are exclusive, and the next holder requested no other name, so nothing else
 * can delay it.
 */
export function handoversOf({ runs }: Model): readonly number[] {
  return runs.flatMap((run) =>
    [...run.names.values()].flatMap((operations) => {
      const grants = operations.filter(isGranted).sort((a, b) => a.granted.atMs - b.granted.atMs);
      return grants.slice(1).flatMap((next, i) => {
        const before = grants[i]!;
        const freedAtMs = before.releasing?.atMs;
        const isHandover =
          freedAtMs !== undefined &&
          isExclusive(before) &&
          isExclusive(next) &&
          before.asked.atLeastMs === undefined &&
          next.asked.together === undefined &&
          next.asked.atMs < freedAtMs &&
          next.granted.atMs >= freedAtMs;
        return isHandover ? [next.granted.atMs - freedAtMs] : [];
      });
    }),
  );
}

/** The quantile by the nearest rank; undefined without values. */
export function quantile(sorted: readonly number[], share: number): number | undefined {
  return sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(share * sorted.length) - 1))];
}
