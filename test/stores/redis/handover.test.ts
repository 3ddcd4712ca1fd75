import { setTimeout as pause } from "node:timers/promises";
import { Redis } from "ioredis";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { grantOf, ignore } from "../../../src/conformance/subject.js";
import type { Claim, Push } from "../../../src/core/store.js";
import { type RedisStore, redisStore } from "../../../src/stores/redis/index.js";
import { keysOf } from "../../../src/stores/redis/keys.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { describeWith } from "../../support/needs.js";
import {
  byIoredis,
  byNodeRedis,
  callsSince,
  claimOf,
  listening,
  locksOn,
  quiet,
} from "../../support/redis.js";
import { until } from "../../support/worker.js";

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
    "a waiter whose subscription %s while its commands work is not skipped by a request that replies to it:",
    (how) => {
      /** Long enough that both wait before the holder expires, also on a busy machine. */
      const HOLDER_MS = 1_500;

      /** `first` and `second` wait; `first` has no subscription. The holder vanishes, or is `first`'s client. */
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

      test("its claim", async () => {
        const { store, others, first, second } = await startQueue({ holds: "vanished" });
        grantOf(await store.claim({ ...first, seq: 2 }, ignore));
        await expectFirstHolds(others, first, second);
      });

      test("its renewal", async () => {
        const { store, others, first, second } = await startQueue({ holds: "vanished" });
        expect(await renew(store, first)).toBe("granted");
        await expectFirstHolds(others, first, second);
      });

      test("its renewal, after another of the same batch that makes it the holder", async () => {
        const { store, others, first, second } = await startQueue({ holds: "vanished" });
        const renewals = [second, first].map(({ names: [name], grantId }) => {
          return { name: name!, grantId, seq: 2, ttlMs: 60_000 };
        });
        const answers = await store.renew(renewals);
        expect(answers.map(({ kind }) => kind)).toEqual(["queued", "granted"]);
        await expectFirstHolds(others, first, second);
      });

      test("its claim, before a release of the same batch that makes it the holder", async () => {
        const { store, others, holder, first, second } = await startQueue({ holds: "first" });
        const claiming = store.claim({ ...first, seq: 2 }, ignore);
        claiming.catch(ignore);
        await release(store, holder);
        await expectFirstHolds(others, first, second);
        expect(await renew(store, first)).toBe("granted");
      });
    },
  );

  test("a message that no subscriber of the primary received, but one of a replica did, is no grant", async () => {
    const replica = await lab.redis({ replicaOf: server });
    onTestFinished(() => replica.kill());
    await replica.synced();
    const name = freshName();
    const [others, { store }] = [await open(), subscribingAt(replica.url)];
    const pushed: string[] = [];
    const recordAs = (who: string) => (push: Push) => pushed.push(`${who}: ${push.kind}`);
    const holder = claimOf(name);
    grantOf(await others.claim(holder, ignore));
    const [first, second] = [claimOf(name, { queue: true }), claimOf(name, { queue: true })];
    expect((await store.claim(first, recordAs("first"))).kind).toBe("queued");
    expect((await others.claim(second, recordAs("second"))).kind).toBe("queued");
    await release(others, holder);
    await until("both are notified", () => pushed.length === 2);
    expect(pushed.sort()).toEqual(["first: look", "second: granted"]);
    expect((await others.inspect(name))!.holders).toMatchObject([{ holder: second.holder }]);
  });

  describe("to a lease that expires before its waiters renew their tickets,", () => {
    const LONG = { ttlMs: 60_000, queue: true };
    const SHORT = { ttlMs: 5_000, queue: true };

    /** A holder, and these waiters in one process; another waiter in that process waits for another name. */
    async function startQueue(claims: readonly Partial<Claim>[]) {
      const [name, other] = [freshName(), freshName()];
      const [store, others] = [await open(), await open()];
      await listening(store);
      const holder = claimOf(name, { ttlMs: 60_000 });
      grantOf(await others.claim(holder, ignore));
      grantOf(await others.claim(claimOf(other), ignore));
      const pushed: string[] = [];
      const recordAs = (who: string) => (push: Push) => pushed.push(`${who}: ${push.kind}`);
      const waiters = claims.map((one) => claimOf(name, one));
      for (const [i, one] of waiters.entries()) await store.claim(one, recordAs(`${i}`));
      await store.claim(claimOf(other, LONG), recordAs("other"));
      return { name, store, others, holder, waiters, pushed };
    }

    test("the first three waiters are notified to check, and nobody else", async () => {
      const { others, holder, pushed } = await startQueue([SHORT, LONG, SHORT, LONG, LONG]);
      await release(others, holder);
      await until("they are notified", () => pushed.length === 3);
      await pause(50);
      expect(pushed.sort()).toEqual(["0: granted", "1: look", "3: look"]);
    });

    test("they are notified also behind a hundred that left, and where an older Holdfast did not record the longest ttl", async () => {
      const gone = Array.from({ length: 100 }, () => LONG);
      const started = await startQueue([SHORT, ...gone, LONG, LONG]);
      const { name, store, others, holder, waiters, pushed } = started;
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
      await until("they are notified", () => pushed.length === 3);
      expect(pushed.sort()).toEqual(["0: granted", "101: look", "102: look"]);
    });

    test("a waiter that gets this request's reply is not notified as well", async () => {
      const { name, store, others, holder, waiters, pushed } = await startQueue([
        SHORT,
        LONG,
        LONG,
      ]);
      await others.renew([{ name, grantId: holder.grantId, seq: 2, ttlMs: 20 }]);
      await until("all are notified of the sooner end", () => pushed.length === 3);
      pushed.length = 0;
      await pause(40);
      expect(await renew(store, waiters[1]!)).toBe("queued");
      await until("the others are notified", () => pushed.length === 2);
      await pause(50);
      expect(pushed.sort()).toEqual(["0: granted", "2: look"]);
    });

    test("with equal ttls nobody is notified to check", async () => {
      const { others, holder, pushed } = await startQueue([LONG, LONG, LONG]);
      await release(others, holder);
      await until("it is notified", () => pushed.length > 0);
      await pause(50);
      expect(pushed).toEqual(["0: granted"]);
    });
  });

  describe("when a holder's expiry moves to before its waiters renew their tickets,", () => {
    const LONG_MS = 60_000;
    const SOON_MS = 200;

    /** A holder that is never renewed: its process was killed. */
    async function startHolder(atLeastMs: number) {
      const [store, others] = [await open(), await open()];
      const name = `late:${freshName()}`;
      const holder = claimOf(name, { ttlMs: LONG_MS, atLeastMs });
      grantOf(await others.claim(holder, ignore));
      return { name, store, others, holder };
    }

    const STEPS = {
      "because it renews to a shorter ttl": {
        atLeastMs: 0,
        move: (others: RedisStore, { names: [name], grantId }: Claim) =>
          others.renew([{ name: name!, grantId, seq: 2, ttlMs: SOON_MS }]),
      },
      "because it claims again with a shorter ttl": {
        atLeastMs: 0,
        move: (others: RedisStore, holder: Claim) =>
          others.claim({ ...holder, seq: 2, ttlMs: SOON_MS }, ignore),
      },
      "because it releases, and atLeast keeps the name closed": {
        atLeastMs: 2_000,
        move: release,
      },
    };

    test.each(Object.entries(STEPS))(
      "%s, the waiter gets the name soon after",
      async (_, { atLeastMs, move }) => {
        const { name, store, others, holder } = await startHolder(atLeastMs);
        const locks = locksOn(store, { ttl: LONG_MS, wait: LONG_MS, namespace: "late" });
        const waiting = locks.acquire(name.slice("late:".length));
        await until("it waits", async () => (await others.inspect(name))!.waiters.length === 1);
        await until("it listens", async () =>
          (await server.cli("hvals", keysOf(name)[1])).includes("holdfast:wake:"),
        );
        const fromMs = performance.now();
        await move(others, holder);
        await (await waiting).release();
        // The ticket would be renewed after almost 20 s.
        expect(performance.now() - fromMs).toBeLessThan(10_000);
      },
    );

    test("those of the first three that would renew too late are notified, and nobody at a usual renewal", async () => {
      const { name, store, others, holder } = await startHolder(0);
      await listening(store);
      const pushed: number[] = [];
      const waiters = [LONG_MS, LONG_MS / 4, LONG_MS, LONG_MS];
      for (const [i, ttlMs] of waiters.entries()) {
        await store.claim(claimOf(name, { ttlMs, queue: true }), ({ kind }) => {
          if (kind === "look") pushed.push(i);
        });
      }
      const to = (ttlMs: number, seq: number): Promise<unknown> =>
        others.renew([{ name, grantId: holder.grantId, seq, ttlMs }]);
      const calls = await callsSince(server);
      await to(LONG_MS, 2);
      expect(await calls("publish")).toBe(0);
      await to(LONG_MS / 10, 3);
      await until("they are notified", () => pushed.length === 2);
      // A renewal that was overtaken changes nothing.
      await to(SOON_MS, 1);
      await pause(50);
      expect(pushed).toEqual([0, 2]);
    });

    test("nobody is notified while another holder expires sooner", async () => {
      const [store, others] = [await open(), await open()];
      await listening(store);
      const name = freshName();
      const permit = { permits: 1, limit: 2 };
      const long = claimOf(name, { ...permit, ttlMs: LONG_MS });
      grantOf(await others.claim(long, ignore));
      grantOf(await others.claim(claimOf(name, { ...permit, ttlMs: 15_000 }), ignore));
      const pushed: string[] = [];
      const both = claimOf(name, { permits: 2, limit: 2, ttlMs: LONG_MS, queue: true });
      await store.claim(both, ({ kind }) => pushed.push(kind));
      const to = (ttlMs: number, seq: number): Promise<unknown> =>
        others.renew([{ name, grantId: long.grantId, seq, ttlMs }]);
      const calls = await callsSince(server);
      await to(18_000, 2);
      expect(await calls("publish")).toBe(0);
      await to(5_000, 3);
      await until("it is notified", () => pushed.length === 1);
      expect(pushed).toEqual(["look"]);
    });
  });

  test("a forged message is no grant", async () => {
    const name = freshName();
    const [store, others] = [await open(), await open()];
    const held = claimOf(name);
    grantOf(await others.claim(held, ignore));
    const pushed: Push[] = [];
    const waiting = claimOf(name, { queue: true });
    await store.claim(waiting, (push) => pushed.push(push));
    const [channel] = (await server.cli("pubsub", "channels", "holdfast:*")).split("\n");
    const forged = [
      `granted ${waiting.grantId}`,
      waiting.grantId,
      `9007199254740991 1 1e300 1 ${waiting.grantId}`,
      `-1 -1 60000 1 ${waiting.grantId}`,
    ];
    for (const text of forged) await server.cli("publish", channel!, text);
    // Messages arrive in order: when the last has arrived and is confirmed, so are the others.
    await release(others, held);
    await until("it is notified", () => pushed.length > 0);
    const { token } = (await others.inspect(name))!.holders[0]!;
    const grant = { token, floor: token, ttlMs: 60_000, seq: 1, handedOver: true };
    expect(pushed).toEqual([{ kind: "granted", grant }]);
  });

  test("the first waiter of a process has its place before the process has subscribed", async () => {
    const name = freshName();
    const proxy = await proxied();
    const [others, { store }] = [await open(), subscribingAt(proxy.url)];
    await listening(others);
    const holder = claimOf(name);
    grantOf(await others.claim(holder, ignore));
    const slow = proxy.stall();
    await slow.inject();
    const [first, second] = [claimOf(name, { queue: true }), claimOf(name, { queue: true })];
    const claiming = store.claim(first, ignore);
    await until("it subscribes", () => proxy.connections === 1);
    expect((await others.claim(second, ignore)).kind).toBe("queued");
    await release(others, holder);
    await slow.heal();
    grantOf(await claiming);
    expect(await renew(others, second)).toBe("queued");
  });

  test.each([
    ["ioredis", byIoredis],
    ["node-redis", byNodeRedis],
  ])(
    "a subscription that is refused when it is renewed is retried until it is allowed: %s",
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
      const pushed: string[] = [];
      await store.claim(waiting, ({ kind }) => pushed.push(kind));
      await until("it listens", listens);
      await allow("-subscribe");
      await own.cli("client", "kill", "type", "pubsub");
      const refused = async (): Promise<boolean> =>
        /cmdstat_subscribe:.*rejected_calls=[1-9]/.test(await own.cli("info", "commandstats"));
      await until("it is refused", refused);
      await allow("+subscribe");
      await until("it listens again", listens);
      // The waiter learns that its subscription was lost; then the name is handed over.
      await until("it is notified", () => pushed.includes("look"));
      await release(others, holder);
      await until("it is notified", () => pushed.includes("granted"));
    },
  );

  describe("two Locks share a store", () => {
    test("closing one does not end the waits of the other", async () => {
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

    test("closing the last leaves no subscription, even while it begins to wait", async () => {
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
      // Nor later: no request is in flight.
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
