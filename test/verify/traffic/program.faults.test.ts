import { join } from "node:path";
import { expect, test } from "vitest";
import { machineMs } from "../../../src/verify/traffic/time-line.js";
import { freshFolder } from "../../support/sqlite.js";
import { eventsOf, expectKept, startWorkers } from "../../support/worker.js";

const OPERATIONS = 250;

test("programs make every kind of call, and their histories are checked", {
  timeout: 120_000,
}, async () => {
  const folder = freshFolder();
  const resourceFile = join(folder, "resources.db");
  const { workers, timeLine } = await startWorkers(
    2,
    `sqlite:${join(folder, "locks.db")}`,
    { namespace: "test" },
    { resourceFile },
  );
  const untilMs = machineMs() + 60_000;
  const performing = workers.map((worker, i) =>
    worker.program({
      seed: i + 1,
      lane: `1.w${i + 1}`,
      via: 0,
      names: [{ name: "a", permits: 0 }],
      ttlsMs: [1_000],
      waitMs: 500,
      pauseMs: 1,
      untilMs,
    }),
  );
  const inner = () => eventsOf(timeLine, "asked").filter(({ within }) => within !== undefined);
  const busy = () => eventsOf(timeLine, "not-granted").filter(({ outcome }) => outcome === "busy");
  const isEnough = (): boolean =>
    eventsOf(timeLine, "asked").length > OPERATIONS && inner().length > 5 && busy().length > 0;
  // The number of calls that it takes depends on how the two processes interfere.
  await expect.poll(isEnough, { timeout: 60_000 }).toBe(true);
  await Promise.all(workers.map((worker) => worker.finish()));
  await Promise.all(performing);
  await Promise.all(workers.map((worker) => worker.close()));
  // Delays on a busy machine are not judged here.
  const patient = { lossMs: 5_000, wakeMs: 5_000, recordMs: 200, endMs: 20_000, commandMs: 20_000 };
  expectKept(timeLine, ["S1", "S2", "S3", "S8", "L3"], patient);
});
