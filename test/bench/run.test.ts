import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, test } from "vitest";

const bench = fileURLToPath(new URL("../../bench/", import.meta.url));
const run = (...args: string[]) =>
  promisify(execFile)(process.execPath, [`${bench}run.mjs`, ...args]);

test("a quick run measures everything of a store, needs nothing installed, and claims no figures", async () => {
  const { stdout, stderr } = await run("sqlite", "--quick", "--alone");
  expect(stdout).toContain("Its figures are no figures.");
  for (const kind of ["uncontended", "handover", "contention", "growth", "recovery"]) {
    expect(stdout).toContain(`### SQLite: ${kind}\n`);
    expect(stderr).toMatch(new RegExp(`^sqlite ${kind}: .*round 1 of \\d+$`, "m"));
  }
  expect(stdout.match(/^\| Holdfast \|/gm)?.length).toBeGreaterThanOrEqual(5);
  expect(stdout).toContain("Left out: proper-lockfile (--alone measures no other library).");
  expect(stdout).not.toMatch(/NaN|undefined|Failed|Not measured/);
  const [, summary] = stdout.split("## Where the goals stand");
  expect(summary).toContain("not judged");
  expect(summary).not.toMatch(/\| (met|missed) \|/);
  expect(readFileSync(`${bench}results/quick/sqlite.md`, "utf8")).toContain("### SQLite: handover");
  expect(readFileSync(`${bench}results/quick/sqlite-handover-latency.svg`, "utf8")).toContain(
    "Holdfast",
  );
});

test("one measurement can be printed as JSON", async () => {
  const { stdout } = await run("memory/growth", "--quick", "--alone", "--json");
  const { quick, results } = JSON.parse(stdout);
  expect(quick).toBe(true);
  expect(results).toHaveLength(1);
  expect(results[0]).toMatchObject({ benchmark: "memory", id: "growth", failures: [] });
  // With so few leases the heap may even have shrunk.
  expect(results[0].figures.Holdfast.bytesPerLease).toBeTypeOf("number");
  expect(results[0].figures.Holdfast.lost).toBe(0);
});

test("an unknown benchmark is refused with a list of those that exist", async () => {
  await expect(run("sqlight")).rejects.toMatchObject({
    code: 64,
    stderr: expect.stringContaining("sqlite/handover"),
  });
});

test("two builds are measured in turn, against each other", async () => {
  const checkout = fileURLToPath(new URL("../../", import.meta.url));
  const { stdout } = await run("memory/uncontended", "--quick", "--against", checkout, "--json");
  const [result] = JSON.parse(stdout).results;
  expect(result).toMatchObject({ benchmark: "memory", id: "uncontended", failures: [] });
  expect(Object.keys(result.figures)).toEqual(["before", "Holdfast"]);
  expect(result.goals).toHaveLength(2);
});
