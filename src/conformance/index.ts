import { atLeastCases } from "./at-least.js";
import { contractCases } from "./contract.js";
import { eventCases } from "./events.js";
import { fenceCases } from "./fences.js";
import { leaseCases } from "./leases.js";
import { matrixCases } from "./matrix.js";
import { nameCases } from "./names.js";
import { permitCases } from "./permits.js";
import { primitiveCases } from "./primitives.js";
import { recordCases } from "./records.js";
import { revocationCases } from "./revocation.js";
import { Bench, type Case, type Subject } from "./subject.js";
import { tokenCases } from "./tokens.js";
import { waitingCases } from "./waiting.js";

export type { Case, FencedCell, Subject } from "./subject.js";

/** The cases that every store has to pass. Each runs on a fresh subject, under any test runner or none. */
export const conformance: readonly Case[] = [
  ...contractCases,
  ...tokenCases,
  ...waitingCases,
  ...leaseCases,
  ...permitCases,
  ...primitiveCases,
  ...atLeastCases,
  ...revocationCases,
  ...matrixCases,
  ...nameCases,
  ...recordCases,
  ...fenceCases,
  ...eventCases,
];

/**
 * Runs one case, and disposes of the subject. Rejects if the store fails it; returns the reason if the
 * case does not apply to the store.
 */
export async function runCase(
  one: Case,
  subject: Subject,
): Promise<"passed" | { skipped: string }> {
  const bench = new Bench(subject);
  try {
    for (const feature of [one.feature ?? []].flat()) {
      const cannot = (await bench.store()).traits.cannot[feature];
      if (cannot !== undefined) return { skipped: cannot };
    }
    if (one.needsQueue && !(await bench.store()).traits.fair) {
      return { skipped: "its waiters poll, and have no place in a queue" };
    }
    if (one.virtualOnly && !subject.virtual) return { skipped: "needs virtual time" };
    if (one.needsFence && !subject.fence) return { skipped: "this store has no fence" };
    await one.run(bench);
    return "passed";
  } finally {
    await bench.dispose();
  }
}

/** The outcome of `runConformance`, by the names of the cases. */
export interface Report {
  /** Cases that the store passed. */
  readonly passed: readonly string[];
  /** Cases that do not apply to the store, with the reason. */
  readonly skipped: readonly { readonly name: string; readonly why: string }[];
  /** Cases that the store failed, with what they threw: usually an `AssertionError`. */
  readonly failed: readonly { readonly name: string; readonly error: unknown }[];
}

/**
 * Runs the whole suite, one case after another, each on a fresh subject from `fresh`. A failure is
 * reported, not thrown.
 */
export async function runConformance(fresh: () => Promise<Subject>): Promise<Report> {
  const passed: string[] = [];
  const skipped: { name: string; why: string }[] = [];
  const failed: { name: string; error: unknown }[] = [];
  for (const one of conformance) {
    try {
      const outcome = await runCase(one, await fresh());
      if (outcome === "passed") passed.push(one.name);
      else skipped.push({ name: one.name, why: outcome.skipped });
    } catch (error) {
      failed.push({ name: one.name, error });
    }
  }
  return { passed, skipped, failed };
}
