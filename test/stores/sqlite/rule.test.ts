import { expect, onTestFinished, test } from "vitest";
import { type SqliteStore, sqliteStore } from "../../../src/stores/sqlite/index.js";
import { compareWithRule, VirtualClock } from "../../../src/testing.js";
import { ruleRuns } from "../../support/chance.js";
import { freshFile, rawConnection } from "../../support/sqlite.js";

test.each(["mixed", "contended"] as const)(
  "two connections to a file reply and push like the rule in memory: %s",
  { timeout: 240_000 },
  async (workload) => {
    const time = new VirtualClock();
    const clock = {
      nowMs: () => {
        // No two requests are made at the same moment.
        time.stall(0.001);
        return time.elapsedMs();
      },
      wallMs: () => time.wallMs(),
    };
    const file = freshFile();
    const open = async (): Promise<SqliteStore> => {
      const store = sqliteStore(await rawConnection(file), { clock });
      onTestFinished(() => store.close());
      return store;
    };
    const { pushed } = await compareWithRule({
      clients: [await open(), await open()],
      workload,
      ...ruleRuns(workload === "mixed" ? 60 : 15),
      pass: (ms) => time.stall(ms),
      // The store in memory counts tickets that have expired, and this one does not.
      ignore: ["ahead"],
    });
    expect(pushed.granted).toBeGreaterThan(5);
  },
);
