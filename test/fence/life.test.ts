import { copyFileSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { placeFence } from "../../src/fence/compare-and-set.js";
import { memoryFence } from "../../src/fence/memory.js";
import { sqliteFence } from "../../src/fence/sqlite.js";
import { createLocks, type Locks } from "../../src/index.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { openSqlite } from "../../src/stores/sqlite/driver.js";

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

/** A file of SQLite with numbers and their fence. */
function inFile() {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-life-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const path = join(folder, "data.db");
  const open = async () => {
    const db = await openSqlite(path);
    db.exec("CREATE TABLE IF NOT EXISTS cell (value INTEGER)");
    const fence = sqliteFence(db);
    const write = (lease: { token: bigint; floor: bigint }, value: number): void => {
      db.exec("BEGIN IMMEDIATE");
      try {
        fence.guardSync(db, "cell", lease);
        db.prepare("INSERT INTO cell VALUES (?)").run(value);
        db.exec("COMMIT");
      } catch (error) {
        db.exec("ROLLBACK");
        throw error;
      }
    };
    return { db, fence, write };
  };
  return { path, open };
}

test("backup restored: holders granted since are accepted, also stale ones, and those before are not", async () => {
  const { path, open } = inFile();
  const before = await open();
  await before.fence.enter(undefined, "cell", by(5n));
  before.db.close();
  copyFileSync(path, `${path}.backup`);
  const since = await open();
  await since.fence.enter(undefined, "cell", by(9n));
  expect(() => since.write(by(8n), 1)).toThrow(expect.objectContaining(STALE));
  since.db.close();
  copyFileSync(`${path}.backup`, path);
  const { db, fence, write } = await open();
  onTestFinished(() => void db.close());
  expect(await fence.highest(undefined, "cell")).toBe(5n);
  write(by(8n), 2);
  for (const token of [7n, 4n])
    expect(() => write(by(token), 3)).toThrow(expect.objectContaining(STALE));
});

test("a number kept in the resource goes with it: a stale holder can make it again, unless an empty one is left", async () => {
  const objects = new Map<string, { value: string | null; highest: bigint | null; tag: number }>();
  let tag = 0;
  const fence = placeFence<string, number>({
    async read(key) {
      const { value, highest, tag } = objects.get(key) ?? { value: null, highest: null, tag: 0 };
      return { value, highest, version: tag };
    },
    async write(key, next, version) {
      if ((objects.get(key)?.tag ?? 0) !== version) return false;
      objects.set(key, { ...next, tag: ++tag });
      return true;
    },
  });
  const [old, next] = [by(1n), by(2n)];
  for (const key of ["left empty", "deleted"]) await fence.update(key, next, () => "new");
  await fence.update("left empty", next, () => "");
  objects.delete("deleted");
  await expect(fence.update("left empty", old, () => "stale")).rejects.toMatchObject(STALE);
  expect(await fence.update("deleted", old, () => "stale")).toBe("stale");
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
