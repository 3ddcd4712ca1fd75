/**
 * Random tests draw from this seed: `npm test` gives the same verdict on every run. `npm run test:long`
 * sets a fresh seed and more runs.
 */
export const SEED = Number(process.env["HOLDFAST_SEED"] ?? 1);

const RUNS_FACTOR = Number(process.env["HOLDFAST_RUNS_FACTOR"] ?? 1);

/** Parameters for `fc.assert`. `part`: tests that share a property each draw runs of their own. */
export const runs = (
  count = 100,
  part = 0,
): { readonly numRuns: number; readonly seed: number } => ({
  numRuns: count * RUNS_FACTOR,
  seed: SEED + part,
});

/**
 * The same for `compareWithRule`, whose runs draw from one seed after the other. `longCount`: the count that
 * `npm run test:long` multiplies, where that is another.
 */
export const ruleRuns = (
  count: number,
  part = 0,
  longCount = count,
): { readonly runs: number; readonly seed: number } => ({
  runs: RUNS_FACTOR === 1 ? count : longCount * RUNS_FACTOR,
  seed: SEED + part * 1_000_000,
});
