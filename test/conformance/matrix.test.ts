import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { runCase, type Subject } from "../../src/conformance/index.js";
import { matrixCases, matrixOf } from "../../src/conformance/matrix.js";
import type { Feature, Traits } from "../../src/core/store.js";
import { MEMORY_TRAITS } from "../../src/stores/memory/index.js";
import { traitsOfAllStores } from "../../src/stores/registry.js";
import { delegate } from "../../src/testing/delegate.js";
import { memorySubject } from "./subjects.js";

const FEATURES = [
  "shared",
  "permits",
  "many-names",
  "at-least",
  "own-ttl",
  "revoke",
  "records",
] as const;

/** A store that can't do one thing, and says why. */
async function without(feature: Feature): Promise<Subject> {
  const subject = await memorySubject();
  const cannot = { [feature]: `no ${feature} for the sake of a test` };
  return {
    ...subject,
    open: async () => {
      const store = await subject.open();
      return { ...delegate(store), traits: { ...store.traits, cannot } };
    },
  };
}

describe.each(FEATURES)("a store that can't do %s", (feature) => {
  test.each(matrixCases.map((one) => [one.name, one] as const))("%s", async (_name, one) => {
    expect(await runCase(one, await without(feature))).toBe("passed");
  });
});

test("the table says of each store what it offers, or why not", () => {
  const poor: Traits = {
    ...MEMORY_TRAITS,
    store: "poor",
    waiting: "polled",
    fair: false,
    grantsTwiceAfter: ["a failover", "a restart"],
    cannot: { permits: "a majority does not keep a count", "many-names": "one key at a time" },
  };
  const rows = matrixOf([MEMORY_TRAITS, poor]).split("\n");
  const cellsOf = (name: string): string[] =>
    rows
      .find((row) => row.startsWith(`| ${name} |`))!
      .split(" | ")
      .slice(2);
  expect(cellsOf("lock")).toEqual([
    "yes; waiting is pushed and in order",
    "yes; waiting is polled |",
  ]);
  expect(cellsOf("semaphore")).toEqual(["yes", "refused: a majority does not keep a count |"]);
  expect(cellsOf("multi-lock")).toEqual(["yes, in one step if free", "yes, one by one |"]);
  expect(cellsOf("can grant twice")).toEqual(["no", "after a failover; a restart |"]);
});

test("docs/primitives.md has the present table: npm run matrix", async () => {
  const page = readFileSync(new URL("../../docs/primitives.md", import.meta.url), "utf8");
  const matrix = matrixOf(await traitsOfAllStores());
  expect(page).toContain(`<!-- matrix -->\n${matrix}\n<!-- /matrix -->`);
});
