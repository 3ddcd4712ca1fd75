import { expect, test } from "vitest";
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

test("a limited target is the same one in everything else", async () => {
  let url = "paper:1";
  const moving = Object.defineProperty(paperTarget(), "url", { get: () => url });
  const less = limited(moving, ["worker"]);
  url = "paper:2";
  expect([less.url, less.name, less.ttlsMs]).toEqual(["paper:2", moving.name, moving.ttlsMs]);
  expect(limited(moving, undefined)).toBe(moving);
  expect(moving.kinds.length).toBeGreaterThan(less.kinds.length);
});

test("names that are no fault of a target are told", () => {
  expect(unknownFaults(TARGET, ["cut", "worker", "none"])).toEqual([]);
  expect(unknownFaults(TARGET, ["cuts", "files", ""])).toEqual(["cuts", "files", ""]);
});

test("the faults of a lab have names of their own, and a reason for each promise they break", async () => {
  await withTarget({ lab: "sqlite" }, undefined, async ({ kinds, isOurs }) => {
    expect(isOurs).toBe(true);
    const names = kinds.map(({ name }) => name);
    expect(new Set(names).size).toBe(names.length);
    for (const { breaks, because, name } of kinds) {
      expect(because === undefined, name).toBe(breaks === undefined);
    }
  });
});

test("the labs are those of the docs", () => {
  expect(Object.keys(LAB_TARGETS)).toEqual([
    "sqlite",
    "redis",
    "redis-replica",
    "redis-cluster",
    "etcd",
    "etcd-cluster",
  ]);
});
