import { expect, onTestFinished, test } from "vitest";
import { memoryFence } from "../../src/fence/memory.js";
import { createLocks, type Locks } from "../../src/index.js";
import { memoryStore } from "../../src/stores/memory/index.js";

const STALE = { code: "STALE_TOKEN" };
const by = (token: bigint) => ({ token, floor: token });

function open(...options: [] | [{ tokenOffset: bigint }]): Locks {
  const locks = createLocks(memoryStore(), ...options);
  onTestFinished(() => locks.close());
  return locks;
}

/** A number behind a fence, whose writes take effect after `guard` in one step. */
function cell() {
  const fence = memoryFence();
  const it = { fence, value: 0, write };
  function write(lease: { token: bigint; floor: bigint }, value: number): Promise<void> {
    return fence.transaction(async (tx) => {
      await fence.guard(tx, "cell", lease);
      it.value = value;
    });
  }
  return it;
}

test.each([
  ["without enter before the first read, a stale write is accepted, and an update is lost", false],
  ["with enter before the first read, the stale write is refused, and none is lost", true],
])("the limit of fencing: %s", async (_what, enters) => {
  const it = cell();
  const [old, next] = [by(1n), by(2n)];
  await it.fence.enter(undefined, "cell", old);
  const readByOld = it.value;
  // The old holder is paused, its lease expires, and the next holder is granted the name.
  if (enters) await it.fence.enter(undefined, "cell", next);
  const readByNext = it.value;
  const late = await it.write(old, readByOld + 1).then(
    () => 1,
    (error) => {
      expect(error).toMatchObject(STALE);
      return 0;
    },
  );
  await it.write(next, readByNext + 1);
  const accepted = late + 1;
  expect([late, it.value]).toEqual(enters ? [0, accepted] : [1, accepted - 1]);
});

test("names that are held together have a token each, for a resource each", async () => {
  const locks = open();
  const fence = memoryFence();
  const first = await locks.acquireAll(["from", "to"]);
  for (const name of ["from", "to"]) await fence.enter(undefined, name, first.of(name));
  await first.release();
  const next = await locks.acquireAll(["to", "other"]);
  await fence.enter(undefined, "to", next.of("to"));
  // Nobody else has taken the one name, so its holder passes there; a transaction of both is refused.
  await fence.guard(undefined, "from", first.of("from"));
  const both = fence.transaction(async (tx) => {
    await fence.guard(tx, "from", first.of("from"));
    await fence.guard(tx, "to", first.of("to"));
  });
  await expect(both).rejects.toMatchObject({ ...STALE, resource: "to" });
  await fence.guard(undefined, "to", next.of("to"));
});

test("holders of permits pass together; one from before all of them is refused", async () => {
  const locks = open();
  const gpu = locks.semaphore("gpu", { permits: 2 });
  const it = cell();
  const gone = await gpu.acquire();
  await it.write(gone, 1);
  await gone.release();
  const [first, second] = [await gpu.acquire(), await gpu.acquire()];
  await it.fence.enter(undefined, "cell", second);
  await it.write(first, 2);
  await it.write(second, 3);
  await expect(it.write(gone, 4)).rejects.toMatchObject(STALE);
  // The limit that docs/fences.md states: second is over, but first, which is older, still holds.
  await second.release();
  const third = await gpu.acquire();
  await it.fence.enter(undefined, "cell", third);
  await it.write(second, 5);
  expect([third.floor, it.value]).toEqual([first.token, 5]);
});

test("a writer fences out the readers from before it", async () => {
  const locks = open();
  const it = cell();
  const reader = await locks.acquire("cell", { mode: "shared" });
  await it.fence.enter(undefined, "cell", reader);
  await reader.release();
  const writer = await locks.acquire("cell");
  await it.fence.enter(undefined, "cell", writer);
  await expect(it.fence.guard(undefined, "cell", reader)).rejects.toMatchObject(STALE);
  await it.write(writer, 1);
});

test("first use: the first holder is accepted, whatever its token", async () => {
  for (const token of [0n, 1n, 2n ** 63n - 1n]) await cell().write(by(token), 1);
});

test("state lost: a stale holder is accepted until the present one enters again", async () => {
  const [before, after] = [cell(), cell()];
  await before.fence.enter(undefined, "cell", by(9n));
  await expect(before.write(by(8n), 1)).rejects.toMatchObject(STALE);
  await after.write(by(8n), 1);
  await after.fence.enter(undefined, "cell", by(9n));
  await expect(after.write(by(8n), 2)).rejects.toMatchObject(STALE);
});

test("backup restored: holders granted since are accepted, also stale ones, and those before are not", async () => {
  const it = cell();
  await it.fence.enter(undefined, "cell", by(9n));
  await it.fence.reset(undefined, "cell", 5n);
  await it.write(by(8n), 1);
  await expect(it.write(by(7n), 2)).rejects.toMatchObject(STALE);
  await expect(it.write(by(4n), 3)).rejects.toMatchObject(STALE);
});

test("store moved: lower tokens are refused until tokenOffset raises them", async () => {
  const it = cell();
  const old = await open({ tokenOffset: 10n ** 17n }).acquire("cell");
  await it.fence.enter(undefined, "cell", old);
  const lower = await open().acquire("cell");
  await expect(it.fence.enter(undefined, "cell", lower)).rejects.toMatchObject(STALE);
  const raised = await open({ tokenOffset: 2n * 10n ** 17n }).acquire("cell");
  await it.fence.enter(undefined, "cell", raised);
  await it.write(raised, 1);
  await expect(it.write(old, 2)).rejects.toMatchObject(STALE);
});

test("a random value in place of the token refuses a late write, but has no order: a stale holder that begins anew locks out the rightful one", async () => {
  let place = { owner: "", value: 0 };
  const begin = (owner: string): void => {
    place = { ...place, owner };
  };
  const write = (owner: string, value: number): boolean => {
    if (place.owner !== owner) return false;
    place = { owner, value };
    return true;
  };
  begin("random of A");
  begin("random of B");
  expect(write("random of A", 1), "late write").toBe(false);
  expect(write("random of B", 2)).toBe(true);
  // A was paused before it began: its lease was over long ago.
  begin("random of A");
  expect(write("random of A", 3), "the stale holder is accepted").toBe(true);
  expect(write("random of B", 4), "and the rightful one is refused").toBe(false);

  const fence = memoryFence();
  await fence.enter(undefined, "place", by(6n));
  await expect(fence.enter(undefined, "place", by(5n))).rejects.toMatchObject(STALE);
  await fence.guard(undefined, "place", by(6n));
});
