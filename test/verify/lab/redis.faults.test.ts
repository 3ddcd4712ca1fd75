import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import {
  hasOpenSlots,
  moveSlot,
  ownerOfSlot,
  repairCluster,
  startRedisCluster,
} from "../../../src/verify/lab/redis-cluster.js";
import { describeWith } from "../../support/needs.js";
import { verbs } from "./verbs.js";

describeWith(["redis"], "Redis in the lab", () => {
  let lab: Lab;
  let redis: RedisServer;
  beforeAll(async () => {
    lab = await Lab.open();
    redis = await lab.redis({ persistence: "always" });
  });
  afterAll(() => lab.close());

  verbs({
    server: () => redis,
    write: (value) => redis.cli("set", "key", value),
    read: async () => (await redis.cli("get", "key")) || null,
  });

  describe("after a kill", () => {
    test.each([
      { persistence: "none", kept: "", appendonly: "no", appendfsync: "everysec" },
      { persistence: "everysec", kept: "value", appendonly: "yes", appendfsync: "everysec" },
      { persistence: "always", kept: "value", appendonly: "yes", appendfsync: "always" },
    ] as const)(
      "has what persistence $persistence keeps",
      async ({ persistence, kept, ...settings }) => {
        const server = await lab.redis({ persistence });
        for (const [name, value] of Object.entries(settings)) {
          expect(await server.cli("config", "get", name)).toBe(`${name}\n${value}`);
        }
        await server.cli("set", "key", "value");
        await server.restart();
        expect(await server.cli("get", "key")).toBe(kept);
        await server.stop();
      },
    );
  });

  test("has replicas that follow, and stay primaries once they are promoted", async () => {
    const primary = await lab.redis();
    const replica = await lab.redis({ replicaOf: primary, persistence: "always" });
    await primary.cli("set", "key", "value");
    await replica.synced();
    expect(await replica.cli("get", "key")).toBe("value");
    await expect(replica.cli("set", "key", "other")).rejects.toThrow("READONLY");

    await primary.kill();
    await replica.promote();
    await replica.restart();
    expect(await replica.cli("set", "key", "other")).toBe("OK");
    await expect(replica.synced()).rejects.toThrow("is not a replica");
  });

  test("has independent nodes that take settings", async () => {
    const nodes = await lab.redisNodes(5, { config: { "maxmemory-policy": "noeviction" } });
    expect(new Set(nodes.map(({ port }) => port)).size).toBe(5);
    expect(new Set(nodes.map(({ name }) => name)).size).toBe(5);
    await nodes[0]!.cli("set", "key", "value");
    expect(await nodes[1]!.cli("get", "key")).toBe("");
    expect(await nodes[4]!.cli("config", "get", "maxmemory-policy")).toContain("noeviction");
  });

  test("moves a slot of a cluster as soon as the nodes let it, and ends a move that was left half done", async () => {
    const servers = await startRedisCluster(lab, { persistence: "always" });
    const slot = await servers[0]!.cli("cluster", "keyslot", "{a}1");
    const source = await ownerOfSlot(servers, slot);
    const [target, third] = servers.filter((one) => one !== source) as [RedisServer, RedisServer];
    for (const key of ["{a}1", "{a}2", "{a}3"]) await source.cli("set", key, "value");
    await target.cli("config", "set", "maxmemory", "1");
    let isRefused = (): void => {};
    const refused = new Promise<void>((resolve) => {
      isRefused = resolve;
    });
    const moving = moveSlot(servers, slot, source, target, async () => {
      await target.kill();
      isRefused();
    });
    await target.cli("config", "set", "maxmemory", "0");
    await refused;
    expect(await hasOpenSlots([source])).toBe(true);
    await target.start();
    await moving;
    expect(await hasOpenSlots(servers)).toBe(false);
    expect(await ownerOfSlot(servers, slot)).toBe(target);
    expect(await target.cli("cluster", "countkeysinslot", slot)).toBe("3");

    const [from, to] = await Promise.all([target, third].map((one) => one.cli("cluster", "myid")));
    await third.cli("cluster", "setslot", slot, "importing", from!);
    await target.cli("cluster", "setslot", slot, "migrating", to!);
    expect(await hasOpenSlots(servers)).toBe(true);
    await repairCluster(servers);
    expect(await hasOpenSlots(servers)).toBe(false);
  });

  test("counts commands by name, those of scripts too", async () => {
    await redis.restart();
    await redis.cli("eval", "redis.call('set', 'a', 1) return redis.call('incr', 'a')", "0");
    await redis.cli("get", "a");
    expect(Object.fromEntries(await redis.calls())).toEqual({ eval: 1, set: 1, incr: 1, get: 1 });
    expect(await redis.commands()).toBe(4);
  });
});
