import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { describeWith } from "../support/needs.js";

const script = fileURLToPath(new URL("../../bench/run.mjs", import.meta.url));

describeWith(["postgres"], "the benchmark of PostgreSQL", () => {
  test("measures everything that there are goals for", { timeout: 240_000 }, async () => {
    // With a failure of any contestant it exits with 1, and prints its results all the same.
    const args = [script, "postgres", "--quick", "--json"];
    const { stdout } = await promisify(execFile)(process.execPath, args).catch(
      (error: { stdout: string }) => error,
    );
    const { results } = JSON.parse(stdout);
    const ids = results.map(({ id }: { id: string }) => id);
    expect(ids).toEqual([
      ...["uncontended", "busy", "renewals", "log", "handover", "draining", "contention"],
      ...["growth", "recovery", "size", "size-many"],
    ]);
    for (const { id, figures, failures, goals } of results) {
      // A peer may not be installed, and may fail on a busy machine, which leaves goals about it open.
      const names = failures.map(({ name }: { name: string }) => name);
      expect(names, JSON.stringify(failures)).not.toContain("Holdfast");
      expect(Object.keys(figures), id).toContain("Holdfast");
      if (names.length > 0) continue;
      for (const { what, verdict } of goals) expect(verdict, what).toMatch(/met|missed/);
    }
  });
});
