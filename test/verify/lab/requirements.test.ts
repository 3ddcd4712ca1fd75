import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import {
  findFile,
  findProgram,
  hasApt,
  isRoot,
  KINDS,
  missing,
  packagesOf,
} from "../../../src/verify/lab/requirements.js";
import { lackingRight, RIGHTS } from "../../../src/verify/lab/rights.js";
import { describeWith, lacking, needs, skipUnless } from "../../support/needs.js";

const nothing = (): null => null;
const everything = (file: string): string => `/usr/bin/${file}`;

test("missing programs are named by package, each once", () => {
  expect(missing(KINDS, everything)).toBe(null);
  expect(missing([], nothing)).toBe(null);
  const all = missing(["postgres", "pgbouncer", "redis"], nothing)!;
  expect(all.packages).toEqual([
    ...["postgresql", "util-linux", "pgbouncer", "redis-server", "redis-tools"],
  ]);
  const withoutRedis = (file: string): string | null =>
    file === "redis-cli" ? null : everything(file);
  expect(missing(KINDS, withoutRedis)).toMatchObject({
    kinds: ["redis"],
    packages: ["redis-tools"],
  });
  expect(packagesOf(KINDS)).toContain("libzookeeper-java");
});

test("the advice is a line to paste", () => {
  const { advice } = missing(["etcd"], nothing)!;
  const line = "apt-get install -y --no-install-recommends etcd-server etcd-client";
  if (hasApt()) expect(advice).toBe(isRoot() ? line : `sudo ${line}`);
  else expect(advice).toBe("install what brings etcd, etcdctl");
});

test("programs are found in PATH", () => {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-path-"));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  writeFileSync(join(folder, "holdfast-tool"), "", { mode: 0o755 });
  writeFileSync(join(folder, "holdfast-text"), "", { mode: 0o644 });
  mkdirSync(join(folder, "holdfast-folder"));
  vi.stubEnv("PATH", `:${folder}`);
  onTestFinished(() => void vi.unstubAllEnvs());
  expect(findFile("holdfast-tool")).toBe(join(folder, "holdfast-tool"));
  expect(findFile("holdfast-text")).toBe(null);
  expect(findFile("holdfast-folder")).toBe(null);
  expect(() => findProgram("holdfast-text")).toThrow(/^holdfast-text is not installed$/);
  expect(() => findProgram("etcd", nothing)).toThrow(/etcd is not installed \(.*etcd/);
});

describeWith(["postgres", "zookeeper", "faketime", "spin"], "files outside PATH", () => {
  test("are found where Debian puts them", () => {
    vi.stubEnv("PATH", "");
    onTestFinished(() => void vi.unstubAllEnvs());
    expect(findFile("initdb")).toMatch(/postgresql|bin/);
    expect(findFile("zookeeper.jar")).toMatch(/zookeeper\.jar$/);
    expect(findFile("libfaketimeMT.so.1")).toMatch(/faketime\/libfaketimeMT\.so\.1$/);
    expect(findFile("stdio.h")).toBe("/usr/include/stdio.h");
  });
});

test("each right is available, or the answer says what is not permitted", () => {
  for (const right of RIGHTS) expect(lackingRight(right) ?? "permitted").toMatch(/permitted/);
});

test("a missing requirement skips the test, or fails it if everything is required", () => {
  const skip = vi.fn() as unknown as Parameters<typeof needs>[0]["skip"];
  skipUnless({ skip }, true, "no reason");
  expect(skip).not.toHaveBeenCalled();
  vi.stubEnv("HOLDFAST_REQUIRE_ALL", "");
  skipUnless({ skip }, false, "needs a moon");
  expect(skip).toHaveBeenCalledWith("needs a moon");
  vi.stubEnv("HOLDFAST_REQUIRE_ALL", "1");
  onTestFinished(() => void vi.unstubAllEnvs());
  expect(() => skipUnless({ skip }, false, "needs a moon")).toThrow("needs a moon");
});

test("needs() checks servers and rights", (context) => {
  needs(context, "redis", "nft");
  expect(lacking(["redis", "nft"])).toBe(null);
});
