import { expect, test } from "vitest";
import { flawsOf } from "../../../src/stores/etcd/versions.js";
import { lackingRight } from "../../../src/verify/lab/rights.js";
import { withFlaws } from "../../../src/verify/targets/etcd.js";
import { LAB_TARGETS } from "../../../src/verify/targets/index.js";
import { limited, unknownFaults, withTarget } from "../../../src/verify/targets/open.js";
import { kindOf, paperTarget } from "../runner/fakes.js";

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
