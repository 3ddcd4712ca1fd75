import { expect, onTestFinished, test, vi } from "vitest";
import { Load } from "../../../src/verify/runner/load.js";

test("the load of the machine is the worst delay of a timer since the last look", () => {
  vi.useFakeTimers({ toFake: ["performance", "setInterval", "clearInterval"] });
  onTestFinished(() => void vi.useRealTimers());
  const load = new Load();
  onTestFinished(() => load.stop());
  vi.advanceTimersByTime(100);
  expect(load.takeWorstMs(), "timers on time").toBeLessThanOrEqual(0);
  // Time passes without a timer, as when the process gets no CPU. A look counts as well.
  const now = performance.now();
  vi.spyOn(performance, "now").mockReturnValue(now + 90);
  onTestFinished(() => void vi.restoreAllMocks());
  expect(load.takeWorstMs()).toBe(80);
  expect(load.takeWorstMs(), "counted once").toBeLessThanOrEqual(0);
});
