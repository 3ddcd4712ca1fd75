import { mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { openFileFence } from "../../src/fence/file.js";
import { canMountFuse, runOnFuse } from "../support/fuse.js";
import { skipUnless } from "../support/needs.js";

const NFS = 26985;
/** Paths that the system reports as NFS from now on. */
const onNfs = vi.hoisted(() => new Set<string>());

vi.mock("node:fs", async (importOriginal) => {
  const fs = await importOriginal<typeof import("node:fs")>();
  const statfsSync = (path: string): { type: number } =>
    onNfs.has(path) ? { type: NFS } : fs.statfsSync(path);
  return { ...fs, statfsSync };
});

function newFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-nfs-"));
  onTestFinished(() => {
    onNfs.clear();
    rmSync(folder, { recursive: true, force: true });
  });
  return folder;
}

test("a fence of files refuses a folder on a network file system, and leaves nothing there", async () => {
  const folder = newFolder();
  onNfs.add(folder);
  const opening = openFileFence(folder);
  await expect(opening).rejects.toMatchObject({ code: "UNSUPPORTED" });
  await expect(opening).rejects.toThrow(/lies on NFS, where locks on files do not reach/);
  expect(readdirSync(folder)).toEqual([]);
});

test("a fence of files refuses a folder on a file system that the system itself reports as FUSE", async (context) => {
  skipUnless(context, canMountFuse(), "needs the right to mount FUSE (CAP_SYS_ADMIN, /dev/fuse)");
  const program = `import { openFileFence } from "holdfast/fence/file";
    await openFileFence(process.argv[1]);`;
  const folder = newFolder();
  const output = await runOnFuse(folder, ["--input-type=module", "-e", program, folder]);
  expect(output).toContain("UnsupportedError");
  expect(output).toMatch(/lies on FUSE .* where locks on files do not reach/);
  expect(readdirSync(folder)).toEqual([]);
});

test("a fence of files refuses a file in a folder that is mounted from a network", async () => {
  const folder = newFolder();
  const mounted = join(folder, "mounted");
  mkdirSync(mounted);
  const fence = await openFileFence(folder);
  onTestFinished(() => fence.close());
  const lease = { token: 1n, floor: 1n };
  await fence.replace("mounted/report", lease, "local");
  onNfs.add(mounted);
  for (const step of [
    () => fence.enter(undefined, "mounted/report", lease),
    () => fence.guard(undefined, "mounted/report", lease),
    () => fence.replace("mounted/report", lease, "shared"),
    () => fence.remove("mounted/report", lease),
  ])
    await expect(step()).rejects.toMatchObject({ code: "UNSUPPORTED" });
  await fence.replace("report", lease, "local");
});
