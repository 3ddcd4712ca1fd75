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

/** The pace of a machine on which this process gets a share of the CPU, and a turn of its loop takes `turnMs`. */
async function paceAt(share: number, turnMs: number): Promise<number> {
  vi.useFakeTimers({ toFake: ["performance", "setInterval", "clearInterval"] });
  vi.stubGlobal("setImmediate", (turn: () => void) => {
    vi.advanceTimersByTime(turnMs);
    queueMicrotask(turn);
  });
  const load = new Load();
  onTestFinished(() => {
    load.stop();
    vi.restoreAllMocks();
    vi.unstubAllGlobals();
    vi.useRealTimers();
  });
  const fromMs = performance.now();
  vi.spyOn(process, "cpuUsage").mockImplementation((before) => ({
    user: before === undefined ? 0 : (performance.now() - fromMs) * share * 1_000,
    system: 0,
  }));
  return load.pace();
}

test.each([
  ["a quiet machine runs at the usual pace", 1, 1, 1],
  ["a process that gets two thirds of a core is slower", 0.67, 1, 1.5],
  ["a process that gets less than half of a core takes twice the time", 0.4, 1, 2],
  ["a process whose turns are late takes twice the time, however much it gets", 1, 20, 2],
])("%s", async (_what, share, turnMs, pace) => {
  expect(await paceAt(share, turnMs)).toBe(pace);
});
