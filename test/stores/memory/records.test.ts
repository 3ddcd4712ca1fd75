import { expect, test } from "vitest";
import { MemoryStore } from "../../../src/stores/memory/index.js";
import { VirtualClock } from "../../../src/testing.js";
import { ruleRuns } from "../../support/chance.js";
import { compareRecordsWithRule } from "../../support/records-comparison.js";

test("replies like the rule", async () => {
  const clock = new VirtualClock();
  const { records } = new MemoryStore(clock.forStore());
  const met = await compareRecordsWithRule(
    {
      clients: [records],
      pass: (ms) => clock.advance(ms),
      nowUs: () => Math.floor(clock.forStore().nowMs() * 1_000),
    },
    ruleRuns(200),
  );
  const { exact: _, ...others } = met;
  for (const [what, count] of Object.entries(others)) {
    expect(count, what).toBeGreaterThan(100);
  }
});
