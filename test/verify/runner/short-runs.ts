import { describe, expect, test } from "vitest";
import type { Kind } from "../../../src/verify/lab/requirements.js";
import type { Result } from "../../../src/verify/runner/result.js";
import type { LabName } from "../../../src/verify/targets/index.js";
import { verifyInLab } from "../../../src/verify/targets/open.js";
import { needs } from "../../support/needs.js";

/** The seed draws faults of several kinds where all of them can be made. */
export type ShortRun = readonly [lab: LabName, needed: readonly Kind[], seed: number];

const MOST_RUNS = 4;

async function runOnce(lab: LabName, seed: number): Promise<{ result: Result; about: string }> {
  const { result, troubles } = await verifyInLab(lab, { seed, runs: 1, workers: 3, runMs: 3_000 });
  const faults = result.runs.flatMap((run) => run.faults.map(({ name }) => name));
  const about = `${lab}, seed ${seed}; faults: ${faults.join(", ")}; ${troubles.join("; ")}`;
  const broken = result.checks.filter(({ verdict }) => verdict === "violated");
  expect(
    broken.map(({ id, why }) => `${id}: ${why}`),
    about,
  ).toEqual([]);
  return { result, about };
}

/** A short run of the verifier on each lab, two at a time: each starts many processes. */
export function describeShortRuns(labs: readonly ShortRun[]): void {
  const pairs = labs.flatMap((_, i) => (i % 2 === 0 ? [labs.slice(i, i + 2)] : []));
  describe.each(pairs)("every promise holds for a short run", (...pair) => {
    for (const [lab, needed, seed] of pair) {
      test.concurrent(`on ${lab}`, { timeout: 300_000 }, async (context) => {
        needs(context, ...needed);
        let { result, about } = await runOnce(lab, seed);
        // On a busy machine one run may compare too few holders for a verdict.
        for (let more = 1; result.outcome === "unknown" && more < MOST_RUNS; more++) {
          ({ result, about } = await runOnce(lab, seed));
        }
        expect(result.outcome, about).toBe("held");
        expect(result.grants, about).toBeGreaterThan(5);
        expect(result.faults, about).toBeGreaterThan(0);
        expect(result.fenced.lost, about).toBe(0);
      });
    }
  });
}
