import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import type { RuleId } from "../../src/verify/check/verdict.js";
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
function resultOf(
  more: Partial<Result>,
  failed: number,
  expected: Readonly<Record<string, number>> = {},
): object {
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
    runs: [{ ...run!, faults, expected }],
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

/** The cell of the only kind of fault in a result, which breaks these promises as often as the run says. */
function cellOf(breaks: readonly RuleId[], expected: Readonly<Record<string, number>>): string {
  const about = "a store of its own";
  const kinds = [{ name: "server paused", hits: "server" as const, breaks, because: "" }];
  const { page } = withResults([resultOf({ about, kinds }, 0, expected)], PRESENT);
  const [, section] = page.split("## A store of its own\n");
  return /^\| server paused \| server \| 2 \| (.*?) \|/m.exec(section!)![1]!;
}

test.each([
  [[], {}, "held"],
  [["L4"], {}, "held; not promised: L4"],
  [["L1", "L2"], { L1: 3 }, "held; not promised: L1 (3), L2"],
  [["S1", "S8"], {}, "overlap possible, none seen"],
  [["S1", "S8"], { S8: 2 }, "overlap, fenced (2)"],
  [
    ["S1", "S4", "S8", "L4"],
    { S1: 4, S8: 1, L4: 6 },
    "overlap, fenced (5); not promised: S4, L4 (6)",
  ],
] as const)("a fault that breaks %j, seen %j, is shown as: %s", (breaks, expected, cell) => {
  expect(cellOf(breaks, expected)).toBe(cell);
});

/** A result with `--fence`, whose runs have these faults and lose this many unguarded updates. */
function fenceResultOf(
  fence: string,
  runs: readonly { readonly kinds: readonly string[]; readonly lost: number }[],
): object {
  const { result } = busyVerification({ forMs: 2_000 });
  const [run] = result.runs;
  const command = `holdfast verify --lab redis-replica --fence ${fence}`;
  return {
    ...result,
    fence,
    command,
    about: "a store behind fences",
    outcome: "held",
    runs: runs.map(({ kinds, lost }) => ({
      ...run!,
      expected: {},
      faults: [
        ...kinds.map((kind) => ({ ...run!.faults[0]!, kind })),
        { ...run!.faults[0]!, kind: "disk full", failed: "no disk" },
      ],
      registers: {
        fenced: { writes: 100, lost: 0, refused: lost },
        unfenced: { writes: 90, lost, refused: 0 },
      },
    })),
  };
}

test("the table of fences has the unguarded losses of each fence, and one row for faults of the same runs", () => {
  const results = [
    fenceResultOf("sqlite", [
      { kinds: ["server paused", "worker paused"], lost: 2 },
      { kinds: ["worker killed"], lost: 0 },
    ]),
    fenceResultOf("etcd", [{ kinds: ["server paused", "worker paused"], lost: 0 }]),
  ];
  const { page, readme } = withResults(results, PRESENT);
  const [section] = page.split("\n## Fences\n")[1]!.split("\n## ");
  expect(section!.split("\n").filter((line) => line.startsWith("|"))).toEqual([
    "| fault | SQLite | etcd |",
    "|---|---|---|",
    "| server paused, worker paused | 0 of 100, 2 refused (no fence 2 of 90) | 0 of 100, 0 refused (no fence 0 of 90: shows nothing) |",
    "| worker killed | 0 of 100, 0 refused (no fence 0 of 90: shows nothing) | not drawn |",
    "| all runs | 0 of 200, 2 refused (no fence 2 of 180) | 0 of 100, 0 refused (no fence 0 of 90: shows nothing) |",
  ]);
  expect(section).toMatch(/^Locks in a store behind fences; .*shows nothing about the fence\./m);
  expect(section).toMatch(/^- etcd: `holdfast verify .* --fence etcd`; .*, 1 runs$/m);
  expect(withResults([], { page, readme })).toEqual({ page, readme });
  // The store has a row of its own only from runs without --fence.
  expect(page).not.toContain("\n## A store behind fences");
});
