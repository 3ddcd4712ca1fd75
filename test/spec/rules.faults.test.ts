import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { describeWith } from "../support/needs.js";
import { type Model, pathOf, refute, rulesOf, verify } from "../support/spin.js";

/** Bounds that are enough to break most checks. */
const SMALLEST = ["-DGRANTS=2", "-DNUMBERS=2"];
const BOUNDS: Readonly<Record<string, readonly string[]>> = {
  // The grant that ends, the one whose record it deletes, and the one that takes its place.
  RELEASE_NEEDS_HOLDER: ["-DGRANTS=3", "-DNUMBERS=2", "-DNO_EXPIRY"],
  RELEASE_RAISES_C: [...SMALLEST, "-DNO_EXPIRY"],
  // The old grant's number, the new one's, and that of the old grant's late claim.
  RENEWAL_CHECKS_BASE: ["-DGRANTS=2", "-DNUMBERS=3"],
};

/** Far more than a busy machine needs. */
const timeout = 240_000;

test("each rule of a model is in its steps, and can be left out", () => {
  const names = (model: Model): string[] => [...new Set(rulesOf(model).map(({ rule }) => rule))];
  expect(names("lease-and-fence")).toHaveLength(8);
  expect(names("quorum-ballot")).toHaveLength(15);
  for (const model of ["lease-and-fence", "quorum-ballot"] as const) {
    const text = readFileSync(pathOf(model), "utf8");
    for (const rule of names(model)) expect(text).toContain(`KEEPS(${rule})`);
    for (const { check } of rulesOf(model)) expect(text).toContain(`check(${check}, `);
  }
});

describeWith(["spin"], "models", () => {
  test.concurrent("quorum-ballot holds for three grants", { timeout }, async () => {
    const verdict = await verify("quorum-ballot");
    expect(verdict).toMatchObject({ violation: null, exhaustive: true });
    expect(verdict.states).toBeGreaterThan(1_000_000);
  });

  test.concurrent("quorum-ballot holds for two grants without expiry", { timeout }, async () => {
    const verdict = await verify("quorum-ballot", "-DNO_EXPIRY", "-DGRANTS=2");
    expect(verdict).toMatchObject({ violation: null, exhaustive: true });
    expect(verdict.states).toBeGreaterThan(100_000);
  });

  test.concurrent("lease-and-fence holds", { timeout }, async () => {
    const verdict = await verify("lease-and-fence");
    expect(verdict).toMatchObject({ violation: null, exhaustive: true });
    expect(verdict.states).toBeGreaterThan(50_000);
  });

  for (const { rule, check } of rulesOf("lease-and-fence")) {
    test.concurrent(`lease-and-fence without ${rule} breaks ${check}`, { timeout }, async () => {
      const flags = [`-DWITHOUT=${rule}`, `-DCHECK=${check}`];
      expect((await refute("lease-and-fence", ...flags)).violation).not.toBe(null);
    });
  }

  for (const { rule, check } of rulesOf("quorum-ballot")) {
    test.concurrent(`quorum-ballot without ${rule} breaks ${check}`, { timeout }, async () => {
      const flags = [`-DWITHOUT=${rule}`, `-DCHECK=${check}`, ...(BOUNDS[rule] ?? SMALLEST)];
      expect((await refute("quorum-ballot", ...flags)).violation).not.toBe(null);
    });
  }

  test.concurrent("quorum-ballot with expiry breaks DECISIONS_RISE", { timeout }, async () => {
    const flags = [...SMALLEST, "-DCHECK=DECISIONS_RISE"];
    expect((await refute("quorum-ballot", ...flags)).violation).not.toBe(null);
  });

  test.concurrent("the example of docs/models.md is what spin prints", { timeout }, async () => {
    const page = readFileSync(new URL("../../docs/models.md", import.meta.url), "utf8");
    const flags = ["-DWITHOUT=RAISE_NEEDS_HOLDER", "-DCHECK=TOKENS_DIFFER", "-DGRANTS=2"];
    expect(page).toContain(`spin ${flags.join(" ")} -a quorum-ballot.pml`);
    const { story } = await refute("quorum-ballot", ...flags);
    expect(page).toContain(["```", ...story, "```"].join("\n"));
  });
});
