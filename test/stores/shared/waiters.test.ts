import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Keys } from "../../../src/stores/etcd/keys.js";
import { EtcdWaiters } from "../../../src/stores/etcd/waiters.js";
import { type Observer, observeAgain } from "../../../src/stores/shared/sessions/waiters.js";
import { Deferred } from "../../core/helpers.js";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

/** An observation that the test begins and ends. */
function observed() {
  const begun: { readonly observer: Observer; readonly result: Deferred<() => void> }[] = [];
  const ends: number[] = [];
  let changes = 0;
  const end = observeAgain(
    () => changes++,
    (observer) => {
      const at = begun.length;
      begun.push({ observer, result: new Deferred() });
      return begun[at]!.result.promise.then(() => () => ends.push(at));
    },
  );
  return {
    begun,
    ends,
    end,
    changes: () => changes,
    /** Lets the time pass after which a failed attempt is repeated, more than once. */
    pass: () => vi.advanceTimersByTimeAsync(10_000),
  };
}

test("an observation whose watch ends begins again, and is ended once", async () => {
  const { begun, ends, end, changes, pass } = observed();
  begun[0]!.result.resolve(() => {});
  await pass();
  expect(changes()).toBe(1);
  begun[0]!.observer.ended();
  expect(begun).toHaveLength(2);
  begun[1]!.result.resolve(() => {});
  await pass();
  expect(changes()).toBe(2);
  end();
  expect([begun.length, ends]).toEqual([2, [1]]);
});

test("an observation whose session ends before it has begun is begun once more, not twice", async () => {
  const { begun, ends, end, pass } = observed();
  begun[0]!.observer.ended();
  begun[0]!.result.reject(new Error("the session has ended"));
  await pass();
  expect(begun).toHaveLength(2);
  begun[1]!.result.resolve(() => {});
  await pass();
  end();
  expect([begun.length, ends]).toEqual([2, [1]]);
});

test("an observation whose session ends in the moment in which it has begun is not forgotten", async () => {
  const { begun, changes, pass } = observed();
  begun[0]!.result.resolve(() => {});
  begun[0]!.observer.ended();
  await pass();
  expect(begun).toHaveLength(2);
  begun[1]!.result.resolve(() => {});
  await pass();
  expect(changes()).toBe(1);
});

test("on etcd, an observation whose first read fails leaves none behind", async () => {
  let isDown = true;
  const client = {
    watch(_range: unknown, { created }: { created(revision: bigint): void }) {
      queueMicrotask(() => created(1n));
      return { cancel() {} };
    },
  };
  const transactions = {
    async send() {
      if (isDown) throw new Error("etcd is down");
      return { responses: [{ range: { kvs: [] } }], revision: 2n };
    },
  };
  const keys = new Keys("test/");
  const waiters = new EtcdWaiters(client as never, keys, transactions as never, () => {});
  const end = waiters.observeName("name", () => {});
  await vi.advanceTimersByTimeAsync(3_500);
  isDown = false;
  await vi.advanceTimersByTimeAsync(1_000);
  const { observers } = waiters.get("name")!;
  expect(observers.size).toBe(1);
  end();
  expect(observers.size).toBe(0);
});
