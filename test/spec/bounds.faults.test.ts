import { expect, test } from "vitest";
import { describeWith } from "../support/needs.js";
import { type Model, rulesOf, verify } from "../support/spin.js";

const timeout = 240_000;

const LARGER_BOUNDS: readonly (readonly [Model, ...(readonly string[])])[] = [
  ["quorum-ballot", "-DNO_EXPIRY"],
  ["quorum-ballot", "-DNUMBERS=4", "-DGRANTS=2"],
  ["lease-and-fence", "-DLAST_TICK=9"],
];

describeWith(["spin"], "models", () => {
  for (const [model, ...flags] of LARGER_BOUNDS) {
    test(`${model} holds with ${flags.join(" ")}`, { timeout }, async () => {
      const verdict = await verify(model, ...flags);
      expect(verdict).toMatchObject({ violation: null, exhaustive: true });
      expect(verdict.states).toBeGreaterThan(500_000);
    });
  }

  for (const { rule } of rulesOf("lease-and-fence").filter(({ check }) => check === "ONE_HOLDER")) {
    test(`the fence protects updates and tokens without ${rule}`, { timeout }, async () => {
      for (const check of ["NO_UPDATE_IS_LOST", "NO_STALE_TOKEN"]) {
        const verdict = await verify("lease-and-fence", `-DWITHOUT=${rule}`, `-DCHECK=${check}`);
        expect(verdict).toMatchObject({ violation: null, exhaustive: true });
      }
    });
  }
});
