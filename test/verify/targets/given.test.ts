import { describe, expect, onTestFinished, test } from "vitest";
import { parseStoreUrl } from "../../../src/stores/registry.js";
import type { Target } from "../../../src/verify/runner/target.js";
import type { Way } from "../../../src/verify/runner/way.js";
import { givenTarget } from "../../../src/verify/targets/given.js";

async function wayOf(url: string): Promise<Way> {
  const way = await givenTarget(url).openWay("w1");
  onTestFinished(() => way.close());
  return way;
}

const hitsOf = ({ kinds }: Target): readonly string[] => [
  ...new Set(kinds.map(({ hits }) => hits)),
];

describe("the way through proxies to a user's store", () => {
  test.each([
    "redis://127.0.0.1:6390",
    "redis://127.0.0.1:6390/2",
    "redis://user:secret@127.0.0.1:6390/2?replicas=1",
    "redis://:secret@127.0.0.1",
    "redis://user%40home:p%3Aa%2Fs%3Fs%20w%26%23%25@127.0.0.1:6390/7?replicas=2",
    "redis://[::1]:6390/1",
    "etcd://root:p%40ss@127.0.0.1:23790,127.0.0.1:23791",
    "etcd://127.0.0.1",
    "zookeeper://127.0.0.1:21810,127.0.0.1/locks",
  ])("keeps all of %s but its hosts", async (url) => {
    const way = await wayOf(url);
    const { hosts: before, ...rest } = parseStoreUrl(url);
    const { hosts: after, ...rewritten } = parseStoreUrl(way.url);
    expect(rewritten).toEqual(rest);
    expect(way.proxies).toHaveLength(before.length);
    expect(after).toHaveLength(before.length);
    expect(after).not.toEqual(before);
    for (const { host } of after) expect(host).toBe("127.0.0.1");
  });

  test("has proxies of its own for each worker", async () => {
    const target = givenTarget("redis://127.0.0.1:6390");
    const ways = [await target.openWay("w1"), await target.openWay("w2")];
    for (const way of ways) onTestFinished(() => way.close());
    expect(ways[0]!.url).not.toBe(ways[1]!.url);
  });
});

describe("a user's store that no proxy can stand before", () => {
  test.each([
    "rediss://user:secret@127.0.0.1:6390",
    "redis://127.0.0.1:6390,127.0.0.1:6391?cluster",
    "redis://127.0.0.1:26379?sentinel=main",
    "etcd://127.0.0.1:2379?tls=1",
    "zookeeper://127.0.0.1:2181?tls=1",
    "sqlite:/tmp/locks.db",
  ])("is reached directly, and faults hit only workers: %s", async (url) => {
    const target = givenTarget(url);
    const way = await wayOf(url);
    expect(way.url).toBe(url);
    expect(way.proxies).toEqual([]);
    expect(hitsOf(target)).toEqual(["worker"]);
  });
});

test("a store in memory is refused: workers are processes of their own", () => {
  expect(() => givenTarget("memory:")).toThrow(/memory: lives in one process.*holdfast simulate/);
});

test("a user's store is not ours: faults never hit its servers and clocks", () => {
  for (const url of ["redis://127.0.0.1", "etcd://127.0.0.1", "sqlite:/tmp/locks.db"]) {
    const target = givenTarget(url);
    expect(target.isOurs).toBe(false);
    expect(hitsOf(target).filter((one) => one !== "worker" && one !== "connection")).toEqual([]);
    expect(target.kinds.map(({ name }) => name)).not.toContain("worker clock jumps");
  }
});

test("a worker on a user's SQLite file is never paused in a transaction that locks out others", () => {
  const names = (url: string) => givenTarget(url).kinds.map(({ name }) => name);
  expect(names("sqlite:/tmp/locks.db")).toEqual(["worker killed", "worker busy"]);
  expect(names("redis://127.0.0.1")).toContain("worker paused");
});

test("the description of a store does not show its password", () => {
  for (const url of ["redis://me:secret@db:6390/2", "etcd://me:secret@a:1,b:2"]) {
    const { about, name } = givenTarget(url);
    expect(`${about} ${name}`).not.toMatch(/secret|me/);
  }
  expect(givenTarget("redis://me:secret@db:6390/2").about).toBe("your redis store at db:6390");
  expect(givenTarget("etcd://a:1,b").about).toBe("your etcd store at a:1, b");
});
