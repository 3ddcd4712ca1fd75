import { execFile } from "node:child_process";
import { dirname, join } from "node:path";
import { describe, expect, onTestFinished, test } from "vitest";
import { verifyInLab } from "../../../src/verify/targets/open.js";
import { describeWith } from "../../support/needs.js";
import { PLANTED, plant } from "./planted.js";

const WITHIN_MS = 60_000;
const LONG = { timeout: 3 * WITHIN_MS };

/** Plants a fault of the table until the test has ended. */
function planted(name: string) {
  const { lab, faults, edits = [] } = PLANTED.find((one) => one.name === name)!;
  const { module, remove } = plant(edits);
  onTestFinished(remove);
  return { lab, faults, module };
}

async function expectFound(name: string, rules: readonly string[]): Promise<void> {
  const { lab, faults, module } = planted(name);
  const { result, failure } = await verifyInLab(lab, {
    seed: 1,
    forMs: WITHIN_MS,
    faults: faults?.split(","),
    module,
  });
  const broken = result.checks.filter(({ verdict }) => verdict === "violated");
  const seen = `${result.runs.length} runs, ${result.grants} grants, ${result.faults} faults`;
  expect(
    broken.map(({ id }) => id),
    seen,
  ).toEqual(expect.arrayContaining([...rules]));
  for (const { evidence, why } of broken) expect(evidence.length, why).toBeGreaterThan(0);
  expect(result.outcome).toBe("violated");
  expect(failure?.seed).toBe(result.runs.at(-1)!.seed);
}

describe("on SQLite the verifier finds", () => {
  test("that a hard link to the file is accepted", LONG, () =>
    expectFound("hard link to the file is accepted", ["S1"]),
  );

  test("the same on the command line, which shows it and exits with 1", LONG, async () => {
    const { lab, faults, module } = planted("hard link to the file is accepted");
    const main = join(dirname(module), "../../cli/main.js");
    const args = ["verify", "--lab", lab, "--faults", faults!, "--seed", "1", "--runs", "1"];
    // The whole run is selected, as if it were shortened already, so it is not shortened again.
    const pick = ["--pick", "w1,w2,w3,w4,f1,f2,f3,f4,f5,f6,f7,f8,f9,t10000"];
    const { code, stdout } = await ended(main, [...args, ...pick]);
    expect(stdout).toMatch(/^S1 .* VIOLATED +\d+$/m);
    expect(stdout).toContain("A promise was broken.");
    expect(stdout).toMatch(/^S1: .* held "\w+" with token \d+ from .*, while /m);
    expect(stdout).toContain(
      `Run it again: holdfast verify --lab sqlite --seed 1 --runs 1 --workers 4 --faults '${faults}'`,
    );
    expect(code).toBe(1);
  });
});

describeWith(["redis"], "on Redis the verifier finds", () => {
  test("that a database which can't be selected is ignored", LONG, () =>
    expectFound("database that can't be selected is ignored", ["S1"]),
  );

  test("that a release does not compare the owner", LONG, () =>
    expectFound("release without comparing the owner", ["S1"]),
  );
});

function ended(main: string, args: readonly string[]): Promise<{ code: unknown; stdout: string }> {
  return new Promise((resolve) => {
    execFile(process.execPath, [main, ...args], (error, stdout) => {
      resolve({ code: error?.code ?? 0, stdout });
    });
  });
}
