import { execFile } from "node:child_process";
import { dirname, join } from "node:path";
import { describe, expect, onTestFinished, test } from "vitest";
import { decodePick } from "../../../src/verify/runner/shorten.js";
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

  test("the same on the command line, which shortens the run, shows it and exits with 1", {
    timeout: 6 * WITHIN_MS,
  }, async () => {
    const { lab, faults, module } = planted("hard link to the file is accepted");
    const main = join(dirname(module), "../../cli/main.js");
    const args = ["verify", "--lab", lab, "--faults", faults!, "--seed", "1", "--runs", "1"];
    const { code, stdout } = await ended(main, args);
    expect(stdout).toMatch(/^S1 .* VIOLATED +\d+$/m);
    expect(stdout).toContain("A promise was broken.");
    const whole = `holdfast verify --lab sqlite --seed 1 --runs 1 --workers 4 --faults '${faults}'`;
    expect(stdout).toContain(`The whole run:  ${whole}\n`);
    const [, again, text] = /^Run it again: (.*) --pick (\S+)$/m.exec(stdout)!;
    expect(again).toBe(whole);
    const pick = decodePick(text!)!;
    const [, tries, left] = /^In this run \(shortened in (\d+) tr.*\): workers (.*);/m.exec(
      stdout,
    )!;
    expect(Number(tries)).toBeGreaterThan(0);
    expect(left!.split(", ")).toHaveLength(pick.workers.length);
    // A busy machine has time for few tries; one that breaks a promise again leaves out faults or time.
    const isWhole = pick.workers.length === 4 && pick.forMs === 10_000;
    expect(isWhole && pick.faults.every((fault, i) => fault === i), stdout).toBe(false);
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
