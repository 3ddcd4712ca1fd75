import { describe, expect, onTestFinished, test } from "vitest";
import { parseStoreUrl } from "../../../src/stores/registry.js";
import type { Target } from "../../../src/verify/runner/target.js";
import type { Way } from "../../../src/verify/runner/way.js";
import { givenTarget } from "../../../src/verify/targets/given.js";

async function wayOf(url: string): Promise<Way> {
  const way = await (await givenTarget(url)).openWay("w1");
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
    "redlock://user:secret@127.0.0.1:6390,127.0.0.1:6391,127.0.0.1/2?maxTtl=30s",
    "postgres://user:p%40ss@127.0.0.1:54320/my%20locks%25?schema=holdfast",
    "postgresql://127.0.0.1?mode=session",
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
    const target = await givenTarget("redis://127.0.0.1:6390");
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
    "postgres://127.0.0.1:5432/app?tls=1",
    "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3?tls=1",
    "sqlite:/tmp/locks.db",
  ])("is reached directly, and faults hit only workers: %s", async (url) => {
    const target = await givenTarget(url);
    const way = await wayOf(url);
    expect(way.url).toBe(url);
    expect(way.proxies).toEqual([]);
    expect(hitsOf(target)).toEqual(["worker"]);
  });
});

test("a store in memory is refused: workers are processes of their own", async () => {
  await expect(givenTarget("memory:")).rejects.toThrow(
    /memory: lives in one process.*holdfast simulate/,
  );
});

test("a user's store is not ours: faults never hit its servers and clocks", async () => {
  for (const url of ["redis://127.0.0.1", "etcd://127.0.0.1", "sqlite:/tmp/locks.db"]) {
    const target = await givenTarget(url);
    expect(target.isOurs).toBe(false);
    expect(hitsOf(target).filter((one) => one !== "worker" && one !== "connection")).toEqual([]);
    expect(target.kinds.map(({ name }) => name)).not.toContain("worker clock jumps");
  }
});

test("a worker on a user's SQLite file is never paused in a transaction that locks out others", async () => {
  const names = async (url: string) => (await givenTarget(url)).kinds.map(({ name }) => name);
  expect(await names("sqlite:/tmp/locks.db")).toEqual(["worker killed", "worker busy"]);
  expect(await names("redis://127.0.0.1")).toContain("worker paused");
});

test("the description of a store does not show its password", async () => {
  for (const url of ["redis://me:secret@db:6390/2", "etcd://me:secret@a:1,b:2"]) {
    const { about, name } = await givenTarget(url);
    expect(`${about} ${name}`).not.toMatch(/secret|me/);
  }
  expect((await givenTarget("redis://me:secret@db:6390/2")).about).toBe(
    "your redis store at db:6390",
  );
  expect((await givenTarget("etcd://a:1,b")).about).toBe("your etcd store at a:1, b");
});

describe("a user's store is not asked for what it does not promise:", () => {
  test("a quorum refuses shared leases and permits, and keeps no order", async () => {
    const { cannot, limits } = await givenTarget("redlock://a,b,c");
    expect(Object.keys(cannot!)).toEqual(expect.arrayContaining(["shared", "permits"]));
    expect(limits.fair).toBe(false);
  });

  test("waiters may poll PostgreSQL, because a pooler may stand before it", async () => {
    expect((await givenTarget("postgres://db/app")).handoverMs).toBe(4_000);
    expect((await givenTarget("redis://db")).handoverMs).toBe(undefined);
  });

  test("locks of PostgreSQL sessions may be free before the holder of a lost connection knows", async () => {
    const breaksOf = async (url: string) =>
      (await givenTarget(url)).kinds.find(({ name }) => name === "connection cut")!.breaks;
    expect(await breaksOf("postgres://db/app?mode=session")).toContain("S1");
    expect(await breaksOf("postgres://db/app")).toEqual(["L4"]);
  });

  test("all leases of a client of ZooKeeper have one ttl", async () => {
    expect(Object.keys((await givenTarget("zookeeper://a")).cannot!)).toContain("own-ttl");
  });
});

test("each connection of a user's store is of a kind that faults can hit alone", async () => {
  const kinds = async (url: string) =>
    new Set((await givenTarget(url)).kinds.flatMap(({ name }) => name.match(/^\w+(?= cut)/) ?? []));
  const likeRedis = new Set(["connection", "commands", "subscription"]);
  expect(await kinds("redlock://a,b,c")).toEqual(likeRedis);
  expect(await kinds("postgres://db/app")).toEqual(likeRedis);
  expect(await kinds("postgresql://db/app?mode=session")).toEqual(new Set(["connection"]));
});
