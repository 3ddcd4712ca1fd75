import {
  chmodSync,
  chownSync,
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { type FileFence, openFileFence } from "../../src/fence/file.js";
import { openSqlite, type SqliteDatabase } from "../../src/stores/sqlite/driver.js";

const opened: SqliteDatabase[] = [];
/** Called before each statement of a connection. */
let beforeExec = (_sql: string): void => {};
vi.mock("../../src/stores/sqlite/driver.js", async (original) => {
  const driver = await original<typeof import("../../src/stores/sqlite/driver.js")>();
  return {
    ...driver,
    async openSqlite(path: string): Promise<SqliteDatabase> {
      const db = await driver.openSqlite(path);
      opened.push(db);
      return {
        exec(sql) {
          beforeExec(sql);
          return db.exec(sql);
        },
        prepare: (sql) => db.prepare(sql),
        close: () => db.close(),
      };
    },
  };
});

const steps: string[] = [];
vi.mock("node:fs", async (original) => {
  const fs = await original<typeof import("node:fs")>();
  return {
    ...fs,
    fsyncSync(file: number) {
      steps.push(fs.fstatSync(file).isDirectory() ? "sync the folder" : "sync the file");
      fs.fsyncSync(file);
    },
    renameSync(from: string, to: string) {
      steps.push("rename");
      fs.renameSync(from, to);
    },
  };
});

const by = (token: bigint) => ({ token, floor: token });
const INVALID = { code: "INVALID_ARGUMENT" };

async function open(): Promise<{ folder: string; fence: FileFence }> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-files-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const fence = await openFileFence(folder);
  onTestFinished(() => fence.close());
  return { folder, fence };
}

test("a new file has the rights that were asked for, and a replaced one keeps its own", async () => {
  const { folder, fence } = await open();
  const path = join(folder, "report");
  await fence.replace("report", by(1n), "one", { mode: 0o600 });
  expect(statSync(path).mode & 0o777).toBe(0o600);
  chmodSync(path, 0o640);
  await fence.replace("report", by(1n), Buffer.from([0, 255]), { mode: 0o600 });
  expect(statSync(path).mode & 0o777).toBe(0o640);
  expect([...readFileSync(path)]).toEqual([0, 255]);
});

test("a folder that can't be used makes the fence unavailable, and a mistyped mode is refused", async () => {
  const { fence, folder } = await open();
  mkdirSync(join(folder, "sub"));
  const replaced = fence.replace("sub/a", by(1n), "1");
  rmSync(join(folder, "sub"), { recursive: true });
  await expect(replaced).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
  symlinkSync("circle", join(folder, "circle"));
  await expect(fence.replace("circle", by(1n), "1")).rejects.toMatchObject({
    code: "STORE_UNAVAILABLE",
    message: expect.stringContaining('the file "circle" in '),
  });
  for (const options of [{ mod: 0o600 }, { mode: "600" }, { mode: -1 }]) {
    await expect(fence.replace("b", by(1n), "1", options as object)).rejects.toMatchObject({
      code: "INVALID_ARGUMENT",
    });
  }
  expect(existsSync(join(folder, "b"))).toBe(false);
});

test("a refused write leaves nothing behind", async () => {
  const { folder, fence } = await open();
  await fence.replace("report", by(2n), "two");
  await expect(fence.replace("report", by(1n), "one")).rejects.toMatchObject({
    code: "STALE_TOKEN",
  });
  await expect(fence.replace("report", by(2n), 5 as never)).rejects.toMatchObject(INVALID);
  await expect(fence.remove("report", by(1n))).rejects.toMatchObject({ code: "STALE_TOKEN" });
  expect(readdirSync(folder).sort()).toEqual([".holdfast-fence.db", "report"]);
  expect(readFileSync(join(folder, "report"), "utf8")).toBe("two");
});

test("a file that was removed can't be made again by a stale holder", async () => {
  const { folder, fence } = await open();
  await fence.replace("report", by(2n), "two");
  await fence.remove("report", by(3n));
  expect(existsSync(join(folder, "report"))).toBe(false);
  await expect(fence.replace("report", by(2n), "two")).rejects.toMatchObject({
    code: "STALE_TOKEN",
  });
  await fence.remove("report", by(3n));
});

test("nobody enters between the check and the write of another process", async () => {
  const { folder, fence } = await open();
  await fence.replace("report", by(1n), "one");
  // Another process that is inside its step, as seen from here: it holds the lock.
  const other = await openSqlite(join(folder, ".holdfast-fence.db"));
  onTestFinished(() => void other.close());
  other.exec("BEGIN IMMEDIATE");
  let hasEntered = false;
  const entering = fence.enter(undefined, "report", by(2n)).then(() => {
    hasEntered = true;
  });
  await new Promise((resolve) => setTimeout(resolve, 100));
  expect(hasEntered).toBe(false);
  other.exec("COMMIT");
  await entering;
});

test("one number for all ways to write a path", async () => {
  const { folder, fence } = await open();
  mkdirSync(join(folder, "sub"));
  symlinkSync("sub", join(folder, "link"));
  await fence.enter(undefined, "sub/report", by(5n));
  for (const way of [
    "./sub/report",
    "link/report",
    "sub/../sub/report",
    join(folder, "sub/report"),
  ])
    expect(await fence.highest(undefined, way), way).toBe(5n);
});

test("paths outside of the folder, of folders and of the fence itself are refused", async () => {
  const { folder, fence } = await open();
  mkdirSync(join(folder, "sub"));
  symlinkSync(tmpdir(), join(folder, "outside"));
  const bad = [
    "../x",
    "/etc/passwd",
    "outside/x",
    "sub",
    ".",
    "missing/x",
    ".holdfast-fence.db",
    "",
  ];
  for (const resource of bad)
    await expect(fence.replace(resource, by(1n), "x"), resource).rejects.toMatchObject(INVALID);
  expect(readdirSync(folder).sort()).toEqual([".holdfast-fence.db", "outside", "sub"]);
});

test("a folder that is missing, and a file in place of a folder, are refused", async () => {
  const { folder } = await open();
  writeFileSync(join(folder, "file"), "");
  for (const bad of [join(folder, "missing"), join(folder, "file"), "", undefined])
    await expect(openFileFence(bad as string)).rejects.toMatchObject(INVALID);
});

test("a link to the folder leads to the same numbers", async () => {
  const { folder, fence } = await open();
  const link = `${folder}-link`;
  symlinkSync(folder, link);
  onTestFinished(() => rmSync(link));
  const second = await openFileFence(link);
  onTestFinished(() => second.close());
  await fence.enter(undefined, "report", by(7n));
  expect(await second.highest(undefined, "report")).toBe(7n);
  await expect(second.replace("report", by(6n), "x")).rejects.toMatchObject({
    code: "STALE_TOKEN",
  });
});

test("a reader of the numbers does not keep a holder from writing", async () => {
  const { folder, fence } = await open();
  await fence.enter(undefined, "report", by(1n));
  const reader = await openSqlite(join(folder, ".holdfast-fence.db"));
  onTestFinished(() => void reader.close());
  reader.exec("BEGIN");
  reader.prepare("SELECT * FROM holdfast_fence").all();
  await fence.replace("report", by(1n), "one");
  expect(readFileSync(join(folder, "report"), "utf8")).toBe("one");
  reader.exec("COMMIT");
});

test.skipIf(process.geteuid?.() !== 0)("an existing file keeps its owner and group", async () => {
  const { folder, fence } = await open();
  const path = join(folder, "report");
  writeFileSync(path, "old");
  chownSync(path, 1, 2);
  chmodSync(path, 0o2750);
  await fence.replace("report", by(1n), "new");
  const { uid, gid, mode } = statSync(path);
  expect([uid, gid, mode & 0o7777]).toEqual([1, 2, 0o2750]);
});

test("an existing file keeps rights that the umask would take away", async () => {
  const { folder, fence } = await open();
  const path = join(folder, "report");
  writeFileSync(path, "");
  chmodSync(path, 0o666);
  await fence.replace("report", by(1n), "one");
  expect(statSync(path).mode & 0o777).toBe(0o666);
});

test("a link to a file and the file are one resource, and the link stays", async () => {
  const { folder, fence } = await open();
  writeFileSync(join(folder, "report"), "old");
  symlinkSync("report", join(folder, "latest"));
  symlinkSync("../report", join(folder, "dangling"));
  await fence.replace("latest", by(2n), "new");
  expect(lstatSync(join(folder, "latest")).isSymbolicLink()).toBe(true);
  expect(readFileSync(join(folder, "report"), "utf8")).toBe("new");
  await expect(fence.replace("report", by(1n), "x")).rejects.toMatchObject({ code: "STALE_TOKEN" });
  await expect(fence.replace("dangling", by(1n), "x")).rejects.toMatchObject(INVALID);
});

test("a file in place of a folder is refused", async () => {
  const { folder, fence } = await open();
  writeFileSync(join(folder, "file"), "");
  await expect(fence.enter(undefined, "file/x", by(1n))).rejects.toMatchObject(INVALID);
});

test.each([
  ["its numbers were deleted", (folder: string) => rmSync(join(folder, ".holdfast-fence.db"))],
  [
    "the folder was exchanged for another",
    (folder: string) => {
      renameSync(folder, `${folder}-old`);
      onTestFinished(() => rmSync(`${folder}-old`, { recursive: true }));
      mkdirSync(folder);
    },
  ],
])("a fence refuses to go on after %s", async (_what, change) => {
  const { folder, fence } = await open();
  await fence.enter(undefined, "report", by(1n));
  change(folder);
  const next = await openFileFence(folder);
  onTestFinished(() => next.close());
  await next.replace("report", by(2n), "two");
  const refusal = { code: "STORE_UNAVAILABLE", retryable: false };
  await expect(fence.replace("report", by(1n), "one")).rejects.toMatchObject(refusal);
  await expect(fence.enter(undefined, "report", by(3n))).rejects.toMatchObject(refusal);
  await expect(fence.guard(undefined, "report", by(3n))).rejects.toMatchObject(refusal);
  await expect(fence.highest(undefined, "report")).rejects.toMatchObject(refusal);
  expect(readFileSync(join(folder, "report"), "utf8")).toBe("two");
});

test("a file in a folder with a fence of its own has one number, not two", async () => {
  const { folder, fence } = await open();
  mkdirSync(join(folder, "sub"));
  await fence.replace("sub/report", by(1n), "one");
  const inner = await openFileFence(join(folder, "sub"));
  onTestFinished(() => inner.close());
  await inner.replace("report", by(2n), "two");
  await expect(fence.replace("sub/report", by(1n), "one")).rejects.toThrow(/fence of its own/);
  expect(readFileSync(join(folder, "sub/report"), "utf8")).toBe("two");
});

test("a number is kept through a power cut: the folder is synced after the journal is deleted", async () => {
  await open();
  const EXTRA = 3;
  expect(opened.at(-1)!.prepare("PRAGMA synchronous").get()).toEqual({ synchronous: EXTRA });
});

test("the content is synced before the rename, and the folder after it", async () => {
  const { fence } = await open();
  steps.length = 0;
  await fence.replace("report", by(1n), "one");
  expect(steps).toEqual(["sync the file", "rename", "sync the folder"]);
});

test("a holder that is overtaken after it has entered changes nothing", async () => {
  const { folder, fence } = await open();
  const other = await openSqlite(join(folder, ".holdfast-fence.db"));
  onTestFinished(() => void other.close());
  await fence.replace("report", by(1n), "one");
  for (const change of [
    () => fence.replace("report", by(1n), "late"),
    () => fence.remove("report", by(1n)),
  ]) {
    other.exec("UPDATE holdfast_fence SET highest = 1");
    let transactions = 0;
    onTestFinished(() => {
      beforeExec = () => {};
    });
    beforeExec = (sql) => {
      // The first transaction enters, the second one changes the file.
      if (sql !== "BEGIN IMMEDIATE" || ++transactions !== 2) return;
      other.exec("UPDATE holdfast_fence SET highest = 2");
    };
    await expect(change()).rejects.toMatchObject({ code: "STALE_TOKEN", highest: 2n });
    expect(transactions).toBe(2);
    expect(readFileSync(join(folder, "report"), "utf8")).toBe("one");
  }
});

test("a state file with a second name is refused", async () => {
  const { folder } = await open();
  linkSync(join(folder, ".holdfast-fence.db"), join(folder, "second"));
  await expect(openFileFence(folder)).rejects.toMatchObject({ code: "UNSUPPORTED" });
});

test("a fence that is closed twice is closed once", async () => {
  const { fence } = await open();
  fence.close();
  fence.close();
  await expect(fence.replace("report", by(1n), "late")).rejects.toMatchObject({
    code: "STORE_UNAVAILABLE",
  });
});
