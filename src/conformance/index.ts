import { contractCases } from "./contract.js";
import { fenceCases } from "./fences.js";
import { leaseCases } from "./leases.js";
import { matrixCases } from "./matrix.js";
import { nameCases } from "./names.js";
import { primitiveCases } from "./primitives.js";
import { Bench, type Case, type Subject } from "./subject.js";
import { waitingCases } from "./waiting.js";

export type { Case, FencedCell, Subject } from "./subject.js";

/** What every store has to pass. Each case runs on a fresh subject, under any test runner or none. */
export const conformance: readonly Case[] = [
  ...contractCases,
  ...waitingCases,
  ...leaseCases,
  ...primitiveCases,
  ...matrixCases,
  ...nameCases,
  ...fenceCases,
];

/** Passes, or throws; or tells why it does not apply to this store. */
export async function runCase(
  one: Case,
  subject: Subject,
): Promise<"passed" | { skipped: string }> {
  const bench = new Bench(subject);
  try {
    const cannot = one.feature && (await bench.store()).traits.cannot[one.feature];
    if (cannot !== undefined) return { skipped: cannot };
    if (one.virtualOnly && !subject.virtual) return { skipped: "needs virtual time" };
    if (one.needsFence && !subject.fence) return { skipped: "there is no fence of this kind" };
    await one.run(bench);
    return "passed";
  } finally {
    await bench.dispose();
  }
}

export interface Report {
  readonly passed: readonly string[];
  readonly skipped: readonly { readonly name: string; readonly why: string }[];
  readonly failed: readonly { readonly name: string; readonly error: unknown }[];
}

/** The whole suite, one case after another. */
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
