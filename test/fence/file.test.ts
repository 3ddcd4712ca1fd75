import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { type FileFence, openFileFence } from "../../src/fence/file.js";
import { openSqlite } from "../../src/stores/sqlite/driver.js";

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
