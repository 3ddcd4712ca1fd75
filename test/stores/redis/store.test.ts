import { setTimeout as pause } from "node:timers/promises";
import type { Redis } from "ioredis";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { grantOf, ignore } from "../../../src/conformance/subject.js";
import { LOCK_LIMIT } from "../../../src/core/store.js";
import type { Lease } from "../../../src/index.js";
import type { RedisStore } from "../../../src/stores/redis/index.js";
import { counterOf, keyOf } from "../../../src/stores/redis/keys.js";
import { FalseClock } from "../../../src/verify/lab/clock.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { freePort } from "../../../src/verify/lab/ports.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { rejection } from "../../core/helpers.js";
import { describeWith, needs } from "../../support/needs.js";
import {
  byIoredis,
  callsSince,
  claimOf,
  keysAndTtls,
  listening,
  locksOn,
  rawRedis,
} from "../../support/redis.js";
import { until } from "../../support/worker.js";

describeWith(["redis"], "Redis", () => {
  let lab: Lab;
  let server: RedisServer;
  // Each test has a database of its own.
  let databases = 0;

  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis({ config: { databases: "1000" } });
  });
  afterAll(() => lab.close());

  async function fresh(): Promise<{
    store: RedisStore;
    raw: Redis;
    another: () => Promise<RedisStore>;
  }> {
    const db = ++databases;
    const another = async (): Promise<RedisStore> => {
      const store = await byIoredis(server.url, { db });
      onTestFinished(() => store.close());
      return store;
    };
    return { store: await another(), raw: await rawRedis(server.url, db), another };
  }

  async function on(url: string): Promise<RedisStore> {
    const store = await byIoredis(url);
    onTestFinished(() => store.close());
    return store;
  }

  /** Acquires and releases the name, and returns the token. */
  async function tokenOf(store: RedisStore, name = "name"): Promise<bigint> {
    const claim = claimOf(name);
    const { token } = grantOf(await store.claim(claim, ignore));
    await store.release([{ name, grantId: claim.grantId }]);
    return token;
  }

  describe("tokens rise", () => {
    test("after all data is deleted, and when the server restarts without its data", async () => {
      const own = await lab.redis({ persistence: "none" });
      const store = await on(own.url);
      const tokens = [await tokenOf(store)];
      await own.cli("flushall");
      tokens.push(await tokenOf(store));
      await own.restart();
      tokens.push(await tokenOf(store));
      expect(await own.cli("dbsize")).toBe("1");
      expect(tokens).toEqual(rising(tokens));
    });

    test("after a failover to a replica that has nothing", async () => {
      const primary = await lab.redis();
      const before = await tokenOf(await on(primary.url));
      await primary.pause();
      const replica = await lab.redis({ replicaOf: primary });
      await replica.promote();
      expect(await replica.cli("dbsize")).toBe("0");
      expect(await tokenOf(await on(replica.url))).toBeGreaterThan(before);
      await primary.kill();
    });

    test.for(["claims", "handovers"])(
      "after the server's clock was fast during an idle time and is corrected: by %s",
      async (by, context) => {
        needs(context, "faketime");
        const clock = await FalseClock.open(lab);
        const own = await lab.redis({ site: clock.site() });
        const store = await on(own.url);
        const draw = async (): Promise<bigint> => {
          if (by === "claims") return tokenOf(store);
          const [held, waiting] = [claimOf("name"), claimOf("name", { queue: true })];
          await store.claim(held, ignore);
          await store.claim(waiting, ignore);
          await store.release([{ name: "name", grantId: held.grantId }]);
          const { token } = grantOf(await store.claim({ ...waiting, seq: 2 }, ignore));
          await store.release([{ name: "name", grantId: waiting.grantId }]);
          return token;
        };
        const fast = clock.jump(+600_000);
        await fast.inject();
        const tokens = [await draw()];
        // As if nothing had been granted for minutes.
        const idle = clock.jump(+300_000);
        await idle.inject();
        expect(await own.cli("get", counterOf("name"))).toBe(String(tokens[0]));
        await idle.heal();
        await fast.heal();
        tokens.push(await draw(), await draw());
        expect(tokens).toEqual(rising(tokens));
      },
    );

    test("after a restart with its data, and after a backup is restored", async () => {
      const own = await lab.redis({ persistence: "always" });
      const store = await on(own.url);
      const tokens = [await tokenOf(store)];
      const counter = counterOf("name");
      const backup = await own.cli("get", counter);
      tokens.push(await tokenOf(store));
      await own.restart();
      expect(await own.cli("get", counter)).toBe(String(tokens.at(-1)));
      tokens.push(await tokenOf(store));
      await own.cli("flushall");
      await own.cli("set", counter, backup);
      tokens.push(await tokenOf(store));
      expect(tokens).toEqual(rising(tokens));
    });

    test("unless the data are lost and the clock is set back: that is documented", async (context) => {
      needs(context, "faketime");
      const clock = await FalseClock.open(lab);
      const own = await lab.redis({ site: clock.site() });
      const store = await on(own.url);
      const before = await tokenOf(store);
      await own.cli("flushall");
      await clock.jump(-3_600_000).inject();
      expect(await tokenOf(store)).toBeLessThan(before);
    });

    test("by one, where the counter is ahead of the clock", async () => {
      const { store, raw } = await fresh();
      const ahead = BigInt(Date.now() + 3_600_000) * 1_000n;
      await raw.set(counterOf("name"), String(ahead));
      expect([await tokenOf(store), await tokenOf(store)]).toEqual([ahead + 1n, ahead + 2n]);
      // The same where the grant is made by a handover.
      const [held, waiting] = [claimOf("name"), claimOf("name", { queue: true })];
      grantOf(await store.claim(held, ignore));
      await store.claim(waiting, ignore);
      await store.release([{ name: "name", grantId: held.grantId }]);
      expect(grantOf(await store.claim({ ...waiting, seq: 2 }, ignore)).token).toBe(ahead + 4n);
    });

    test("until numbers end: then a claim is refused, and no token is given twice", async () => {
      const { store, raw } = await fresh();
      await raw.set(counterOf("name"), String(2n ** 53n - 3n));
      const tokens: bigint[] = [];
      for (let i = 0; i < 6; i++) {
        await tokenOf(store)
          .then((token) => tokens.push(token))
          .catch(ignore);
      }
      expect(tokens).toEqual(rising(tokens));
      await expect(tokenOf(store)).rejects.toThrow();
      expect(await raw.exists(keyOf("name"))).toBe(0);
      // Names with other counters are not affected.
      const [other] = ["a", "b"].filter((name) => counterOf(name) !== counterOf("name"));
      await tokenOf(store, other);
    });
  });

  describe("keys that are left in the server", () => {
    const isCounter = (key: string): boolean => /^holdfast:\{\d+\}last$/.test(key);

    test("are nothing but counters after use, which never expire", async () => {
      const { store, raw, another } = await fresh();
      const locks = locksOn(store, { ttl: "5s" });
      const others = locksOn(await another(), { ttl: "5s" });
      const leases = await Promise.all([
        locks.acquire("exclusive"),
        locks.acquire("shared", { mode: "shared" }),
        others.acquire("shared", { mode: "shared" }),
        locks.semaphore("semaphore", { permits: 3 }).acquire({ permits: 2 }),
        locks.acquire("at least", { atLeast: 300, ttl: "1s" }),
      ]);
      const many = await locks.acquireAll(["one", "two", "three"]);
      const waiting = [others.acquire("exclusive"), locks.acquire("exclusive")];
      const inVain = rejection(others.acquire("shared", { wait: 50 }));
      await until(
        "they wait",
        async () => (await locks.inspect("exclusive"))!.waiters.length === 2,
      );
      await inVain;
      for (const [key, ms] of await keysAndTtls(raw)) {
        if (isCounter(key)) continue;
        expect(ms, key).toBeGreaterThan(0);
        expect(ms, key).toBeLessThan(61_000);
      }
      for (const lease of leases) await lease.release();
      await Promise.all(waiting.map(async (one) => (await one).release()));
      await many.release();
      const closed = keyOf("default:at least");
      await until("atLeast is over", async () => (await raw.exists(closed)) === 0);
      // The lease of a client that has vanished.
      grantOf(await store.claim(claimOf("gone", { ttlMs: 20 }), ignore));
      await until("it has run out", async () => (await raw.exists(keyOf("gone"))) === 0);
      const left = await keysAndTtls(raw);
      expect([...left.keys()].filter((key) => !isCounter(key))).toEqual([]);
      expect(left.size).toBeGreaterThan(0);
      expect(new Set(left.values())).toEqual(new Set([-1]));
    });

    test("expire with the last of a queue whose waiters and holder have all vanished", async () => {
      const { store, raw } = await fresh();
      grantOf(await store.claim(claimOf("name", { ttlMs: 30 }), ignore));
      for (const ttlMs of [90, 60]) {
        await store.claim(claimOf("name", { ttlMs, queue: true }), ignore);
      }
      expect(await raw.pttl(keyOf("name"))).toBeLessThan(95);
      await until("nothing is left", async () => (await raw.exists(keyOf("name"))) === 0);
    });

    test("stay for an hour after a release by force", async () => {
      const { store, raw } = await fresh();
      const claim = claimOf("name");
      grantOf(await store.claim(claim, ignore));
      await store.revoke("name", { holder: "somebody", why: "a test" });
      const ms = await raw.pttl(keyOf("name"));
      expect(ms).toBeGreaterThan(3_590_000);
      expect(ms).toBeLessThan(3_601_000);
      expect(
        await store.renew([{ name: "name", grantId: claim.grantId, seq: 2, ttlMs: 50 }]),
      ).toEqual([{ kind: "lost", reason: "revoked", why: "by somebody: a test" }]);
    });
  });

  describe("names", () => {
    const NAMES = [
      "a",
      "a:b",
      "a:b:c",
      "a*",
      "a?",
      "a[bc]",
      "a\\",
      "a\\*",
      "{a}",
      "}n:a",
      "holdfast:{1}n:a",
      "{",
      "}",
      "^a-z",
      " ",
      "ключ",
      "鍵",
      "🔑",
      "e\u0301",
      "\u00e9",
      "%41",
      "a".repeat(255),
      "é".repeat(127),
    ];

    test("are kept apart, whatever they contain, and each is found as itself", async () => {
      const { store, raw } = await fresh();
      const claims = NAMES.map((name) => claimOf(name, { holder: `of ${name}` }));
      for (const claim of claims) grantOf(await store.claim(claim, ignore));
      const byBytes = (a: string, b: string): number =>
        Buffer.compare(Buffer.from(a), Buffer.from(b));
      for (const name of NAMES) {
        expect((await store.inspect(name))!.holders.map(({ holder }) => holder)).toEqual([
          `of ${name}`,
        ]);
        expect((await store.list(name, 1_000)).map((info) => info.name)).toEqual(
          NAMES.filter((one) => one.startsWith(name)).sort(byBytes),
        );
      }
      expect((await store.list("", 1_000)).map(({ name }) => name)).toEqual(
        NAMES.toSorted(byBytes),
      );
      expect((await store.list("", 3)).map(({ name }) => name)).toEqual(
        NAMES.toSorted(byBytes).slice(0, 3),
      );
      expect(await store.list("b", 10)).toEqual([]);
      // Deleted one after the other, and nothing of the others goes with it.
      for (const [i, { names, grantId }] of claims.entries()) {
        expect(await store.release([{ name: names[0]!, grantId }])).toEqual(["released"]);
        expect(await store.list("", 1_000)).toHaveLength(NAMES.length - i - 1);
      }
      expect([...(await keysAndTtls(raw)).keys()].every((key) => key.endsWith("last"))).toBe(true);
    });

    test("leave other data alone", async () => {
      const { store, raw } = await fresh();
      await raw.mset("name", "data", "holdfast:other", "data", "holdfast:{1}x", "data");
      await tokenOf(store);
      expect(await store.list("", 10)).toEqual([]);
      expect(await raw.mget("name", "holdfast:other", "holdfast:{1}x")).toEqual(
        Array(3).fill("data"),
      );
    });

    test("have all their keys in one slot, and are spread over many slots", async () => {
      const config = { "cluster-enabled": "yes", "cluster-port": String(await freePort()) };
      const node = await rawRedis((await lab.redis({ config })).url);
      const slotOf = (key: string): Promise<unknown> => node.cluster("KEYSLOT", key);
      const slots = new Set<unknown>();
      const more = Array.from({ length: 300 }, (_, i) => `order:${i}`);
      for (const name of [...NAMES, ...more]) {
        const slot = await slotOf(keyOf(name));
        expect(await slotOf(counterOf(name))).toBe(slot);
        slots.add(slot);
      }
      expect(slots.size).toBeGreaterThan(100);
    });
  });

  describe("data that Holdfast has not written", () => {
    const FOREIGN: Record<
      string,
      { put: (raw: Redis, key: string) => Promise<unknown>; format?: true }
    > = {
      "a list": { put: (raw, key) => raw.lpush(key, "x") },
      "a hash": { put: (raw, key) => raw.hset(key, "field", "x") },
      "a hash with a field that is called as ours": {
        put: (raw, key) => raw.hset(key, "front", "x"),
      },
      "a text": { put: (raw, key) => raw.set(key, "hello") },
      "an empty text": { put: (raw, key) => raw.set(key, "") },
      "bytes that can't be unpacked": { put: (raw, key) => raw.set(key, Buffer.from([0x93, 1])) },
      "a later format": { put: (raw, key) => packed(raw, key, "99, 'id'"), format: true },
      "a later format with as many fields": {
        put: (raw, key) => packed(raw, key, "99, 'id', '0', 1, 1, '1', '1 1 1 h', 1, 1"),
        format: true,
      },
      "a later format of a queue": {
        put: (raw, key) => packed(raw, key, "99, false, {}"),
        format: true,
      },
    };
    const packed = (raw: Redis, key: string, values: string): Promise<unknown> =>
      raw.eval(`return redis.call('SET', KEYS[1], cmsgpack.pack(${values}))`, 1, key);

    test.each(Object.entries(FOREIGN))(
      "%s is an error for its name, and not for others of a batch",
      async (_, foreign) => {
        const { store, raw } = await fresh();
        await foreign.put(raw, keyOf("foreign"));
        const error = foreign.format
          ? { code: "UNSUPPORTED", retryable: false, message: expect.stringContaining("format 99") }
          : expect.any(Error);

        const before = [claimOf("one", { queue: true }), claimOf("two", { queue: true })];
        const claimed = await Promise.allSettled([
          store.claim(before[0]!, ignore),
          store.claim(claimOf("foreign"), ignore),
          store.claim(claimOf("foreign", { queue: true }), ignore),
          store.claim(before[1]!, ignore),
        ]);
        expect(claimed.map(({ status }) => status)).toEqual([
          "fulfilled",
          "rejected",
          "rejected",
          "fulfilled",
        ]);
        for (const one of claimed.slice(1, 3))
          expect((one as PromiseRejectedResult).reason).toEqual(
            foreign.format ? expect.objectContaining(error as object) : error,
          );

        const renewal = (name: string, grantId: string) => ({
          name,
          grantId,
          seq: 2,
          ttlMs: 60_000,
        });
        const renewed = await store.renew([
          renewal("one", before[0]!.grantId),
          renewal("foreign", "x"),
          renewal("two", before[1]!.grantId),
        ]);
        expect(renewed.map(({ kind }) => kind)).toEqual(["granted", "unknown", "granted"]);
        if (foreign.format) expect(renewed[1]).toMatchObject({ cause: { code: "UNSUPPORTED" } });

        const released = await Promise.allSettled([
          store.release([{ name: "one", grantId: before[0]!.grantId }]),
          store.release([{ name: "foreign", grantId: "x" }]),
          store.release([{ name: "two", grantId: before[1]!.grantId }]),
        ]);
        expect(released.map(({ status }) => status)).toEqual([
          "fulfilled",
          "rejected",
          "fulfilled",
        ]);
        for (const request of [
          () => store.inspect("foreign"),
          () => store.revoke("foreign", { holder: "h", why: "w" }),
          () => store.resize("foreign", 3),
        ]) {
          const refused = await rejection(request());
          if (foreign.format) expect(refused).toMatchObject(error as object);
        }
        // The foreign value stays as it is.
        expect(await raw.exists(keyOf("foreign"))).toBe(1);
        expect(await raw.pttl(keyOf("foreign"))).toBe(-1);
      },
    );

    test.each(["a text", "a list", "a hash with a field that is called as ours"])(
      "%s beside a handover: the waiter that is notified of its grant holds the name",
      async (kind) => {
        const { store, raw } = await fresh();
        const ttlMs = 500;
        grantOf(await store.claim(claimOf("name", { ttlMs }), ignore));
        const pushed: string[] = [];
        const waiting = claimOf("name", { queue: true });
        await store.claim(waiting, ({ kind }) => pushed.push(kind));
        await FOREIGN[kind]!.put(raw, keyOf("foreign"));
        await pause(ttlMs + 10);
        // By this request of another client, the waiter becomes the holder.
        await store.renew([
          { name: "name", grantId: "another's", seq: 2, ttlMs: 60_000 },
          { name: "foreign", grantId: "x", seq: 2, ttlMs: 60_000 },
        ]);
        await until("it is notified", () => pushed.length > 0);
        expect((await store.claim(claimOf("name"), ignore)).kind).toBe("busy");
        expect((await store.inspect("name"))!.holders).toHaveLength(1);
      },
    );

    test("a counter of another type makes only its own names fail", async () => {
      const { store, raw } = await fresh();
      const other = ["a", "b"].find((name) => counterOf(name) !== counterOf("name"))!;
      await raw.lpush(counterOf("name"), "x");
      const [bad, good] = await Promise.allSettled([
        store.claim(claimOf("name"), ignore),
        store.claim(claimOf(other), ignore),
      ]);
      expect([bad.status, good.status]).toEqual(["rejected", "fulfilled"]);
      expect(await raw.exists(keyOf("name"))).toBe(0);
    });
  });

  describe("the number of commands", () => {
    test("is one for an acquire and one for a release, also when many are requested at once", async () => {
      const { store } = await fresh();
      const locks = locksOn(store);
      await (await locks.acquire("warm")).release();
      const calls = await callsSince(server);
      const lease = await locks.acquire("name");
      expect(await calls("evalsha")).toBe(1);
      await lease.release();
      expect(await calls("evalsha")).toBe(2);
      const leases = await Promise.all(
        Array.from({ length: 96 }, (_, i) => locks.acquire(`name ${i}`)),
      );
      expect(await calls("evalsha")).toBe(2 + 96 / 16);
      await Promise.all(leases.map((one) => one.release()));
      expect(await calls("evalsha")).toBe(2 + (2 * 96) / 16);
      await locks.acquireAll(["x", "y", "z"]);
      expect(await calls("evalsha")).toBe(3 + (2 * 96) / 16);
      expect(await calls("eval")).toBe(0);
    });

    test("grows by one when the server has forgotten a script", async () => {
      const { store, raw } = await fresh();
      const locks = locksOn(store);
      const lease = await locks.acquire("name");
      const calls = await callsSince(server);
      await raw.script("FLUSH");
      expect(await locks.tryAcquire("name")).toBeNull();
      expect(await calls("eval")).toBe(1);
      await raw.script("FLUSH");
      await lease.renew();
      expect(await calls("eval")).toBe(2);
      await raw.script("FLUSH");
      await lease.release();
      await (await locks.acquire("name")).release();
      expect(await calls("eval")).toBe(3);
    });

    test.each([5, 50])("is two for a handover with %i waiters", async (count) => {
      const { store, another } = await fresh();
      const theirs = await another();
      for (const one of [store, theirs]) await listening(one);
      const locks = locksOn(store);
      const others = locksOn(theirs);
      const held = await locks.acquire("name");
      const order: number[] = [];
      const waiting: Promise<unknown>[] = [];
      for (let i = 0; i < count; i++) {
        const lease = (i % 2 ? locks : others).acquire("name");
        waiting.push(
          lease.then((one) => {
            order.push(i);
            return one.release();
          }),
        );
        await until(
          "it waits",
          async () => (await locks.inspect("name"))!.waiters.length === i + 1,
        );
      }
      const calls = await callsSince(server);
      await held.release();
      await Promise.all(waiting);
      expect(order).toEqual(Array.from({ length: count }, (_, i) => i));
      // A release, which publishes, and the renewal by which the notified waiter confirms its grant.
      expect(await calls("evalsha")).toBe(2 * count + 1);
      expect(await calls("publish")).toBe(count);
    });

    test("is a few for keeping a thousand leases and tickets alive", async () => {
      const { store, another } = await fresh();
      const ttlMs = 1_500;
      const locks = locksOn(store, { ttl: ttlMs });
      const names = Array.from({ length: 500 }, (_, i) => `name ${i}`);
      const others = locksOn(await another(), { ttl: "1m" });
      await Promise.all(names.map((name) => others.acquire(`other ${name}`)));
      const leases = await Promise.all(names.map((name) => locks.acquire(name)));
      const waiting = names.map((name) => locks.acquire(`other ${name}`));
      await until(
        "they wait",
        async () => (await locks.inspect("other name 499"))!.waiters.length === 1,
      );
      const calls = await callsSince(server);
      await pause(ttlMs * 1.2);
      const renewals = await calls("evalsha");
      expect(leases.every(({ state }) => state === "held")).toBe(true);
      expect((await others.inspect("other name 0"))!.waiters).toHaveLength(1);
      // Each was renewed three or four times by now: one by one, that would be more than three thousand.
      expect(renewals).toBeGreaterThan(3);
      expect(renewals).toBeLessThan(80);
      await others.close();
      await Promise.all(waiting.map(async (one) => (await one).release()));
    });
  });

  describe("many waiters", () => {
    test("drain in order and quickly, from a queue of 2,000", async () => {
      const { store } = await fresh();
      const locks = locksOn(store, { ttl: "30s", wait: "60s" });
      const held = await locks.acquire("name");
      const order: number[] = [];
      const waiting = Array.from({ length: 2_000 }, async (_, i) => {
        const lease = await locks.acquire("name");
        order.push(i);
        await lease.release();
      });
      await until("they wait", async () => (await locks.inspect("name"))!.waiting === 2_000);
      const fromMs = performance.now();
      await held.release();
      await Promise.all(waiting);
      expect(performance.now() - fromMs).toBeLessThan(10_000);
      expect(order).toEqual(order.toSorted((a, b) => a - b));
      expect(await locks.inspect("name")).toBeNull();
    });

    test("are let in by a few commands, for 500 readers", async () => {
      const { store } = await fresh();
      await listening(store);
      const locks = locksOn(store);
      const writer = await locks.acquire("name");
      const readers = Array.from({ length: 500 }, () => locks.acquire("name", { mode: "shared" }));
      await until("they wait", async () => (await locks.inspect("name"))!.waiters.length === 500);
      const calls = await callsSince(server);
      await writer.release();
      const leases = await Promise.all(readers);
      // A hundred readers at a time.
      expect(await calls("evalsha")).toBeLessThan(12);
      const tokens = leases.map(({ token }) => token);
      expect(tokens).toEqual(rising(tokens));
      expect(new Set(leases.map(({ floor }) => floor))).toEqual(new Set([tokens[0]]));
      await Promise.all(leases.map((lease: Lease) => lease.release()));
      expect(await locks.inspect("name")).toBeNull();
    });
  });

  describe("requests in one turn of the event loop", () => {
    test("are served in order: the first claim is granted first, though the name is released in between", async () => {
      const { store } = await fresh();
      await listening(store);
      const [held, first, second] = [1, 2, 3].map(() => claimOf("name", { queue: true }));
      grantOf(await store.claim(held!, ignore));
      const pushed: string[] = [];
      const [one, released, two] = await Promise.all([
        store.claim(first!, () => pushed.push("first")),
        store.release([{ name: "name", grantId: held!.grantId }]),
        store.claim(second!, () => pushed.push("second")),
      ]);
      expect(released).toEqual(["released"]);
      expect(two.kind).toBe("queued");
      if (one.kind === "queued") await until("the first is notified", () => pushed.length > 0);
      expect(pushed).not.toContain("second");
      const info = (await store.inspect("name"))!;
      expect(info.holders.map(({ holder }) => holder)).toEqual([first!.holder]);
      expect(info.waiters.map(({ holder }) => holder)).toEqual([second!.holder]);
    });

    test("for several names at once are not overtaken by one for a single name", async () => {
      const { store } = await fresh();
      const held = claimOf("b");
      grantOf(await store.claim(held, ignore));
      const [many, , single] = await Promise.all([
        store.claim(claimOf("a", { names: ["a", "b"] }), ignore),
        store.release([{ name: "b", grantId: held.grantId }]),
        store.claim(claimOf("a"), ignore),
      ]);
      // Each request on its own, in their order: the first was refused, or has both.
      expect([many.kind, single.kind]).toSatisfy(
        ([a, b]) => (a === "busy" && b === "granted") || (a === "granted" && b === "busy"),
      );
    });
  });

  test("a reply to a renewal after a later claim of the same waiter does not cancel that claim's push", async () => {
    const { store } = await fresh();
    const holder = claimOf("name");
    await store.claim(holder, ignore);
    const first = claimOf("name", { ttlMs: 20, queue: true });
    expect((await store.claim(first, ignore)).kind).toBe("queued");
    await pause(40);
    const pushed: string[] = [];
    const renewal = { name: "name", grantId: first.grantId, seq: 2, ttlMs: 60_000 };
    // So that the server has the script, and replies in order.
    await store.renew([{ ...renewal, grantId: "another's" }]);
    const [renewed, claimed] = await Promise.all([
      store.renew([renewal]),
      store.claim({ ...first, seq: 3, ttlMs: 60_000 }, ({ kind }) => pushed.push(kind)),
    ]);
    expect([renewed[0]!.kind, claimed.kind]).toEqual(["lost", "queued"]);
    await store.release([{ name: "name", grantId: holder.grantId }]);
    await until("it is notified", () => pushed.length > 0);
    expect(pushed).toEqual(["granted"]);
  });

  describe("a request that is delivered twice", () => {
    test.each(["exclusive", "shared", "permits"])(
      "has one effect: a claim, a renewal, a release (%s)",
      async (mode) => {
        const { store } = await fresh();
        const numbers = {
          exclusive: {},
          shared: { permits: 1 },
          permits: { permits: 2, limit: 4 },
        }[mode]!;
        const claim = claimOf("name", numbers);
        const first = grantOf(await store.claim(claim, ignore));
        expect(grantOf(await store.claim(claim, ignore))).toEqual(first);
        expect((await store.inspect("name"))!.holders).toHaveLength(1);
        // A queued claim that is delivered twice is one ticket.
        const exclusive = claimOf("name", {
          ...numbers,
          permits: numbers.limit ?? LOCK_LIMIT,
          queue: true,
        });
        expect((await store.claim(exclusive, ignore)).kind).toBe("queued");
        expect((await store.claim(exclusive, ignore)).kind).toBe("queued");
        expect((await store.inspect("name"))!.waiters).toHaveLength(1);
        const renewal = { name: "name", grantId: claim.grantId, seq: 2, ttlMs: 60_000 };
        const [once, twice] = await store.renew([renewal, renewal]);
        expect(twice).toEqual(once);
        const release = { name: "name", grantId: claim.grantId };
        expect(await store.release([release])).toEqual(["released"]);
        const successor = (await store.inspect("name"))!;
        expect(successor).toMatchObject({ holders: [{ holder: exclusive.holder }], waiters: [] });
        expect(await store.release([release])).toEqual([{ kind: "lost", reason: "superseded" }]);
        expect((await store.inspect("name"))!.holders[0]!.token).toBe(successor.holders[0]!.token);
      },
    );
  });
});

/** The tokens in the order that they must have. */
const rising = (tokens: readonly bigint[]): readonly bigint[] =>
  [...new Set(tokens)].sort((a, b) => (a < b ? -1 : 1));
