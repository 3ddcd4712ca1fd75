import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { MUTANTS } from "../../../src/testing.js";
import { LAB_TARGETS } from "../../../src/verify/targets/index.js";
import { unknownFaults, withTarget } from "../../../src/verify/targets/open.js";
import { needs } from "../../support/needs.js";
import { commandOf, PLANTED, plant } from "./planted.js";

const built = (file: string): string =>
  readFileSync(fileURLToPath(new URL(`../../../dist/${file}`, import.meta.url)), "utf8");

test("every edit of a planted fault still finds its text in the built code", () => {
  for (const { name, edits = [] } of PLANTED) {
    for (const [file, text, replacement] of edits) {
      expect(built(file).includes(text), `${name}: ${file} has ${text}`).toBe(true);
      expect(replacement, name).not.toBe(text);
    }
  }
});

test("every planted fault is an edit or a mutant that workers can have, and has a name of its own", () => {
  const names = PLANTED.map(({ name }) => name);
  expect(new Set(names).size).toBe(names.length);
  for (const { name, lab, edits, mutant } of PLANTED) {
    expect((edits === undefined) !== (mutant === undefined), name).toBe(true);
    expect(Object.keys(LAB_TARGETS), name).toContain(lab);
    if (mutant === undefined) continue;
    expect(Object.keys(MUTANTS), name).toContain(mutant);
    expect(MUTANTS[mutant], name).not.toHaveProperty("rule");
    expect(MUTANTS[mutant], name).not.toHaveProperty("fence");
  }
});

for (const lab of new Set(PLANTED.map((one) => one.lab))) {
  test(`the faults by which planted ones are found on ${lab} are faults of that lab`, async (context) => {
    needs(context, ...LAB_TARGETS[lab].needs);
    const faults = PLANTED.filter((one) => one.lab === lab).flatMap(
      (one) => one.faults?.split(",") ?? [],
    );
    await withTarget({ lab }, undefined, async (target) => {
      expect(unknownFaults(target, faults)).toEqual([]);
    });
  });
}

test("the table in the docs has every planted fault, with the command that finds it", () => {
  const page = readFileSync("docs/verify.md", "utf8");
  const table = /<!-- planted:(.*?)<!-- end of planted -->/s.exec(page)![1]!;
  const rows = table.split("\n").filter((line) => /^\| (?!planted bug)/.test(line));
  const cells = rows.map((row) => row.slice(2, -2).split(" | "));
  expect(cells.map(([name, lab, , , command]) => [name, lab, command]).sort()).toEqual(
    PLANTED.map((one) => [one.name, one.lab, commandOf(one)]).sort(),
  );
  for (const [name, , rules, time] of cells) {
    expect(rules, name).toMatch(/^[SLP]\d(, [SLP]\d)*$/);
    expect(time, name).toMatch(/^\d+ s(, median)?$/);
  }
});

test("the bugs of real stores that take minutes to find are searched for by npm run test:long", () => {
  expect(PLANTED.filter(({ isSearched }) => isSearched).map(({ name }) => name)).toEqual([
    "handover past a waiter that the call answers",
    "refused re-SUBSCRIBE is swallowed",
    "second connection drops POSIX locks",
  ]);
});

test("an edit that does not find its text is refused", () => {
  expect(() => plant([["stores/rule.js", "no such text", ""]])).toThrow(
    'stores/rule.js has no "no such text" any more',
  );
});
