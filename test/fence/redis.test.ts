import { readFileSync } from "node:fs";
import { Cluster, Redis } from "ioredis";
import { createClient, RESP_TYPES } from "redis";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { type RedisTx, redisFence } from "../../src/fence/redis.js";
import { TcpProxy } from "../../src/verify/faults/proxy.js";
import { Lab } from "../../src/verify/lab/lab.js";
import type { RedisServer } from "../../src/verify/lab/redis.js";
import { moveSlot, ownerOfSlot, startRedisCluster } from "../../src/verify/lab/redis-cluster.js";
import { until } from "../../src/verify/lab/until.js";
import { rejection } from "../core/helpers.js";
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

  test("a user with the rights of docs/fences.md can do all, and needs each of them", async () => {
    const page = readFileSync(new URL("../../docs/fences.md", import.meta.url), "utf8");
    const [, rules] = /^ACL SETUSER (.*?)^```/ms.exec(page)!;
    const [user, ...rights] = rules!.trim().split(/\s+/) as [string, ...string[]];
    await server.cli("acl", "setuser", user, ...rights);
    const client = open({ username: user, password: "PASSWORD" });
    const fence = redisFence(client);
    let token = 1n;
    const useAll = async (): Promise<void> => {
      const tx: RedisTx = { commands: [["SET", "count:{allowed}", 6]] };
      await fence.enter(undefined, "{allowed}", by(++token));
      await fence.guard(tx, "{allowed}", by(token), { strict: true });
      await fence.commit(tx);
      await fence.reset(undefined, "allowed:2", token);
      expect(await fence.highest(undefined, "allowed:2")).toBe(token);
      expect(await fence.list({ prefix: "allowed" })).toHaveLength(1);
    };
    await useAll();
    const commands = rights.filter((right) => right.startsWith("+"));
    expect(commands).toContain("+evalsha");
    for (const right of commands) {
      await server.cli("acl", "setuser", user, right.replace("+", "-"));
      await server.cli("script", "flush");
      await expect(useAll(), right).rejects.toThrow('docs/fences.md lists under "Keys and rights"');
      await server.cli("acl", "setuser", user, right);
    }
    await server.cli("acl", "setuser", user, "resetkeys", "~count:*");
    await expect(useAll()).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
      retryable: false,
      message: expect.stringContaining('docs/fences.md lists under "Keys and rights"'),
    });
  });

  test.each([
    ["the commandTimeout of its client", { commandTimeout: 200 }, {}],
    ["the 200 ms of the fence", {}, { timeout: 200 }],
  ])("a reply that is later than %s makes the fence unavailable", async (what, options, own) => {
    const silent = await lab.redis();
    const client = quiet(new Redis(silent.url, options));
    onTestFinished(() => client.disconnect());
    const fence = redisFence(client, own);
    await client.ping();
    await silent.pause();
    await expect(fence.enter(undefined, "late", by(1n))).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
      retryable: true,
      message: `no reply from ${silent.url} within ${what}`,
    });
    const tx: RedisTx = { commands: [["INCR", "late"]] };
    await fence.guard(tx, "late", by(1n));
    for (const [step, written] of [
      [fence.commit(tx), "What the commands write"],
      [fence.reset(undefined, "late", 1n), 'The number of "late"'],
    ] as const)
      await expect(step).rejects.toMatchObject({
        code: "STORE_UNAVAILABLE",
        retryable: false,
        message: expect.stringContaining(`${written} may have been written`),
      });
    await expect(fence.highest(undefined, "late")).rejects.toMatchObject({ retryable: true });
    await silent.resume();
  });

  test("a step that the client refuses to send may be repeated, whatever it writes", async () => {
    const proxy = await TcpProxy.open(server);
    onTestFinished(() => proxy.close());
    const client = quiet(new Redis(proxy.url, { enableOfflineQueue: false, lazyConnect: true }));
    onTestFinished(() => client.disconnect());
    await client.connect();
    const fence = redisFence(client);
    const tx: RedisTx = { commands: [["SET", "unsent", "1"]] };
    await fence.guard(tx, "unsent", by(1n));
    await proxy.close();
    await until("the connection is lost", 5_000, () => client.status !== "ready");
    for (const step of [fence.commit(tx), fence.reset(undefined, "unsent", 1n)])
      await expect(step).rejects.toMatchObject({ code: "STORE_UNAVAILABLE", retryable: true });
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
      ["1:not twenty digits!!!", /no fence/],
      [`1:${" ".repeat(20)}`, /no fence/],
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
      { commands: [["SET", "count", Number.NaN]] },
      { commands: [["SET", "count", 1 / 0]] },
      // biome-ignore lint/suspicious/noSparseArray: a hole is what is refused
      { commands: [["SET", , "count"]] },
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

  test("of two guards of one resource, the later holder's counts", async () => {
    const client = open();
    const fence = redisFence(client);
    for (const order of [
      [9n, 5n],
      [5n, 9n],
    ]) {
      const tx: RedisTx = { commands: [["SET", "twice", "1"]] };
      for (const token of order) await fence.guard(tx, `twice ${order}`, by(token));
      if (order[0] === 9n) await expect(fence.commit(tx)).rejects.toMatchObject(STALE);
      else await fence.commit(tx);
    }
    const tx: RedisTx = { commands: [] };
    await fence.guard(tx, "shared", { token: 7n, floor: 5n });
    await fence.guard(tx, "shared", { token: 6n, floor: 4n });
    await fence.commit(tx);
    expect(await fence.highest(undefined, "shared")).toBe(5n);
  });

  test("enter with a transaction guards it too", async () => {
    const client = open();
    const fence = redisFence(client);
    const tx: RedisTx = { commands: [["SET", "entered", "1"]] };
    await fence.enter(tx, "entered", by(1n));
    expect(await fence.commit(tx)).toEqual(["OK"]);
    await fence.enter(undefined, "entered", by(2n));
    await expect(fence.commit(tx)).rejects.toMatchObject(STALE);
  });

  test("a transaction that another fence has guarded is refused", async () => {
    const client = open();
    const tx: RedisTx = { commands: [["SET", "elsewhere", "1"]] };
    await redisFence(client).guard(tx, "elsewhere", by(1n));
    const other = redisFence(client, { prefix: "other:" });
    await expect(other.commit(tx)).rejects.toMatchObject(INVALID);
    expect(await client.get("elsewhere")).toBeNull();
  });

  test("a command on a key of another type says which command, not that the fence is damaged", async () => {
    const client = open();
    const fence = redisFence(client);
    await client.rpush("a list", "1");
    const tx: RedisTx = {
      commands: [
        ["SET", "first", "1"],
        ["INCR", "a list"],
      ],
    };
    await fence.guard(tx, "typed", by(1n));
    await expect(fence.commit(tx)).rejects.toThrow(/command 2, INCR, failed: WRONGTYPE/);
    await client.rpush(fence.keyOf("a list"), "1");
    await expect(fence.enter(undefined, "a list", by(1n))).rejects.toThrow(/holdfast:fence:/);
  });

  test("a client that returns bytes is refused with what to do", async () => {
    const client = quiet(createClient({ url: server.url }));
    await client.connect();
    onTestFinished(() => client.destroy());
    const mapped = client.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
    const fence = redisFence(mapped as never);
    const tx: RedisTx = { commands: [["SET", "bytes", "1"]] };
    await fence.guard(tx, "bytes", by(1n));
    await expect(fence.commit(tx)).rejects.toMatchObject({ code: "UNSUPPORTED" });
  });

  test("commands that ioredis sends again count as perhaps executed, when a later holder has entered since", async () => {
    const direct = open();
    const proxy = await TcpProxy.open(server);
    onTestFinished(() => proxy.close());
    const client = quiet(new Redis(proxy.url));
    onTestFinished(() => client.disconnect());
    const fence = redisFence(client);
    await fence.enter(undefined, "again", by(1n));
    const tx: RedisTx = { commands: [["SET", "again", "1"]] };
    await fence.guard(tx, "again", by(1n));
    const silent = proxy.swallow("to-client");
    await silent.inject();
    const refused = rejection(fence.commit(tx));
    await until(
      "the commands are executed",
      10_000,
      async () => (await direct.get("again")) === "1",
    );
    await redisFence(direct).enter(undefined, "again", by(2n));
    await silent.heal();
    expect(await refused).toMatchObject({
      code: "STORE_UNAVAILABLE",
      retryable: false,
      message: expect.stringContaining("may have been written"),
      cause: STALE,
    });
  });

  describe("in a cluster", () => {
    let servers: readonly RedisServer[];
    beforeAll(async () => {
      servers = await startRedisCluster(lab);
    }, 60_000);

    function openCluster(options: object = {}): Cluster {
      const nodes = servers.map(({ address, port }) => ({ host: address, port }));
      const cluster = quiet(new Cluster(nodes, options));
      onTestFinished(() => cluster.disconnect());
      return cluster;
    }

    test("works with a hash tag, and says what to do without", async () => {
      const fence = redisFence(openCluster());
      for (const resource of ["stock:{hat}", "hat"]) {
        const tx: RedisTx = { commands: [["SET", "count:{hat}", "6"]] };
        await fence.guard(tx, resource, by(2n));
        expect(await fence.commit(tx)).toEqual(["OK"]);
        await expect(fence.enter(undefined, resource, by(1n))).rejects.toMatchObject(STALE);
      }
      for (let i = 0; i < 6; i++) {
        const tx: RedisTx = { commands: [] };
        await fence.reset(tx, `moved ${i}`, 7n);
        await fence.commit(tx);
        expect(await fence.highest(undefined, `moved ${i}`)).toBe(7n);
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

    test.each([
      { first: "the number", key: "count:{cap}", keyPrefix: "" },
      { first: "the data", key: "z:{cap}", keyPrefix: "" },
      { first: "the number", key: "a:count:{cap}", keyPrefix: "a:" },
    ])(
      "changes nothing while a slot moves: $first first, prefix $keyPrefix",
      async (one) => {
        const cluster = openCluster({
          keyPrefix: one.keyPrefix,
          retryDelayOnTryAgain: 1,
          maxRedirections: 3,
        });
        const fence = redisFence(cluster);
        async function increment(): Promise<unknown> {
          const tx: RedisTx = { commands: [["INCR", one.key]] };
          await fence.guard(tx, "stock:{cap}", by(2n));
          return fence.commit(tx);
        }
        expect(await increment()).toEqual([1]);
        const slot = (await servers[0]!.cli("cluster", "keyslot", "{cap}")).trim();
        const source = await ownerOfSlot(servers, slot);
        const target = servers.find((server) => server !== source)!;
        const replies: unknown[] = [];
        await moveSlot(servers, slot, source, target, async () => {
          replies.push(await increment().catch((error: unknown) => error));
        });
        expect(replies).toMatchObject([{ code: "STORE_UNAVAILABLE", retryable: true }]);
        expect(await increment()).toEqual([2]);
        await cluster.del(one.key.slice(one.keyPrefix.length), fence.keyOf("stock:{cap}"));
      },
      60_000,
    );
  });
});
