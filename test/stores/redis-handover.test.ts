import { setTimeout as pause } from "node:timers/promises";
import { Redis } from "ioredis";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { grantOf, ignore } from "../../src/conformance/subject.js";
import type { Claim, Push } from "../../src/core/store.js";
import { type RedisStore, redisStore } from "../../src/stores/redis/index.js";
import { keysOf } from "../../src/stores/redis/keys.js";
import { TcpProxy } from "../../src/verify/faults/proxy.js";
import { Lab } from "../../src/verify/lab/lab.js";
import type { RedisServer } from "../../src/verify/lab/redis.js";
import { describeWith } from "../support/needs.js";
import { byIoredis, byNodeRedis, claimOf, listening, locksOn, quiet } from "../support/redis.js";
import { until } from "../support/worker.js";

describeWith(["redis"], "Redis hands a name over", () => {
  let lab: Lab;
  let server: RedisServer;
  let names = 0;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis();
  });
  afterAll(() => lab.close());

  const freshName = (): string => `handed over ${++names}`;

  async function open(url = server.url): Promise<RedisStore> {
    const store = await byIoredis(url);
    onTestFinished(() => store.close());
    return store;
  }

  async function proxied(): Promise<TcpProxy> {
    const proxy = await TcpProxy.open(server);
    onTestFinished(() => proxy.close());
    return proxy;
  }

  /** A client whose subscription is at another address, and can be ended. */
  function subscribingAt(url: string): { store: RedisStore; endSubscription(): void } {
    const client = quiet(new Redis(server.url));
    const subscribers: Redis[] = [];
    client.duplicate = () => {
      const subscriber = quiet(new Redis(url));
      subscribers.push(subscriber);
      return subscriber;
    };
    const endSubscription = (): void => {
      for (const one of subscribers) one.disconnect();
    };
    const store = redisStore(client, { closeClient: true });
    onTestFinished(async () => {
      await store.close();
      endSubscription();
    });
    return { store, endSubscription };
  }

  const channels = async (): Promise<number> =>
    (await server.cli("pubsub", "channels", "holdfast:*")).split("\n").filter(Boolean).length;

  const release = (store: RedisStore, { names: [name], grantId }: Claim): Promise<unknown> =>
    store.release([{ name: name!, grantId }]);

  const renew = async (store: RedisStore, { names: [name], grantId }: Claim): Promise<string> => {
    const [answer] = await store.renew([{ name: name!, grantId, seq: 2, ttlMs: 60_000 }]);
    return answer!.kind;
  };

  describe.each(["connects again", "has ended"])(
    "a waiter whose subscription %s while its commands work is not skipped by a call that answers it:",
    (how) => {
      const HOLDER_MS = 150;

      /** `first` and `second` wait, nobody listens for `first`, and the holder has vanished unless `first`'s client holds the name. */
      async function startQueue(by: { holds: "first" | "vanished" }) {
        const name = freshName();
        const proxy = await proxied();
        const [others, { store, endSubscription }] = [await open(), subscribingAt(proxy.url)];
        await listening(others);
        const holder = claimOf(name, by.holds === "first" ? {} : { ttlMs: HOLDER_MS });
        grantOf(await (by.holds === "first" ? store : others).claim(holder, ignore));
        const [first, second] = [claimOf(name, { queue: true }), claimOf(name, { queue: true })];
        expect((await store.claim(first, ignore)).kind).toBe("queued");
        expect((await others.claim(second, ignore)).kind).toBe("queued");
        const before = await channels();
        const cut = proxy.cut();
        await cut.inject();
        onTestFinished(() => cut.heal());
        if (how === "has ended") endSubscription();
        await until("the server knows", async () => (await channels()) === before - 1);
        if (by.holds === "vanished") await pause(HOLDER_MS + 20);
        return { store, others, holder, first, second };
      }

      async function expectFirstHolds(others: RedisStore, first: Claim, second: Claim) {
        const info = (await others.inspect(first.names[0]!))!;
        expect(info.holders.map(({ holder }) => holder)).toEqual([first.holder]);
        expect(await renew(others, second)).toBe("queued");
      }

      test("a claim", async () => {
        const { store, others, first, second } = await startQueue({ holds: "vanished" });
        grantOf(await store.claim({ ...first, seq: 2 }, ignore));
        await expectFirstHolds(others, first, second);
      });

      test("a renewal", async () => {
        const { store, others, first, second } = await startQueue({ holds: "vanished" });
        expect(await renew(store, first)).toBe("granted");
        await expectFirstHolds(others, first, second);
      });

      test("a renewal in one batch, after one that makes it the holder", async () => {
        const { store, others, first, second } = await startQueue({ holds: "vanished" });
        const renewals = [second, first].map(({ names: [name], grantId }) => {
          return { name: name!, grantId, seq: 2, ttlMs: 60_000 };
        });
        const answers = await store.renew(renewals);
        expect(answers.map(({ kind }) => kind)).toEqual(["queued", "granted"]);
        await expectFirstHolds(others, first, second);
      });

      test("a claim that is answered before a release in the same batch makes it the holder", async () => {
        const { store, others, holder, first, second } = await startQueue({ holds: "first" });
        const asked = store.claim({ ...first, seq: 2 }, ignore);
        asked.catch(ignore);
        await release(store, holder);
        await expectFirstHolds(others, first, second);
        expect(await renew(store, first)).toBe("granted");
      });
    },
  );

  test("a message that reached nobody at the primary is heard by way of a replica: it is no grant", async () => {
    const replica = await lab.redis({ replicaOf: server });
    onTestFinished(() => replica.kill());
    await replica.synced();
    const name = freshName();
    const [others, { store }] = [await open(), subscribingAt(replica.url)];
    const told: string[] = [];
    const hears = (who: string) => (push: Push) => told.push(`${who}: ${push.kind}`);
    const holder = claimOf(name);
    grantOf(await others.claim(holder, ignore));
    const [first, second] = [claimOf(name, { queue: true }), claimOf(name, { queue: true })];
    expect((await store.claim(first, hears("first"))).kind).toBe("queued");
    expect((await others.claim(second, hears("second"))).kind).toBe("queued");
    await release(others, holder);
    await until("both are told", () => told.length === 2);
    expect(told.sort()).toEqual(["first: look", "second: granted"]);
    expect((await others.inspect(name))!.holders).toMatchObject([{ holder: second.holder }]);
  });

  describe("to a lease that ends before those who wait renew their tickets,", () => {
    const LONG = { ttlMs: 60_000, queue: true };
    const SHORT = { ttlMs: 5_000, queue: true };

    /** One holds the name and these wait for it, all in one process; another waits there for something else. */
    async function startQueue(claims: readonly Partial<Claim>[]) {
      const [name, other] = [freshName(), freshName()];
      const [store, others] = [await open(), await open()];
      await listening(store);
      const holder = claimOf(name, { ttlMs: 60_000 });
      grantOf(await others.claim(holder, ignore));
      grantOf(await others.claim(claimOf(other), ignore));
      const told: string[] = [];
      const hears = (who: string) => (push: Push) => told.push(`${who}: ${push.kind}`);
      const waiters = claims.map((one) => claimOf(name, one));
      for (const [i, one] of waiters.entries()) await store.claim(one, hears(`${i}`));
      await store.claim(claimOf(other, LONG), hears("other"));
      return { name, store, others, holder, waiters, told };
    }

    test("the first three of them are told to look, and nobody else", async () => {
      const { others, holder, told } = await startQueue([SHORT, LONG, SHORT, LONG, LONG]);
      await release(others, holder);
      await until("they are told", () => told.length === 3);
      await pause(50);
      expect(told.sort()).toEqual(["0: granted", "1: look", "3: look"]);
    });

    test("they are told behind a hundred that left, and where an older Holdfast has not recorded the longest ttl", async () => {
      const gone = Array.from({ length: 100 }, () => LONG);
      const started = await startQueue([SHORT, ...gone, LONG, LONG]);
      const { name, store, others, holder, waiters, told } = started;
      for (const one of waiters.slice(1, 101)) await release(store, one);
      const forget = `
        local format, id, front = cmsgpack.unpack(redis.call('GET', KEYS[1]))
        assert(front.longest == 60000)
        front.longest = nil
        return redis.call('SET', KEYS[1], cmsgpack.pack(format, id, front), 'KEEPTTL')`;
      const client = quiet(new Redis(server.url));
      onTestFinished(() => client.disconnect());
      expect(await client.eval(forget, 1, keysOf(name)[0]!)).toBe("OK");
      await release(others, holder);
      await until("they are told", () => told.length === 3);
      expect(told.sort()).toEqual(["0: granted", "101: look", "102: look"]);
    });

    test("one that this call answers is not told as well", async () => {
      const { name, store, others, holder, waiters, told } = await startQueue([SHORT, LONG, LONG]);
      await others.renew([{ name, grantId: holder.grantId, seq: 2, ttlMs: 20 }]);
      await pause(40);
      expect(await renew(store, waiters[1]!)).toBe("queued");
      await until("the others are told", () => told.length === 2);
      await pause(50);
      expect(told.sort()).toEqual(["0: granted", "2: look"]);
    });

    test("with equal ttls nobody is told", async () => {
      const { others, holder, told } = await startQueue([LONG, LONG, LONG]);
      await release(others, holder);
      await until("it is told", () => told.length > 0);
      await pause(50);
      expect(told).toEqual(["0: granted"]);
    });
  });

  test("a forged message is no grant", async () => {
    const name = freshName();
    const [store, others] = [await open(), await open()];
    const held = claimOf(name);
    grantOf(await others.claim(held, ignore));
    const told: Push[] = [];
    const waiting = claimOf(name, { queue: true });
    await store.claim(waiting, (push) => told.push(push));
    const [channel] = (await server.cli("pubsub", "channels", "holdfast:*")).split("\n");
    const forged = [
      waiting.grantId,
      `9007199254740991 1 1e300 1 ${waiting.grantId}`,
      `-1 -1 60000 1 ${waiting.grantId}`,
    ];
    for (const text of forged) await server.cli("publish", channel!, text);
    // What is published after them is heard after them, and confirmed after them.
    await release(others, held);
    await until("it is told", () => told.length > 0);
    const { token } = (await others.inspect(name))!.holders[0]!;
    const grant = { token, floor: token, ttlMs: 60_000, seq: 1, handedOver: true };
    expect(told).toEqual([{ kind: "granted", grant }]);
  });

  test("the first waiter of a process has its place before it listens", async () => {
    const name = freshName();
    const proxy = await proxied();
    const [others, { store }] = [await open(), subscribingAt(proxy.url)];
    await listening(others);
    const holder = claimOf(name);
    grantOf(await others.claim(holder, ignore));
    const slow = proxy.stall();
    await slow.inject();
    const [first, second] = [claimOf(name, { queue: true }), claimOf(name, { queue: true })];
    const asked = store.claim(first, ignore);
    await until("it subscribes", () => proxy.connections === 1);
    expect((await others.claim(second, ignore)).kind).toBe("queued");
    await release(others, holder);
    await slow.heal();
    grantOf(await asked);
    expect(await renew(others, second)).toBe("queued");
  });

  test.each([
    ["ioredis", byIoredis],
    ["node-redis", byNodeRedis],
  ])(
    "a subscription that is refused when it is renewed is tried until it is allowed: %s",
    async (_, openBy) => {
      const own = await lab.redis();
      onTestFinished(() => own.kill());
      const allow = (subscribing: string): Promise<string> =>
        own.cli("acl", "setuser", "locks", "on", ">x", "~*", "&*", "+@all", subscribing);
      const listens = async (): Promise<boolean> =>
        (await own.cli("pubsub", "channels", "holdfast:*")) !== "";
      await allow("+subscribe");
      const url = own.url.replace("redis://", "redis://locks:x@");
      const [store, others] = [await openBy(url), await open(own.url)];
      onTestFinished(() => store.close());
      const name = freshName();
      const [holder, waiting] = [claimOf(name), claimOf(name, { queue: true })];
      grantOf(await others.claim(holder, ignore));
      const told: string[] = [];
      await store.claim(waiting, ({ kind }) => told.push(kind));
      await until("it listens", listens);
      await allow("-subscribe");
      await own.cli("client", "kill", "type", "pubsub");
      const refused = async (): Promise<boolean> =>
        /cmdstat_subscribe:.*rejected_calls=[1-9]/.test(await own.cli("info", "commandstats"));
      await until("it is refused", refused);
      await allow("+subscribe");
      await until("it listens again", listens);
      // It is told that it was away; then the name is handed over.
      await until("it looks", () => told.includes("look"));
      await release(others, holder);
      await until("it is told", () => told.includes("granted"));
    },
  );

  describe("two Locks share a store", () => {
    test("closing one ends no waiting of the other", async () => {
      const store = await sharedStore();
      const others = locksOn(await open());
      const [one, two] = [locksOn(store), locksOn(store)];
      const name = freshName();
      const held = await others.acquire(name);
      const inVain = one.acquire(name, { wait: 50 });
      await expect(inVain).rejects.toMatchObject({ code: "ACQUIRE_TIMEOUT" });
      await one.close();
      await expect(two.acquire(name, { wait: 50 })).rejects.toMatchObject({
        code: "ACQUIRE_TIMEOUT",
      });
      const waiting = two.acquire(name);
      await until("it waits", async () => (await others.inspect(name))!.waiters.length === 1);
      await held.release();
      await (await waiting).release();
    });

    test("the last that is closed leaves no subscription, also when it is closed while it begins to wait", async () => {
      const own = await lab.redis();
      onTestFinished(() => own.kill());
      const client = quiet(new Redis(own.url));
      onTestFinished(() => client.disconnect());
      const store = redisStore(client);
      const others = locksOn(await open(own.url));
      await others.acquire("name");
      for (let round = 0; round < 10; round++) {
        const locks = locksOn(store);
        const waiting = locks.acquire("name").catch(({ code }) => code);
        for (let turn = 0; turn < round; turn++) await pause(0);
        await locks.close();
        expect(await waiting).toBe("CLOSED");
      }
      const subscribed = (): Promise<string> => own.cli("client", "list", "type", "pubsub");
      await until("nobody listens", async () => (await subscribed()) === "");
      // Nor later: nothing is under way.
      await pause(50);
      expect(await subscribed()).toBe("");
    });

    async function sharedStore(): Promise<RedisStore> {
      const client = quiet(new Redis(server.url));
      onTestFinished(() => client.disconnect());
      return redisStore(client);
    }
  });
});
