import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import type { Result } from "../../src/verify/runner/result.js";
import { busyVerification } from "../support/verification.js";

interface Texts {
  readonly page: string;
  readonly readme: string;
}

const SCRIPT = new URL("../../scripts/guarantees.mjs", import.meta.url).href;
/** The script has no types. */
const { withResults } = (await import(/* @vite-ignore */ SCRIPT)) as {
  withResults(results: readonly object[], texts: Texts): Texts;
};

const PRESENT: Texts = {
  page: readFileSync("docs/guarantees.md", "utf8"),
  readme: readFileSync("README.md", "utf8"),
};

test("docs/guarantees.md and its summary in README.md are what scripts/guarantees.mjs writes", () => {
  expect(withResults([], PRESENT)).toEqual(PRESENT);
});

/** A result as `holdfast verify --json` prints it, with faults of one kind. */
function resultOf(more: Partial<Result>, failed: number): object {
  const { result } = busyVerification({ forMs: 2_000 });
  const [run] = result.runs;
  const [first] = run!.faults;
  const kind = "server paused";
  const struck = { ...first!, kind };
  const faults = [
    struck,
    struck,
    ...Array.from({ length: failed }, () => ({ ...struck, failed: "no" })),
  ];
  const kinds = [{ name: kind, hits: "server", breaks: [], because: "" }];
  const checks = result.checks.map((one) => ({ ...one, verdict: "held" }));
  return {
    ...result,
    checks,
    kinds,
    outcome: "held",
    ...more,
    runs: [{ ...run!, faults, expected: {} }],
  };
}

test("a result replaces the row and the section of its store, and faults that failed do not count", () => {
  const about = "one Redis server with appendfsync always";
  const { page, readme } = withResults([resultOf({ about, target: "redis" }, 3)], PRESENT);
  const count = (text: string, part: string): number => text.split(part).length - 1;
  expect(count(page, `\n| ${about} |`)).toBe(1);
  expect(count(page, "\n## ")).toBe(count(PRESENT.page, "\n## "));
  const [, section] = page.split("## One Redis server with appendfsync always\n");
  expect(section!.split("\n## ")[0]).toContain("| server paused | server | 2 | held |  |");
  expect(withResults([], { page, readme })).toEqual({ page, readme });
  expect(() => withResults([resultOf({ outcome: "violated" }, 0)], PRESENT)).toThrow("was broken");
});
