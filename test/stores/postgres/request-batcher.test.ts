import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { requestBatcher } from "../../../src/stores/postgres/request-batcher.js";

interface TestRequest {
  readonly id: string;
  readonly name: string;
  readonly isAttempt?: boolean;
}

const TIMEOUT_MS = 9_000;
const CALL_MS = 1;
const locked = (): Error => Object.assign(new Error("locked"), { code: "55P03" });

/** A server whose rows are locked for as long as their names are in `rows`, and the batcher that sends to it. */
function simulate() {
  const rows = new Set<string>();
  const missing = new Set<string>();
  const served: string[] = [];
  const state = { calls: 0, isOpen: true };
  const serve = ({ id, name }: TestRequest): string => {
    missing.delete(name);
    served.push(id);
    return `reply to ${id}`;
  };
  const batcher = requestBatcher<TestRequest>({
    size: 4,
    nameOf: ({ name }) => name,
    timeoutMsOf: () => TIMEOUT_MS,
    isOrdered: ({ isAttempt = false }) => !isAttempt,
    isOpen: () => state.isOpen,
    lockedError: locked,
    async call(requests, _timeoutMs, lockWaitMs, waits) {
      state.calls++;
      await later(CALL_MS);
      const isBatch = requests.length > 1;
      if (isBatch && !waits) return requests.map((one) => (rows.has(one.name) ? null : serve(one)));
      for (let ms = 0; requests.some(({ name }) => rows.has(name)); ms++) {
        if (ms >= lockWaitMs) throw locked();
        await later(1);
      }
      return requests.map((one) => (isBatch && missing.has(one.name) ? null : serve(one)));
    },
  });
  const send = (id: string, name: string, isAttempt = false): Promise<string> =>
    batcher.send({ id, name, isAttempt }).catch((error: Error) => `${id}: ${error.message}`);
  return { rows, missing, served, state, send };
}

const later = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
const advance = (ms: number): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "performance"] });
});
afterEach(() => {
  vi.useRealTimers();
});

test.each([10, 30, 60, 130, 260])(
  "requests for a locked name are served in the order of their arrival, %i ms apart",
  async (gapMs) => {
    for (let freeAfterMs = 25; freeAfterMs <= 300; freeAfterMs += 25) {
      const { rows, served, send } = simulate();
      rows.add("a");
      const sent: Promise<string>[] = [];
      for (const id of ["1", "2", "3"]) {
        sent.push(send(id, "a"));
        await advance(gapMs);
      }
      await advance(freeAfterMs);
      rows.delete("a");
      sent.push(send("4", "a"));
      await advance(500);
      expect(await Promise.all(sent)).toEqual(["1", "2", "3", "4"].map((id) => `reply to ${id}`));
      expect(served).toEqual(["1", "2", "3", "4"]);
    }
  },
);

test("a release stays behind its claim, also while other names are locked", async () => {
  const { rows, served, send } = simulate();
  for (const name of ["a", "b", "c"]) rows.add(name);
  void send("b", "b");
  void send("claim of a", "a");
  await advance(70);
  void send("c", "c");
  void send("release of a", "a");
  await advance(200);
  rows.delete("a");
  await advance(300);
  expect(served).toEqual(["claim of a", "release of a"]);
  for (const name of ["b", "c"]) rows.delete(name);
  await advance(300);
  expect(served).toHaveLength(4);
});

test("requests whose row was deleted while they waited stay in order", async () => {
  const { rows, missing, served, send } = simulate();
  rows.add("a");
  void send("1", "a");
  await advance(50);
  void send("2", "a");
  void send("3", "a");
  await advance(100);
  missing.add("a");
  rows.delete("a");
  await advance(300);
  expect(served).toEqual(["1", "2", "3"]);
});

test("an attempt is sent at once, although others wait for the name", async () => {
  const { rows, state, send } = simulate();
  rows.add("a");
  void send("1", "a");
  await advance(50);
  const { calls } = state;
  void send("2", "a");
  await advance(0);
  expect(state.calls).toBe(calls);
  void send("3", "a", true);
  await advance(0);
  expect(state.calls).toBe(calls + 1);
});

test("however many names are locked, each request learns so in two seconds", async () => {
  const { rows, send } = simulate();
  const ids = Array.from({ length: 200 }, (_, i) => `${i}`);
  for (const id of ids) rows.add(id);
  const settled = vi.fn();
  const sent = Promise.all(ids.flatMap((id) => [send(id, id), send(id, id)])).then((replies) => {
    settled();
    return replies;
  });
  await advance(2_000);
  expect(settled).toHaveBeenCalled();
  expect(new Set(await sent)).toEqual(new Set(ids.map((id) => `${id}: locked`)));
});

test("once the store is closed, nothing is sent again", async () => {
  const { rows, state, send } = simulate();
  for (const name of ["a", "b"]) rows.add(name);
  const sent = Promise.all([send("1", "a"), send("2", "b"), send("3", "a")]);
  await advance(200);
  state.isOpen = false;
  const { calls } = state;
  await advance(150);
  expect(await sent).toEqual(["1: locked", "2: locked", "3: locked"]);
  expect(state.calls).toBe(calls);
});
