import { describe, type TestContext, test } from "vitest";
import { KINDS, type Kind, missing } from "../../src/verify/lab/requirements.js";
import { lackingRight, type Right } from "../../src/verify/lab/rights.js";

type Skipping = Pick<TestContext, "skip">;

/** Skips the test, and says why; with `HOLDFAST_REQUIRE_ALL=1` it fails with the same words. */
export function skipUnless({ skip }: Skipping, can: boolean, reason: string): void {
  if (can) return;
  if (requireAll()) throw new Error(reason);
  skip(reason);
}

/** For one test: the servers, tools and rights that it needs. */
export function needs(context: Skipping, ...what: readonly (Kind | Right)[]): void {
  const reason = lacking(what);
  skipUnless(context, reason === null, reason ?? "");
}

/** For a block of tests with the same needs. */
export function describeWith(
  what: readonly (Kind | Right)[],
  name: string,
  tests: () => void,
): void {
  const reason = lacking(what);
  if (reason === null) describe(name, tests);
  else if (!requireAll()) describe.skip(`${name} [${reason}]`, tests);
  else {
    test(name, () => {
      throw new Error(reason);
    });
  }
}

/** Null, the line to paste, or the right that is lacking. */
export function lacking(what: readonly (Kind | Right)[]): string | null {
  const isKind = (one: Kind | Right): one is Kind => KINDS.includes(one as Kind);
  const install = missing(what.filter(isKind));
  if (install !== null) return `needs ${install.kinds.join(", ")}: ${install.advice}`;
  // Tried only when the tools are there.
  const rights = what.filter((one) => !isKind(one)) as Right[];
  return rights.map(lackingRight).find((reason) => reason !== null) ?? null;
}

const requireAll = (): boolean => process.env["HOLDFAST_REQUIRE_ALL"] === "1";
