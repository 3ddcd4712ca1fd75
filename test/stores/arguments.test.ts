import { Redis } from "ioredis";
import { createClient } from "redis";
import { afterAll, describe, expect, it } from "vitest";
import { InvalidArgumentError } from "../../src/core/errors.js";
import { etcdFence } from "../../src/fence/etcd.js";
import { sqliteFence } from "../../src/fence/sqlite.js";
import { createLocks } from "../../src/locks.js";
import { etcdStore, guardTxn, openEtcdClient } from "../../src/stores/etcd/index.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { quorumStore } from "../../src/stores/quorum/index.js";
import { redisStore } from "../../src/stores/redis/index.js";
import { openSqlite, sqliteStore } from "../../src/stores/sqlite/index.js";

// biome-ignore lint/suspicious/noExplicitAny: what JavaScript can pass
type Wrong = any;

const redis = new Redis({ lazyConnect: true });
const etcd = await openEtcdClient({ endpoints: ["127.0.0.1:1"] });
const db = await openSqlite(":memory:");
afterAll(async () => {
  redis.disconnect();
  await etcd.close();
  db.close();
});

const refusal = async (call: () => unknown): Promise<string> => {
  try {
    await call();
  } catch (error) {
    expect(error).toBeInstanceOf(InvalidArgumentError);
    return (error as Error).message;
  }
  throw new Error("it was accepted");
};

describe("a misspelt option is refused by", () => {
  it.each<[string, (options: Wrong) => unknown]>([
    ["redisStore", (options) => redisStore(redis, options)],
    ["quorumStore", (options) => quorumStore([redis, redis, redis], options)],
    ["etcdStore", (options) => etcdStore(etcd, options)],
    ["sqliteStore", (options) => sqliteStore(db, options)],
    ["memoryStore", (options) => memoryStore(options)],
    ["etcdFence", (options) => etcdFence(etcd, options)],
    ["openEtcdClient", (options) => openEtcdClient({ endpoints: ["127.0.0.1:1"], ...options })],
  ])("%s", async (_, make) => {
    expect(await refusal(() => make({ typo: 1 }))).toMatch(/have no option "typo"; known: /);
  });

  it("guardTxn, also with a lease of another store", async () => {
    const locks = createLocks(memoryStore());
    const lease = await locks.acquire("name");
    expect(await refusal(() => guardTxn(lease, { typo: 1 } as Wrong))).toMatch(/no option "typo"/);
    await locks.close();
  });
});

describe("a value that is no client or connection is refused by", () => {
  it.each<[string, (wrong: Wrong) => unknown]>([
    ["redisStore", (wrong) => redisStore(wrong)],
    ["quorumStore", (wrong) => quorumStore(wrong)],
    ["quorumStore, in its list", (wrong) => quorumStore([wrong, wrong, redis])],
    ["etcdStore", (wrong) => etcdStore(wrong)],
    ["sqliteStore", (wrong) => sqliteStore(wrong)],
    ["etcdFence", (wrong) => etcdFence(wrong)],
    ["sqliteFence", (wrong) => sqliteFence(wrong)],
    ["openEtcdClient", (wrong) => openEtcdClient(wrong)],
    ["openSqlite", (wrong) => openSqlite(wrong)],
  ])("%s", async (_, make) => {
    for (const wrong of [undefined, null, 5, {}]) await refusal(() => make(wrong));
  });

  it("a fence in SQLite, for its argument tx", async () => {
    const fence = sqliteFence(db);
    for (const wrong of [null, 5, {}] as Wrong[]) {
      const message = await refusal(() => fence.guard(wrong, "r", { token: 1n, floor: 1n }));
      expect(message).toMatch(/^the tx is .*; pass the connection/);
    }
  });
});

it("an SQLite path instead of a connection is refused, and the message says what to write", async () => {
  for (const make of [sqliteStore, sqliteFence] as Wrong[]) {
    expect(await refusal(() => make("./locks.db"))).toMatch(/await openSqlite\(path\)/);
  }
});

it("a node-redis client that was never connected is reported as that", async () => {
  const client = createClient({ url: "redis://127.0.0.1:1" });
  const locks = createLocks(redisStore(client));
  await expect(locks.tryAcquire("name")).rejects.toThrow(
    "the client of redis://127.0.0.1:1 is closed: call await client.connect() before you use the locks",
  );
  await locks.close();
});
