import { existsSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { acquire } from "../../src/cli/run/acquire.js";
import type { Plan } from "../../src/cli/run/plan.js";
import { Signals } from "../../src/cli/run/signals.js";
import { runUnder } from "../../src/cli/run/work.js";
import { stage } from "../core/helpers.js";
import { makeFolder } from "./helpers.js";

const plan = {
  name: "job",
  holder: "test",
  ttlMs: 10_000,
  waitMs: 0,
  acquireOptions: { ttl: 10_000, atLeast: "1h" },
  mode: "exclusive",
  quiet: true,
} as unknown as Plan;

/** Signals to this process do not reach these. */
function noSignals(ended: NodeJS.Signals | null = null): Signals {
  const signals = Object.create(Signals.prototype) as Signals;
  const { signal } = new AbortController();
  Object.defineProperty(signals, "waitSignal", { value: signal });
  return Object.assign(signals, { ended, forwardTo: () => {} });
}

describe("--at-least does not close the name if the command never ran", () => {
  it("because the lease was lost before it began, while holdfast was stopped", async () => {
    const { clock, locks } = stage();
    const file = join(makeFolder(), "ran");
    const lease = await locks.acquire("job", plan.acquireOptions);
    clock.stall(11_000);
    expect(await runUnder(plan, ["touch", file], lease, 10_000, noSignals())).toBe("lost");
    expect(existsSync(file)).toBe(false);
    expect(await locks.tryAcquire("job")).not.toBeNull();
  });

  it("because it could not be started", async () => {
    const { locks } = stage();
    const lease = await locks.acquire("job", plan.acquireOptions);
    expect(await runUnder(plan, ["/no/such/program"], lease, 10_000, noSignals())).toBe(127);
    expect(await locks.tryAcquire("job")).not.toBeNull();
  });

  it("because a signal came in the moment of the grant", async () => {
    const { locks } = stage();
    const acquiring = acquire(plan, locks, noSignals("SIGTERM"));
    await expect(acquiring).rejects.toMatchObject({ exitCode: 143 });
    expect(await locks.tryAcquire("job")).not.toBeNull();
  });
});
