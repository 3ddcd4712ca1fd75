import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { settlesWithin } from "../../../src/stores/shared/timeout.js";
import { Deferred } from "../../core/helpers.js";

let nowMs: number;
beforeEach(() => {
  nowMs = 0;
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  vi.spyOn(performance, "now").mockImplementation(() => nowMs);
});
afterEach(() => {
  vi.restoreAllMocks();
  vi.useRealTimers();
});

/** The timer runs after the process has stood still until then. */
async function wakeAt(atMs: number): Promise<void> {
  nowMs = atMs;
  await vi.advanceTimersToNextTimerAsync();
}

test("without a reply, a timer that is on time ends the wait", async () => {
  const settles = settlesWithin(1_000, new Promise(() => {}));
  await wakeAt(1_010);
  expect(await settles).toBe(false);
});

test("a reply that arrived while the process stood still counts, although the timer runs first", async () => {
  const reply = new Deferred<void>();
  const settles = settlesWithin(1_000, reply.promise);
  await wakeAt(31_000);
  reply.resolve();
  expect(await settles).toBe(true);
  expect(vi.getTimerCount()).toBe(0);
});

test("a process that stood still waits for a last reply for a moment only", async () => {
  const settles = settlesWithin(1_000, new Promise(() => {}));
  await wakeAt(31_000);
  await wakeAt(31_250);
  expect(await settles).toBe(false);
});
