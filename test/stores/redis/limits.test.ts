import { setTimeout as pause } from "node:timers/promises";
import { Cluster } from "ioredis";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { grantOf, ignore } from "../../../src/conformance/subject.js";
import { WAITERS_SHOWN } from "../../../src/core/store.js";
import type { Lease } from "../../../src/index.js";
import { type RedisStore, redisStore } from "../../../src/stores/redis/index.js";
import { keyOf, keysOf } from "../../../src/stores/redis/keys.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { startRedisCluster } from "../../../src/verify/lab/redis-cluster.js";
import { rejection } from "../../core/helpers.js";
import { describeWith } from "../../support/needs.js";
import {
  byIoredis,
  callsSince,
  claimOf,
  listening,
  locksOn,
  quiet,
  rawRedis,
} from "../../support/redis.js";
import { until } from "../../support/worker.js";

describeWith(["redis"], "Redis at its limits", () => {
  let lab: Lab;
  let server: RedisServer;

  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis();
  });
  afterAll(() => lab.close());

  async function open(url = server.url): Promise<RedisStore> {
    const store = await byIoredis(url);
    onTestFinished(() => store.close());
    return store;
  }

  const queue = async (store: RedisStore, name: string): Promise<void> => {
    const answer = await store.claim(claimOf(name, { queue: true }), ignore);
    expect(answer.kind).toBe("queued");
  };

  describe("hundreds of waiters that have died", () => {
    /** The waiter is served because of the release: the ttl is much longer. */
    async function expectServed(store: RedisStore, name: string, holder: string): Promise<void> {
      const namespace = name.replace(/:.*/, "");
      const locks = locksOn(store, { ttl: "60s", wait: "60s", namespace });
      const waiting = locks.acquire(name.slice(namespace.length + 1));
      await until("it waits", async () => {
        const waiters = (await store.inspect(name))!.waiters;
        return !waiters.at(-1)!.holder.startsWith("holder of");
      });
      const fromMs = performance.now();
      await store.release([{ name, grantId: holder }]);
      await waiting;
      expect(performance.now() - fromMs).toBeLessThan(5_000);
    }

    test("in one process: the release notifies the waiter behind them", async () => {
      const [store, dead] = [await open(), await open()];
      const holder = claimOf("of:one");
      grantOf(await store.claim(holder, ignore));
      await Promise.all(Array.from({ length: 350 }, () => queue(dead, "of:one")));
      await dead.close();
      await expectServed(store, "of:one", holder.grantId);
    });

    test("in a process each: the release notifies the waiter behind them", async () => {
      const store = await open();
      const holder = claimOf("of:many");
      grantOf(await store.claim(holder, ignore));
      const dead = await Promise.all(Array.from({ length: 120 }, () => open()));
      // Only a ticket with a channel can be found dead, and only a subscribed process has one.
      await Promise.all(dead.map(listening));
      await until("all listen", async () => {
        const channels = await server.cli("pubsub", "channels", "holdfast:*");
        return channels.split("\n").filter(Boolean).length >= dead.length;
      });
      await Promise.all(dead.map((one) => queue(one, "of:many")));
      await Promise.all(dead.map((one) => one.close()));
      await expectServed(store, "of:many", holder.grantId);
    });
  });

  describe("empty places in a queue", () => {
    async function longQueue(name: string): Promise<{
      store: RedisStore;
      /** The number of tickets that are kept. */
      tickets(): Promise<number>;
      /** How many of them one inspect of the name reads. */
      readsOf(): Promise<number>;
    }> {
      const store = await open();
      const raw = await rawRedis(server.url);
      grantOf(await store.claim(claimOf(name, { grantId: `${name} holder` }), ignore));
      await store.claim(claimOf(name, { queue: true, grantId: `${name} first` }), ignore);
      return {
        store,
        tickets: async () => (await raw.hlen(keysOf(name)[1]!)) / 2,
        readsOf: async () => {
          const calls = await callsSince(server);
          await store.inspect(name);
          return calls("hget");
        },
      };
    }

    test("are taken by later waiters, however many came and went", async () => {
      const { store, tickets, readsOf } = await longQueue("left");
      for (let round = 0; round < 20; round++) {
        const claims = Array.from({ length: 50 }, () => claimOf("left", { queue: true }));
        await Promise.all(claims.map((claim) => store.claim(claim, ignore)));
        await store.release(claims.map(({ grantId }) => ({ name: "left", grantId })));
      }
      expect(await tickets()).toBe(1);
      expect(await readsOf()).toBeLessThan(200);
    });

    test("cost nobody a place, and the order stays", async () => {
      const { store } = await longQueue("order");
      const living: string[] = [];
      const pushed: string[] = [];
      for (let round = 0; round < 30; round++) {
        const [stays, ...goes] = Array.from({ length: 10 }, () =>
          claimOf("order", { queue: true }),
        );
        living.push(stays!.grantId);
        for (const claim of [stays!, ...goes]) {
          await store.claim(claim, () => pushed.push(claim.grantId));
        }
        await store.release(goes.map(({ grantId }) => ({ name: "order", grantId })));
      }
      expect((await store.inspect("order"))!.waiters).toHaveLength(31);
      await store.release([{ name: "order", grantId: "order holder" }]);
      await store.release([{ name: "order", grantId: "order first" }]);
      for (const grantId of living) {
        await until(`${grantId} is notified`, () => pushed.includes(grantId));
        await store.release([{ name: "order", grantId }]);
      }
      expect(pushed).toEqual(living);
    });

    test("are made of expired tickets also behind a waiter that lives", async () => {
      const { store, tickets } = await longQueue("crashed");
      for (let round = 0; round < 10; round++) {
        const claims = Array.from({ length: 50 }, () =>
          claimOf("crashed", { queue: true, ttlMs: 20 }),
        );
        await Promise.all(claims.map((claim) => store.claim(claim, ignore)));
        await pause(25);
      }
      expect(await tickets()).toBeLessThan(250);
    });
  });

  test("thousands of waiters: inspect shows the first and counts the others, in short scripts", async () => {
    const store = await open();
    await listening(store);
    const names = ["crowded a", "crowded b", "crowded c"];
    const each = 1_500;
    for (const name of names) {
      grantOf(await store.claim(claimOf(name), ignore));
      await Promise.all(Array.from({ length: each }, () => queue(store, name)));
    }
    const calls = await callsSince(server);
    const infos = await store.list("crowded", 10);
    expect(infos.map(({ name, waiting, waiters }) => [name, waiting, waiters.length])).toEqual(
      names.map((name) => [name, each, WAITERS_SHOWN]),
    );
    // No script reads the waiters of two names.
    expect(await calls("evalsha")).toBe(names.length);
    expect(await calls("hget")).toBe(names.length * WAITERS_SHOWN);
  });

  test("a silent node of a cluster does not delay the replies of the others", async () => {
    const servers = await startRedisCluster(lab);
    const proxies = await Promise.all(servers.map((one) => TcpProxy.open(one)));
    onTestFinished(async () => void (await Promise.all(proxies.map((proxy) => proxy.close()))));
    const natMap = Object.fromEntries(
      servers.map((one, i) => [
        `${one.address}:${one.port}`,
        { host: proxies[i]!.address, port: proxies[i]!.port },
      ]),
    );
    const nodes = proxies.map(({ address, port }) => ({ host: address, port }));
    const client = quiet(new Cluster(nodes, { natMap, lazyConnect: true }));
    await client.connect();
    const ttl = 3_000;
    const locks = locksOn(redisStore(client, { closeClient: true }), { ttl });
    const leases = await Promise.all(
      Array.from({ length: 12 }, (_, i) => locks.acquire(`name ${i}`)),
    );
    const there = (await (await rawRedis(servers[0]!.url)).keys("*")).join();
    const [silent, others] = [true, false].map((is) =>
      leases.filter(({ name }) => there.includes(`:${name}`) === is),
    ) as [Lease[], Lease[]];
    expect(silent.length * others.length).toBeGreaterThan(0);
    const swallows = proxies[0]!.swallow("to-client");
    await swallows.inject();
    await until("they are lost", () => silent.every(({ state }) => state === "lost"), ttl + 2_000);
    await pause(ttl);
    expect(new Set(others.map(({ state }) => state))).toEqual(new Set(["held"]));
    await swallows.heal();
  });

  test("a key that Holdfast has not written is an error, and hides no other name", async () => {
    const locks = locksOn(await open());
    const raw = await rawRedis(server.url);
    await locks.acquire("listed 1");
    const foreign = keyOf("default:listed 2");
    await raw.set(foreign, "not ours");
    await locks.acquire("listed 3");
    const names = (await locks.list({ prefix: "listed" })).map(({ name }) => name);
    expect(names).toEqual(["listed 1", "listed 3"]);
    expect((await rejection(locks.inspect("listed 2"))).message).toMatch(
      /not Holdfast's: delete it/,
    );
    await raw.del(foreign);
  });

  describe("memory that is full", () => {
    async function full(): Promise<{ server: RedisServer; fill(): Promise<void> }> {
      const own = await lab.redis({ config: { "maxmemory-policy": "noeviction" } });
      onTestFinished(() => own.kill());
      const raw = await rawRedis(own.url);
      return {
        server: own,
        fill: async () => {
          await raw.config("SET", "maxmemory", "1");
          await expect(raw.set("more", "")).rejects.toThrow(/OOM/);
        },
      };
    }

    test("existing leases are kept, released and handed over; new claims are refused", async () => {
      const { server: own, fill } = await full();
      const ttl = 2_000;
      const locks = locksOn(await open(own.url), { ttl, wait: "20s" });
      const others = locksOn(await open(own.url), { ttl, wait: "20s" });
      const held = await locks.acquire("held");
      const [one, two] = [
        await locks.acquire("shared", { mode: "shared" }),
        await others.acquire("shared", { mode: "shared" }),
      ];
      const waiting = others.acquire("held");
      await until("it waits", async () => (await locks.inspect("held"))?.waiters.length === 1);
      await fill();
      await pause(ttl + 500);
      expect([held.state, one.state, two.state]).toEqual(["held", "held", "held"]);
      expect(await rejection(locks.tryAcquire("new"))).toMatchObject({
        code: "STORE_UNAVAILABLE",
        message: expect.stringMatching(/OOM/),
      });
      expect(await one.release()).toBe("released");
      expect((await locks.inspect("shared"))!.holders).toHaveLength(1);
      expect(await held.release()).toBe("released");
      const next = await waiting;
      expect(next.token).toBeGreaterThan(held.token);
      expect(await next.release()).toBe("released");
    });

    test("a claim that is refused makes no other of its batch fail", async () => {
      const { server: own, fill } = await full();
      const store = await open(own.url);
      const held = claimOf("held");
      grantOf(await store.claim(held, ignore));
      await fill();
      const [refused, released] = await Promise.allSettled([
        store.claim(claimOf("new"), ignore),
        store.release([{ name: "held", grantId: held.grantId }]),
      ]);
      expect(refused).toMatchObject({ status: "rejected" });
      expect(released).toMatchObject({ status: "fulfilled", value: ["released"] });
    });
  });
});
