import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { describeWith } from "../support/needs.js";

const script = fileURLToPath(new URL("../../bench/run.mjs", import.meta.url));

describeWith(["postgres"], "the benchmark of PostgreSQL", () => {
  test("measures everything that there are goals for", { timeout: 240_000 }, async () => {
    const { stdout } = await promisify(execFile)(process.execPath, [
      script,
      "postgres",
      "--quick",
      "--json",
    ]);
    const { results } = JSON.parse(stdout);
    const ids = results.map(({ id }: { id: string }) => id);
    expect(ids).toEqual([
      ...["uncontended", "busy", "renewals", "log", "handover", "draining", "contention"],
      ...["growth", "recovery", "size", "size-many"],
    ]);
    for (const { id, figures, failures, goals } of results) {
      // A peer may not be installed; nobody fails.
      expect({ id, failures }).toEqual({ id, failures: [] });
      expect(Object.keys(figures), id).toContain("Holdfast");
      for (const { what, verdict } of goals) expect(verdict, what).toMatch(/met|missed/);
    }
  });
});
