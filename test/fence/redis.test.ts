import { Cluster, Redis } from "ioredis";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { type RedisTx, redisFence } from "../../src/fence/redis.js";
import { Lab } from "../../src/verify/lab/lab.js";
import type { RedisServer } from "../../src/verify/lab/redis.js";
import { startRedisCluster } from "../../src/verify/lab/redis-cluster.js";
import { describeWith } from "../support/needs.js";
import { quiet } from "../support/redis.js";

const by = (token: bigint) => ({ token, floor: token });
const STALE = { code: "STALE_TOKEN" };
const INVALID = { code: "INVALID_ARGUMENT" };

describeWith(["redis"], "the fence in Redis", () => {
  let lab: Lab;
  let server: RedisServer;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis();
  });
  afterAll(() => lab?.close());

  function open(options: object = {}): Redis {
    const client = quiet(new Redis(server.url, options));
    onTestFinished(() => client.disconnect());
    return client;
  }

  test("replies come back in order, of every type", async () => {
    const fence = redisFence(open());
    const tx: RedisTx = {
      commands: [
        ["SET", "replies", "6"],
        ["INCRBY", "replies", 4],
        ["GET", "nothing"],
        ["RPUSH", "list", "a", "b"],
        ["LRANGE", "list", 0, -1],
      ],
    };
    await fence.guard(tx, "replies", by(1n));
    expect(await fence.commit(tx)).toEqual(["OK", 10, null, 2, ["a", "b"]]);
  });

  test("a transaction that guards several resources runs only if none of them refuses", async () => {
    const client = open();
    const fence = redisFence(client);
    await fence.enter(undefined, "two", by(9n));
    const tx: RedisTx = { commands: [["SET", "several", "1"]] };
    await fence.guard(tx, "one", by(5n));
    await fence.guard(tx, "two", by(8n));
    await expect(fence.commit(tx)).rejects.toMatchObject({
      ...STALE,
      resource: "two",
      highest: 9n,
    });
    expect(await client.get("several")).toBeNull();
    expect(await fence.highest(undefined, "one")).toBe(0n);
  });

  test("a command that fails rejects, and says which data it was", async () => {
    const client = open();
    const fence = redisFence(client);
    await client.set("text", "abc");
    const tx: RedisTx = {
      commands: [
        ["SET", "before", "1"],
        ["INCR", "text"],
        ["SET", "after", "1"],
      ],
    };
    await fence.guard(tx, "text", by(1n));
    await expect(fence.commit(tx)).rejects.toThrow(/not an integer/);
    expect(await client.mget("before", "after")).toEqual(["1", null]);
  });

  test("a key that holds something else is refused, and stays", async () => {
    const client = open();
    const fence = redisFence(client);
    for (const [value, words] of [
      ["mine", /no fence/],
      ["2:00000000000000000007", /format "2"/],
    ] as const) {
      await client.set(fence.keyOf("foreign"), value);
      await expect(fence.enter(undefined, "foreign", by(1n))).rejects.toThrow(words);
      await expect(fence.highest(undefined, "foreign")).rejects.toThrow(words);
      expect(await client.get(fence.keyOf("foreign"))).toBe(value);
    }
  });

  test("a key prefix of the client belongs to the fence too, and the key never expires", async () => {
    const client = open({ keyPrefix: "app:" });
    const fence = redisFence(client);
    await fence.enter(undefined, "stock", by(3n));
    expect(await open().get("app:holdfast:fence:{stock}")).toBe("1:00000000000000000003");
    expect(await open().ttl("app:holdfast:fence:{stock}")).toBe(-1);
    expect(await fence.highest(undefined, "stock")).toBe(3n);
    await fence.reset(undefined, "stock", 1n);
    expect(await fence.highest(undefined, "stock")).toBe(1n);
  });

  test("transactions that are none, or not guarded, are refused", async () => {
    const fence = redisFence(open());
    for (const bad of [
      null,
      {},
      { commands: "SET" },
      { commands: [[]] },
      { commands: [["SET", null]] },
    ])
      await expect(fence.guard(bad as never, "stock", by(1n))).rejects.toMatchObject(INVALID);
    await expect(fence.commit({ commands: [] })).rejects.toThrow(/not guarded/);
    expect(() => redisFence("redis://localhost" as never)).toThrow(/redisFence\(\) can't use/);
  });

  test("commands that were added after guard are part of the transaction", async () => {
    const client = open();
    const fence = redisFence(client);
    const tx: RedisTx = { commands: [] };
    await fence.guard(tx, "late", by(1n));
    tx.commands.push(["SET", "late", "1"]);
    await fence.commit(tx);
    expect(await client.get("late")).toBe("1");
  });

  describe("in a cluster", () => {
    test("works with a hash tag, and says what to do without", async () => {
      const servers = await startRedisCluster(lab);
      const nodes = servers.map(({ address, port }) => ({ host: address, port }));
      const cluster = quiet(new Cluster(nodes));
      onTestFinished(() => cluster.disconnect());
      const fence = redisFence(cluster);
      for (const resource of ["stock:{hat}", "hat"]) {
        const tx: RedisTx = { commands: [["SET", "count:{hat}", "6"]] };
        await fence.guard(tx, resource, by(2n));
        expect(await fence.commit(tx)).toEqual(["OK"]);
        await expect(fence.enter(undefined, resource, by(1n))).rejects.toMatchObject(STALE);
      }
      // Some of these are on the node of the fence's key, by chance.
      const refusals: string[] = [];
      for (let i = 0; i < 12; i++) {
        const tx: RedisTx = { commands: [["SET", `count:{other ${i}}`, "6"]] };
        await fence.guard(tx, "hat", by(2n));
        await fence.commit(tx).catch((error: Error) => refusals.push(error.message));
      }
      expect(refusals.length).toBeGreaterThan(0);
      for (const message of refusals) expect(message).toMatch(/hash tag/);
    }, 60_000);
  });
});
