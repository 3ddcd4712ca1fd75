import { setTimeout as pause } from "node:timers/promises";
import type { Redis } from "ioredis";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { RecordWrite } from "../../../src/core/records.js";
import type { RedisStore } from "../../../src/stores/redis/index.js";
import { meterKeyOf, recordKeyOf } from "../../../src/stores/redis/keys.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { ruleRuns } from "../../support/chance.js";
import { describeWith } from "../../support/needs.js";
import { compareRecordsWithRule } from "../../support/records-comparison.js";
import { byIoredis, byNodeRedis, rawRedis } from "../../support/redis.js";

const HOUR_MS = 3_600_000;
const TAKE = { key: "key", units: 1, limit: 1, perUs: HOUR_MS * 1_000, burst: 1 };

const writeOf = (key: string, more: Partial<RecordWrite> = {}): RecordWrite => ({
  key,
  value: "value",
  version: `version of ${key}`,
  keepMs: HOUR_MS,
  condition: { kind: "absent" },
  ...more,
});

describeWith(["redis"], "records on Redis", () => {
  let lab: Lab;
  let server: RedisServer;
  let stores: readonly RedisStore[];

  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis();
    stores = await Promise.all([byIoredis(server.url), byNodeRedis(server.url)]);
  });
  afterAll(async () => {
    for (const store of stores ?? []) await store.close();
    await lab.close();
  });

  async function meterOf(raw: Redis, key: string) {
    const text = await raw.get(meterKeyOf(key));
    if (text === null) return null;
    const [, sinceUs, usedUnits, fullAtUs] = text.split(/[: ]/).map(Number);
    return { sinceUs: sinceUs!, usedUnits: usedUnits!, fullAtUs: fullAtUs! };
  }

  test("reply like the rule in TypeScript", { timeout: 120_000 }, async () => {
    const raw = await rawRedis(server.url);
    const met = await compareRecordsWithRule(
      {
        clients: stores.map(({ records }) => records),
        pass: pause,
        nowUs: () => Math.floor((performance.timeOrigin + performance.now()) * 1_000),
        meterOf: (key) => meterOf(raw, key),
      },
      ruleRuns(8, 0, 15),
    );
    for (const [what, times] of Object.entries(met)) expect(times, what).toBeGreaterThan(2);
  });

  test("leave the server by themselves", async () => {
    const raw = await rawRedis(server.url);
    const [{ records }] = stores as [RedisStore, RedisStore];
    await records.write(writeOf("left", { keepMs: 500.25 }));
    const left = await raw.pttl(recordKeyOf("left"));
    expect(left).toBeGreaterThan(0);
    expect(left).toBeLessThanOrEqual(501);
    await records.take({ ...TAKE, key: "left" });
    const meterLeft = await raw.pttl(meterKeyOf("left"));
    expect(meterLeft).toBeGreaterThan(HOUR_MS - 60_000);
    expect(meterLeft).toBeLessThanOrEqual(HOUR_MS + 1);
  });

  test("a record whose time is further off than its keep, because the clock was set back, ends in its keep", async () => {
    const raw = await rawRedis(server.url);
    const [{ records }] = stores as [RedisStore, RedisStore];
    for (const [key, request] of [
      ["ahead when read", (key: string) => records.read(key)],
      ["ahead when written", (key: string) => records.write(writeOf(key, { version: "other" }))],
    ] as const) {
      await records.write(writeOf(key));
      await raw.pexpire(recordKeyOf(key), 10 * HOUR_MS);
      await request(key);
      expect(await raw.pttl(recordKeyOf(key))).toBeLessThanOrEqual(HOUR_MS);
    }
  });

  test("a replica answers nothing, because what it has may be old", async () => {
    const replica = await lab.redis({ config: { replicaof: `${server.address} ${server.port}` } });
    const [{ records }] = stores as [RedisStore, RedisStore];
    await records.write(writeOf("replicated"));
    await records.take({ ...TAKE, key: "replicated" });
    const store = await byIoredis(replica.url);
    const { records: stale } = store;
    for (const request of [
      () => stale.read("replicated"),
      () => stale.read("missing"),
      () => stale.write(writeOf("replicated", { version: "other" })),
      () => stale.take({ ...TAKE, key: "replicated" }),
      () => stale.take({ ...TAKE, key: "replicated", units: 0 }),
    ]) {
      await expect(request()).rejects.toThrow(/READONLY/);
    }
    await store.close();
  });

  test("keys of another format or of others are refused, and left as they are", async () => {
    const raw = await rawRedis(server.url);
    const [{ records }] = stores as [RedisStore, RedisStore];
    const take = (key: string) => records.take({ ...TAKE, key });
    await raw.hset(recordKeyOf("newer"), { format: "2", version: "a" });
    await expect(records.read("newer")).rejects.toThrow("format 2");
    await raw.hset(recordKeyOf("hash"), { field: "1" });
    await expect(records.write(writeOf("hash"))).rejects.toThrow("not Holdfast's");
    expect(await raw.hgetall(recordKeyOf("hash"))).toEqual({ field: "1" });
    await raw.set(recordKeyOf("text"), "text");
    await expect(records.read("text")).rejects.toThrow("not Holdfast's");
    await raw.set(meterKeyOf("newer"), "2:1 1 1");
    await expect(take("newer")).rejects.toThrow("format 2");
    await raw.set(meterKeyOf("text"), "text");
    await expect(take("text")).rejects.toThrow("not Holdfast's");
    await raw.rpush(meterKeyOf("list"), "1");
    await expect(take("list")).rejects.toThrow("not Holdfast's");
  });

  test("a written record waits for the replicas that the store requires", async () => {
    const store = await byIoredis(server.url, { replicas: 16 });
    const write = writeOf("unreplicated");
    await expect(store.records.write(write)).rejects.toThrow(/of 16 required replicas/);
    // The same write again is executed once, and waits again.
    await expect(store.records.write(write)).rejects.toThrow(/of 16 required replicas/);
    expect(await store.records.read("unreplicated")).toMatchObject({ version: write.version });
    await store.close();
  });
});
