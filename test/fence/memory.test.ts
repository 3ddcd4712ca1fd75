import { expect, it } from "vitest";
import { type MemoryTx, memoryFence } from "../../src/fence/memory.js";
import { createLocks } from "../../src/locks.js";
import { memoryStore } from "../../src/stores/memory/index.js";

const OLD = { token: 1n, floor: 1n };
const NEW = { token: 2n, floor: 2n };

it("the memory fence lets nobody enter between a guard and the write after it, so no update is lost", async () => {
  const fence = memoryFence();
  const locks = createLocks(memoryStore());
  let value = 0;
  await fence.enter(undefined, "counter", OLD);
  let write = (): void => {};
  const stale = fence.transaction(async (tx) => {
    await fence.guard(tx, "counter", OLD);
    await new Promise<void>((resolve) => {
      write = resolve;
    });
    value = 1;
  });
  const next = locks.withLock("counter", { fence }, async (lease) => {
    const read = value;
    await fence.transaction(async (tx) => {
      await fence.guard(tx, "counter", lease);
      value = read + 10;
    });
  });
  // Long enough for the new holder to enter and read, if it could.
  for (let turns = 0; turns < 5; turns++) await new Promise(setImmediate);
  write();
  await Promise.all([stale, next]);
  expect(value).toBe(11);
  await locks.close();
});

it.each(["enter", "guard", "reset"] as const)(
  "the memory fence runs %s without a tx in its turn",
  async (call) => {
    const fence = memoryFence();
    const calls = {
      enter: () => fence.enter(undefined, "r", NEW),
      guard: () => fence.guard(undefined, "r", NEW),
      reset: () => fence.reset(undefined, "r", NEW.token),
    };
    let later: Promise<void> | undefined;
    await fence.transaction(async (tx) => {
      await fence.guard(tx, "r", OLD);
      // Starts it outside the transaction, as other work would.
      later = outside(calls[call]);
      for (let turns = 0; turns < 5; turns++) await new Promise(setImmediate);
      expect(await fence.highest(tx, "r")).toBe(OLD.floor);
    });
    await later;
    expect(await fence.highest(undefined, "r")).toBe(NEW.floor);
  },
);

it("the memory fence refuses calls that would wait for themselves: a transaction, or a call without tx, inside a transaction", async () => {
  const fence = memoryFence();
  for (const nested of [
    () => fence.transaction(async () => {}),
    () => fence.enter(undefined, "r", OLD),
    () => fence.guard(undefined, "r", OLD),
    () => fence.reset(undefined, "r", 1n),
  ]) {
    await expect(fence.transaction(() => nested())).rejects.toMatchObject({
      code: "INVALID_ARGUMENT",
      message: expect.stringContaining("inside a transaction"),
    });
  }
  // Work that outlives its transaction is no longer inside it.
  let outlives: Promise<void> | undefined;
  await fence.transaction(async () => {
    outlives = new Promise<void>(setImmediate).then(() => fence.enter(undefined, "r", OLD));
  });
  await outlives;
  expect(await fence.highest(undefined, "r")).toBe(1n);
});

it("the memory fence refuses a tx that has ended or belongs to another fence", async () => {
  const fence = memoryFence();
  let ended: MemoryTx | undefined;
  await fence.transaction((tx) => {
    ended = tx;
  });
  await expect(fence.guard(ended, "r", OLD)).rejects.toMatchObject({ code: "INVALID_ARGUMENT" });
  await memoryFence().transaction(async (tx) => {
    await expect(fence.enter(tx, "r", OLD)).rejects.toMatchObject({ code: "INVALID_ARGUMENT" });
  });
});

const { AsyncResource } = await import("node:async_hooks");
const root = new AsyncResource("test");

/** Runs it in the context of the test file, outside the transaction that calls this. */
const outside = <T>(call: () => T): T => root.runInAsyncScope(call);
