import { mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, onTestFinished, test, vi } from "vitest";
import { flawsOf } from "../../../src/stores/etcd/versions.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { findFile } from "../../../src/verify/lab/requirements.js";
import { lackingRight } from "../../../src/verify/lab/rights.js";
import { withFlaws } from "../../../src/verify/targets/etcd.js";
import { withFenceServer } from "../../../src/verify/targets/fence-server.js";
import { LAB_TARGETS } from "../../../src/verify/targets/index.js";
import {
  limited,
  unknownFaults,
  verifyInLab,
  withoutClocks,
  withTarget,
} from "../../../src/verify/targets/open.js";
import { sqliteTarget } from "../../../src/verify/targets/sqlite.js";
import { kindOf, paperTarget } from "../runner/fakes.js";

afterEach(() => {
  vi.unstubAllEnvs();
});

const TARGET = paperTarget({
  kinds: [
    kindOf("worker paused", { hits: "worker" }),
    kindOf("worker killed", { hits: "worker" }),
    kindOf("cut", { hits: "connection" }),
    kindOf("server paused"),
  ],
});

const namesOf = (faults: readonly string[] | undefined): readonly string[] =>
  limited(TARGET, faults).kinds.map(({ name }) => name);

test("faults are chosen by their names, or by what they hit", () => {
  expect(namesOf(undefined)).toHaveLength(4);
  expect(namesOf(["cut"])).toEqual(["cut"]);
  expect(namesOf(["worker"])).toEqual(["worker paused", "worker killed"]);
  expect(namesOf(["server", "worker killed", "worker killed"])).toEqual([
    "worker killed",
    "server paused",
  ]);
  expect(namesOf(["none"])).toEqual([]);
  expect(namesOf(["none", "cut"])).toEqual([]);
});

test("a target that is limited to some faults is unchanged in everything else", async () => {
  let url = "paper:1";
  const moving = Object.defineProperty(paperTarget(), "url", { get: () => url });
  const less = limited(moving, ["worker"]);
  url = "paper:2";
  expect([less.url, less.name, less.ttlsMs]).toEqual(["paper:2", moving.name, moving.ttlsMs]);
  expect(limited(moving, undefined)).toBe(moving);
  expect(moving.kinds.length).toBeGreaterThan(less.kinds.length);
});

test("names that are no fault of a target are reported", () => {
  expect(unknownFaults(TARGET, ["cut", "worker", "none"])).toEqual([]);
  expect(unknownFaults(TARGET, ["cuts", "files", ""])).toEqual(["cuts", "files", ""]);
});

test("each fault of a lab has a name of its own, and a reason if it breaks a promise", async () => {
  await withTarget({ lab: "sqlite" }, undefined, async ({ kinds, isOurs }) => {
    expect(isOurs).toBe(true);
    const names = kinds.map(({ name }) => name);
    expect(new Set(names).size).toBe(names.length);
    for (const { breaks, because, name } of kinds) {
      expect(because === undefined, name).toBe(breaks === undefined);
    }
  });
});

test("a fault that this machine can't make is left out with a reason, never silently", async () => {
  const rare = {
    "disk full": lackingRight("loop mounts"),
    "worker of another user": process.getuid?.() === 0 ? null : "only root",
  };
  await withTarget({ lab: "sqlite" }, undefined, async ({ kinds, leftOut = [] }) => {
    for (const [fault, lacking] of Object.entries(rare)) {
      expect(
        kinds.some(({ name }) => name === fault),
        fault,
      ).toBe(lacking === null);
      const because = leftOut.find(({ name }) => name === fault)?.because;
      if (lacking === null) expect(because, fault).toBe(undefined);
      else expect(because, fault).toContain(lacking);
    }
  });
});

test("faults that set a clock are left out with a reason where no clock can be set", async () => {
  await using lab = await Lab.open();
  await using target = await sqliteTarget(lab, false);
  for (const [one, names] of [
    [paperTarget(), ["worker clock jumps"]],
    [target, ["machine clock jumps"]],
  ] as const) {
    const { kinds, leftOut = [], url } = withoutClocks(one, "apt-get install faketime");
    expect(kinds.filter(({ name }) => name.includes("clock"))).toEqual([]);
    expect(kinds).toHaveLength(one.kinds.length - 1);
    const clocks = leftOut.filter(({ name }) => name.includes("clock"));
    expect(clocks.map(({ name }) => name)).toEqual(names);
    expect(clocks[0]!.because).toContain("(apt-get install faketime)");
    expect(leftOut).toEqual(expect.arrayContaining([...(one.leftOut ?? [])]));
    expect(url).toBe(one.url);
  }
});

/** A PATH with no server, but with what cleans up after a lab. */
function pathWithoutServers(): string {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-path-"));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  for (const tool of ["sh", "cat", "ls", "awk", "sleep", "rm"]) {
    symlinkSync(findFile(tool)!, join(folder, tool));
  }
  return folder;
}

test("servers that are not installed are named with what installs them, and that is no bug", async () => {
  vi.stubEnv("PATH", pathWithoutServers());
  const act = () => Promise.reject(new Error("it must not begin"));
  await expect(withTarget({ lab: "redis" }, undefined, act)).rejects.toMatchObject({
    code: "UNSUPPORTED",
    message: expect.stringMatching(/^the lab redis starts servers that .*: .*install .*redis/),
  });
  await expect(withFenceServer("etcd", act)).rejects.toMatchObject({
    code: "UNSUPPORTED",
    message: expect.stringMatching(/^the fence etcd needs a server that .*: .*install .*etcd/),
  });
});

test("a lab on another system than Linux is refused, and that is no bug", async () => {
  const platform = Object.getOwnPropertyDescriptor(process, "platform")!;
  onTestFinished(() => void Object.defineProperty(process, "platform", platform));
  Object.defineProperty(process, "platform", { ...platform, value: "darwin" });
  await expect(Lab.open()).rejects.toMatchObject({
    code: "UNSUPPORTED",
    message: expect.stringContaining("holdfast verify --store URL works without a lab"),
  });
});

test.each([
  [["flood"], 'sqlite has no fault "flood"; holdfast verify --lab sqlite --faults list'],
  [["worker", "flood"], 'sqlite has no fault "flood"'],
  [["none", "worker"], `"none" can't be combined with other faults`],
])("verifyInLab refuses the faults %j", async (faults, message) => {
  await expect(verifyInLab("sqlite", { faults, runs: 1 })).rejects.toMatchObject({
    code: "INVALID_ARGUMENT",
    message: expect.stringContaining(message),
  });
});

test("the labs are those that the docs list", () => {
  expect(Object.keys(LAB_TARGETS)).toEqual([
    "sqlite",
    "redis",
    "redis-replica",
    "redis-cluster",
    "redlock",
    "postgres",
    "postgres-session",
    "postgres-standby",
    "pgbouncer",
    "etcd",
    "etcd-cluster",
    "zookeeper",
    "zookeeper-cluster",
  ]);
});

test.each([
  ["3.4.23", true, true],
  ["3.4.31", false, true],
  ["3.5.12", true, false],
  ["3.5.13", false, false],
  ["3.6.0", false, false],
])("a cluster of etcd %s excuses only what its version breaks", (version, revokes, bringsBack) => {
  const { names } = flawsOf(version, 3);
  const kind = (name: string) => withFlaws(kindOf(name), names);
  for (const name of ["member paused", "leader paused"])
    expect(kind(name).breaks !== undefined, name).toBe(revokes);
  expect(kind("leader killed").breaks).toBeUndefined();
  expect(kind("space used up").excludes !== undefined).toBe(bringsBack);
});
