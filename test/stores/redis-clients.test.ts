import { setTimeout as pause } from "node:timers/promises";
import { inspect } from "node:util";
import { Cluster, Redis } from "ioredis";
import { createClient, createCluster } from "redis";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { ignore } from "../../src/conformance/subject.js";
import type { Locks } from "../../src/index.js";
import { type RedisClient, type RedisStore, redisStore } from "../../src/stores/redis/index.js";
import { keyOf } from "../../src/stores/redis/keys.js";
import { TcpProxy } from "../../src/verify/faults/proxy.js";
import { Lab } from "../../src/verify/lab/lab.js";
import type { RedisServer } from "../../src/verify/lab/redis.js";
import { rejection } from "../core/helpers.js";
import { describeWith } from "../support/needs.js";
import {
  byIoredis,
  byNodeRedis,
  claimOf,
  keysAndTtls,
  locksOn,
  quiet,
  rawRedis,
} from "../support/redis.js";
import { until } from "../support/worker.js";

/** Checked by the compiler: the libraries' own types, without a cast. */
const TAKEN: Record<string, () => RedisClient> = {
  "ioredis, Redis": () => new Redis({ lazyConnect: true }),
  "ioredis, sentinels": () =>
    new Redis({ sentinels: [{ host: "127.0.0.1", port: 1 }], name: "main", lazyConnect: true }),
  "ioredis, Cluster": () => new Cluster([{ port: 1 }], { lazyConnect: true }),
  "node-redis, client": () => createClient(),
  "node-redis, client with RESP 2": () => createClient({ RESP: 2 }),
  "node-redis, client with RESP 3": () => createClient({ RESP: 3 }),
  "node-redis, cluster": () => createCluster({ rootNodes: [{ url: "redis://127.0.0.1:1" }] }),
};

test.each(Object.entries(TAKEN))("%s is taken as it is", (name, client) => {
  const { traits } = redisStore(client());
  expect(traits.store).toBe(/cluster/i.test(name) ? "Redis Cluster" : "Redis");
});

test.each([null, undefined, {}, "redis://localhost", 6379])("%s is no client", (client) => {
  expect(() => redisStore(client as never)).toThrow(/pass a client of ioredis or node-redis/);
});

describeWith(["redis"], "Redis, by clients of one's own", () => {
  let lab: Lab;
  let server: RedisServer;
  let databases = 0;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis({ config: { databases: "100" } });
  });
  afterAll(() => lab.close());

  function closing(store: RedisStore): RedisStore {
    onTestFinished(() => store.close().catch(() => {}));
    return store;
  }

  test("a client is left open, unless the store is told to close it", async () => {
    const raw = await rawRedis(server.url, ++databases);
    const [one, two] = [locksOn(redisStore(raw)), locksOn(redisStore(raw))];
    const lease = await one.acquire("name");
    const waiting = two.acquire("name");
    await until("it waits", async () => (await one.inspect("name"))!.waiters.length === 1);
    await lease.release();
    await (await waiting).release();
    await one.close();
    await two.close();
    expect(await raw.ping()).toBe("PONG");
  });

  test("a prefix of ioredis is before every key, and keeps apart", async () => {
    const db = ++databases;
    const open = (keyPrefix: string): Locks => {
      const client = quiet(new Redis(server.url, { db, keyPrefix }));
      return locksOn(closing(redisStore(client, { closeClient: true })));
    };
    const [one, two, plain] = [open("app[1]*:"), open("app2:"), open("")];
    const lease = await one.acquire("name");
    await two.acquire("name");
    await plain.acquire("other");
    for (const [locks, name] of [
      [one, "name"],
      [two, "name"],
      [plain, "other"],
    ] as const) {
      expect((await locks.list()).map((info) => info.name)).toEqual([name]);
    }
    const waiting = one.acquire("name");
    await until("it waits", async () => (await one.inspect("name"))!.waiters.length === 1);
    await lease.release();
    await waiting;
    const keys = [...(await keysAndTtls(await rawRedis(server.url, db))).keys()];
    expect(keys.every((key) => /^(app\[1\]\*:|app2:|)holdfast:\{/.test(key))).toBe(true);
  });

  test("errors tell no grantId, whatever the client puts into them", async () => {
    await server.cli(
      "acl",
      "setuser",
      "reader",
      "on",
      "nopass",
      "~*",
      "&*",
      "+@all",
      "-@scripting",
    );
    const url = server.url.replace("://", "://reader:any@");
    for (const open of [byIoredis, byNodeRedis]) {
      const store = closing(await open(url));
      const claim = claimOf("name", { grantId: "SECRET" });
      const error = await rejection(Promise.resolve(store.claim(claim, ignore)));
      expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
      const [renewed] = await store.renew([{ name: "name", grantId: "SECRET", seq: 2, ttlMs: 50 }]);
      expect(renewed!.kind).toBe("unknown");
      expect(inspect([error, renewed], { depth: 20 })).not.toContain("SECRET");
    }
  });

  describe("that send again what was not answered", () => {
    /** As ioredis is by default: commands wait for a connection, and are repeated on the next. */
    async function through(proxy: TcpProxy, ttlMs: number): Promise<Locks> {
      const store = redisStore(quiet(new Redis(proxy.url)), { closeClient: true });
      return locksOn(closing(store), { ttl: ttlMs, wait: "20s" });
    }

    async function proxied(): Promise<TcpProxy> {
      const proxy = await TcpProxy.open(server);
      onTestFinished(() => proxy.close());
      return proxy;
    }

    test("a lost reply makes no second grant, and takes nothing from the next", async () => {
      const proxy = await proxied();
      const locks = await through(proxy, 5_000);
      const others = locksOn(closing(await byIoredis(server.url)));
      await (await locks.acquire("warm")).release();
      const lost = proxy.loseReply({ when: "evalsha" });
      await lost.inject();
      const lease = await locks.acquire("lost reply");
      expect(lost.struck).toBe(1);
      await lost.heal();
      const info = (await others.inspect("lost reply"))!;
      expect(info.holders.map(({ token }) => token)).toEqual([lease.token]);

      await lost.inject();
      await lease.renew("6s");
      expect([lost.struck, lease.state]).toEqual([1, "held"]);
      await lost.heal();

      const waiting = others.acquire("lost reply");
      await until(
        "it waits",
        async () => (await others.inspect("lost reply"))!.waiters.length === 1,
      );
      await lost.inject();
      // The second of them finds that another holds it.
      expect(["released", "lost"]).toContain(await lease.release());
      await lost.heal();
      const next = await waiting;
      expect((await others.inspect("lost reply"))!.holders).toHaveLength(1);
      expect(await next.release()).toBe("released");
    });

    test("connections that break all the time: one at a time, and tokens rise", async () => {
      const places = await Promise.all([1, 2, 3].map(proxied));
      const clients = await Promise.all(places.map((proxy) => through(proxy, 3_000)));
      for (const proxy of places) {
        const strikes = { times: Number.POSITIVE_INFINITY };
        const every = (n: number) => {
          let asked = 0;
          return (request: Buffer) => request.includes("evalsha") && ++asked % n === 0;
        };
        await proxy.loseReply({ ...strikes, when: every(5) }).inject();
        await proxy.resetMidCommand({ ...strikes, when: every(7) }).inject();
      }
      const tokens: bigint[] = [];
      let inside = 0;
      await Promise.all(
        clients.map(async (locks) => {
          for (let i = 0; i < 15; i++) {
            const work = locks.withLock("broken", async ({ token }) => {
              inside++;
              expect(inside).toBe(1);
              tokens.push(token);
              await pause(1);
              inside--;
            });
            // A release that is repeated finds nothing: the lease counts as lost, to be on the safe side.
            await work.catch((error) => expect(error).toMatchObject({ code: "LEASE_LOST" }));
          }
        }),
      );
      expect(tokens).toHaveLength(45);
      expect(tokens).toEqual([...new Set(tokens)].sort((a, b) => (a < b ? -1 : 1)));
    });
  });

  describe.each([
    ["ioredis", byIoredis],
    ["node-redis", byNodeRedis],
  ])("replicas, by %s", (_, open) => {
    let primary: RedisServer;
    let replica: RedisServer;
    beforeAll(async () => {
      primary = await lab.redis();
      replica = await lab.redis({ replicaOf: primary });
      await replica.synced();
    });

    const store = async (): Promise<RedisStore> =>
      closing(await open(primary.url, { replicas: 1 }));

    async function paused(work: () => Promise<void>): Promise<void> {
      await replica.pause();
      try {
        await work();
      } finally {
        await replica.resume();
      }
    }

    test("a grant counts when the replica has it", async () => {
      const locks = locksOn(await store());
      const copy = await rawRedis(replica.url);
      for (let i = 0; i < 20; i++) {
        const lease = await locks.acquire(`name ${i}`);
        expect(await copy.exists(keyOf(`default:name ${i}`))).toBe(1);
        await lease.renew();
        await lease.release();
      }
    });

    test("without it an acquire fails, and leaves nothing", async () => {
      const locks = locksOn(await store());
      await paused(async () => {
        const error = await rejection(locks.acquire("name", { wait: 0 }));
        expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: true });
        expect(error.message).toContain("0 of 1 replicas");
        await until("nothing is left", async () => (await locks.inspect("name")) === null);
      });
      await (await locks.acquire("name")).release();
    });

    test("without it many wait no longer than one", async () => {
      const many = await store();
      await paused(async () => {
        const fromMs = performance.now();
        const names = Array.from({ length: 10 }, (_, i) => `many ${i}`);
        const claimed = await Promise.allSettled(
          names.map((name) => many.claim(claimOf(name), ignore)),
        );
        expect(claimed.map(({ status }) => status)).toEqual(names.map(() => "rejected"));
        expect(performance.now() - fromMs).toBeLessThan(4_000);
      });
    });

    test("a handover counts after a renewal of one's own", async () => {
      const [one, two] = [locksOn(await store()), locksOn(await store(), { wait: "20s" })];
      const lease = await one.acquire("handed over");
      let held = false;
      const waiting = two.acquire("handed over").then((next) => {
        held = true;
        return next;
      });
      await until("it waits", async () => (await one.inspect("handed over"))!.waiters.length === 1);
      await paused(async () => {
        await lease.release();
        const { holders } = (await one.inspect("handed over"))!;
        expect(holders).toHaveLength(1);
        // It was told, has asked, and knows that no replica has it.
        await pause(1_500);
        expect(held).toBe(false);
      });
      await (await waiting).release();
    });
  });
});
