// Searches with fresh seeds: random comparisons with many more runs, pauses and kills of real processes, the
// simulator, the verifier, and bugs that it must find again. A failure that it finds becomes a fixed case. Usage: npm run test:long [-- SEED]
import { spawnSync } from "node:child_process";
import { randomInt } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { LAB_TARGETS } from "../dist/verify/targets/index.js";
import { PLANTED } from "./planted-faults.mjs";

const seed = Number(process.argv[2] ?? randomInt(2 ** 31));
if (!Number.isSafeInteger(seed)) {
  console.error(`the seed is ${process.argv[2]}; it must be a whole number`);
  process.exit(2);
}
const FACTOR = 20;
const SIMULATED_RUNS = 20_000;
/** For each lab: with all else, the search takes about an hour and a quarter. */
const VERIFIED_FOR = "3m";

const random = readdirSync("test", { recursive: true, encoding: "utf8" })
  .map((path) => join("test", path))
  .filter((path) => path.endsWith(".test.ts") && !path.endsWith(".faults.test.ts"))
  .filter((path) => /\b(fc\.assert|compareWithRule|ruleRuns)\(/.test(readFileSync(path, "utf8")));

const STEPS = [
  ["random comparisons", ["npx", "vitest", "run", "--testTimeout", "1800000", ...random]],
  ["paused holders", ["npx", "vitest", "run", "test/fence/paused-holders.test.ts"]],
  [
    "paused holders, servers",
    ["npx", "vitest", "run", "--mode", "faults", "test/fence/paused-holders.faults.test.ts"],
  ],
  ["real processes", ["npx", "vitest", "run", "--mode", "faults", "test/verify/traffic"]],
  [
    "simulator",
    ["node", "dist/cli/main.js", "simulate", "--seed", `${seed}`, "--runs", `${SIMULATED_RUNS}`],
  ],
  [
    "simulator, quorum",
    [
      ...["node", "dist/cli/main.js", "simulate", "--quorum"],
      ...["--seed", `${seed}`, "--runs", `${SIMULATED_RUNS}`],
    ],
  ],
  ...Object.keys(LAB_TARGETS).map((lab) => [
    `verifier, ${lab}`,
    [
      "node",
      "dist/cli/main.js",
      "verify",
      "--lab",
      lab,
      "--seed",
      `${seed}`,
      "--for",
      VERIFIED_FOR,
    ],
  ]),
  ...PLANTED.filter(({ isSearched }) => isSearched).map(({ name }) => [
    `planted bug: ${name}`,
    ["node", "scripts/planted-faults.mjs", "--until-found", name],
  ]),
];

console.log(`seed ${seed}; run it again: npm run test:long -- ${seed}`);
const env = { ...process.env, HOLDFAST_SEED: `${seed}`, HOLDFAST_RUNS_FACTOR: `${FACTOR}` };
const failed = STEPS.filter(([what, [program, ...args]]) => {
  console.log(`\n== ${what}`);
  return spawnSync(program, args, { stdio: "inherit", env }).status !== 0;
});
for (const [what] of failed) console.error(`failed: ${what}, with seed ${seed}`);
process.exitCode = failed.length === 0 ? 0 : 1;
