import { test } from "vitest";
import { type FenceSubject, fenceConformance } from "../../src/conformance/fence-suite.js";

/** One test for each promise of a fence, each on a fresh subject. */
export function suiteOf(fresh: () => Promise<FenceSubject>): void {
  test.each(fenceConformance.map((one) => [one.name, one] as const))("%s", async (_name, one) => {
    const subject = await fresh();
    try {
      await one.run(subject);
    } finally {
      await subject.dispose?.();
    }
  });
}
