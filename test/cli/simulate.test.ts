import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { Cli, holdfast, makeFolder, until } from "./helpers.js";

const simulate = (...args: string[]) => holdfast(makeFolder(), ["simulate", ...args]);

describe("holdfast simulate", () => {
  it("says what was checked, how fast, and that no promise was broken", async () => {
    const { code, stdout, stderr } = await simulate("--runs", "20", "--seed", "1");
    expect(code).toBe(0);
    expect(stdout).toMatch(/^S1 .* held +\d+$/m);
    expect(stdout).toMatch(
      /20 runs from seed 1 in [\d.]+ s: [\d.]+ runs\/s\.\nNo promise was broken\.\n$/,
    );
    expect(stderr).toBe("holdfast: 20 runs from seed 1\n");
  });

  it("shows a broken promise by a shortened run, with the command that replays it", async () => {
    const mutant = "a repeated ask that extends only locally";
    const { code, stdout } = await simulate("--seed", "1", "--runs", "50", "--mutant", mutant);
    expect(code).toBe(1);
    expect(stdout).toMatch(/^S1 .* BROKEN/m);
    expect(stdout).toContain("The evidence:");
    const [, seed] = /Replay it: holdfast simulate --seed (\d+) --mutant 'a repeated/.exec(stdout)!;
    const again = await simulate("--seed", seed!, "--mutant", mutant, "--json");
    expect(again.code).toBe(1);
    const { broken, runs } = JSON.parse(again.stdout);
    expect(runs).toBe(1);
    expect(broken.rule).toBe("S1");
    expect(stdout).toContain(broken.why);
    expect(broken.evidence.length).toBeLessThan(8);
  });

  it("draws the broken run", async () => {
    const folder = makeFolder();
    const args = ["--seed", "12", "--mutant", "token that repeats", "--picture", "run.svg"];
    expect((await holdfast(folder, ["simulate", ...args])).code).toBe(1);
    expect(readFileSync(join(folder, "run.svg"), "utf8")).toMatch(/^<svg .*client-0.*<\/svg>\s*$/s);
  });

  it("prints its results so far when it is interrupted", async () => {
    const cli = new Cli(makeFolder(), ["simulate", "--runs", "1000000", "--seed", "1"]);
    await until("it has begun", () => cli.stderr.includes("from seed 1"));
    cli.signal("SIGINT");
    const { code, stdout } = await cli.ended;
    expect(code).toBe(130);
    expect(stdout).toMatch(/\d+ runs from seed 1 in .*\nNo promise was broken\.\n$/);
  });

  it("lists the mutants", async () => {
    const { code, stdout } = await simulate("--mutant", "list");
    expect(code).toBe(0);
    expect(stdout.split("\n")).toContain("delete without compare");
  });

  it.each([
    [["--runs", "0"], '--runs is "0"; it must be a whole number from 1 to 2147483648'],
    [["--runs", "many"], '--runs is "many"; it must be a whole number from 1 to 2147483648'],
    [["--seed", "1.5"], '--seed is "1.5"; it must be a whole number from 0 to 2147483648'],
    [["--picture", "/nowhere/run.svg"], "--picture can't be written: ENOENT"],
    [["--mutant", "toString"], 'there is no mutant "toString"; holdfast simulate --mutant list'],
  ])("refuses %j", async (args, message) => {
    const { code, stderr } = await simulate(...args);
    expect(code).toBe(64);
    expect(stderr).toContain(message);
  });
});
