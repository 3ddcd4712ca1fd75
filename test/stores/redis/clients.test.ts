import { setTimeout as pause } from "node:timers/promises";
import { inspect } from "node:util";
import { Cluster, Redis } from "ioredis";
import { createClient, createClientPool, createCluster, createSentinel, RESP_TYPES } from "redis";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { eventCases } from "../../../src/conformance/events.js";
import { runCase } from "../../../src/conformance/index.js";
import { ignore } from "../../../src/conformance/subject.js";
import type { Claim } from "../../../src/core/store.js";
import type { Locks } from "../../../src/index.js";
import { type RedisClient, type RedisStore, redisStore } from "../../../src/stores/redis/index.js";
import { keyOf } from "../../../src/stores/redis/keys.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { realSubject } from "../../conformance/subjects.js";
import { rejection } from "../../core/helpers.js";
import { describeWith } from "../../support/needs.js";
import {
  byIoredis,
  byNodeRedis,
  claimOf,
  keysAndTtls,
  locksOn,
  quiet,
  rawRedis,
} from "../../support/redis.js";
import { until } from "../../support/worker.js";

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

test.each(Object.entries(TAKEN))("%s is accepted", (name, client) => {
  const { traits } = redisStore(client());
  expect(traits.store).toBe(/cluster/i.test(name) ? "Redis Cluster" : "Redis");
});

test.each([null, undefined, {}, "redis://localhost", 6379])(
  "%s is refused as no client",
  (client) => {
    expect(() => redisStore(client as never)).toThrow(/pass a client of ioredis .* or node-redis/);
  },
);

describe("clients that can't be used are refused, with what to pass instead", () => {
  const ioredis = (): Redis => new Redis({ lazyConnect: true });
  const UNSUITABLE: Record<string, [client: () => unknown, why: RegExp]> = {
    "a pool of node-redis": [() => createClientPool(), /pool/],
    "node-redis, by legacy()": [() => createClient().legacy(), /callbacks/],
    // Version 4 is no dependency here: as much of it as is needed to recognise it.
    "node-redis 4, legacyMode": [
      () => ({
        options: { legacyMode: true },
        evalsha() {},
        eval() {},
        duplicate() {},
        on() {},
        disconnect() {},
      }),
      /legacyMode/,
    ],
    "node-redis, sentinels": [
      () => createSentinel({ name: "a", sentinelRootNodes: [{ host: "127.0.0.1", port: 1 }] }),
      /sentinels/,
    ],
    "node-redis, a transaction": [() => createClient().multi(), /transaction/],
    "ioredis, a transaction": [() => ioredis().multi(), /transaction/],
    "ioredis, a pipeline": [() => ioredis().pipeline(), /pipeline/],
  };

  test.each(Object.entries(UNSUITABLE))("%s", (_, [client, why]) => {
    const use = (): unknown => redisStore(client() as never);
    expect(use).toThrow(why);
    expect(use).toThrow(expect.objectContaining({ code: "INVALID_ARGUMENT" }));
  });
});

describeWith(["redis"], "Redis, with the user's own client", () => {
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

  test("leaves the client open, unless the store is told to close it", async () => {
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

  test("puts the key prefix of ioredis before every key, which keeps locks apart", async () => {
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

  test("refuses a client in subscriber mode at once, without a retry", async () => {
    const clients = [
      quiet(createClient({ url: server.url, RESP: 2 })),
      quiet(new Redis(server.url, { lazyConnect: true, protocol: 2 })),
    ] as const;
    for (const client of clients) await client.connect();
    onTestFinished(() => {
      clients[0].destroy();
      clients[1].disconnect();
    });
    const stores = clients.map((client) => redisStore(client));
    await clients[0].subscribe("channel", () => {});
    await clients[1].subscribe("channel");
    for (const store of stores) {
      const error = await rejection(locksOn(store).acquire("name"));
      expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
      expect(error.message).toMatch(/listens to channels .* a client of its own/);
    }
    expect(() => redisStore(clients[1])).toThrow(/subscriber mode/);
  });

  test("works with pipelines of ioredis, and with a prefix of node-redis", async () => {
    const piped = quiet(new Redis(server.url, { db: ++databases, enableAutoPipelining: true }));
    const prefixed = quiet(
      createClient({ url: server.url, database: ++databases, keyPrefix: "app[1]*:" }),
    );
    await prefixed.connect();
    for (const client of [piped, prefixed]) {
      const store = closing(redisStore(client, { closeClient: true }));
      const [one, two] = [locksOn(store), locksOn(store)];
      const leases = await Promise.all(["a", "b", "c"].map((name) => one.acquire(name)));
      const waiting = two.acquire("a");
      await until("it waits", async () => (await one.inspect("a"))!.waiters.length === 1);
      expect((await one.list()).map(({ name }) => name)).toEqual(["a", "b", "c"]);
      for (const lease of leases) expect(await lease.release()).toBe("released");
      await (await waiting).release();
    }
  });

  test("shows no grantId in errors, whatever the client puts into them", async () => {
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

  test("reports a client that returns bytes, for each request", async () => {
    const client = quiet(createClient({ url: server.url }));
    await client.connect();
    onTestFinished(() => client.destroy());
    const store = redisStore(client.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer }));
    const claims = [claimOf("bytes 1"), claimOf("bytes 2", { queue: true })];
    const renewals = claims.map(({ names, grantId }) => ({
      name: names[0]!,
      grantId,
      seq: 2,
      ttlMs: 60_000,
    }));
    const refused = { code: "UNSUPPORTED", message: expect.stringContaining("type mapping") };
    const outcomes = await Promise.allSettled([
      ...claims.map((claim) => store.claim(claim, ignore)),
      store.release(renewals),
      store.inspect("bytes 1"),
    ]);
    for (const one of outcomes) expect(one).toMatchObject({ status: "rejected", reason: refused });
    // A single request fails likewise.
    await expect(store.claim(claimOf("bytes 3"), ignore)).rejects.toMatchObject(refused);
    await expect(store.list("bytes", 10)).rejects.toMatchObject(refused);
    const unknown = { kind: "unknown", cause: refused };
    expect(await store.renew(renewals)).toMatchObject([unknown, unknown]);
  });

  describe("with a client that repeats commands that got no reply", () => {
    /** The default of ioredis: commands wait for a connection, and are repeated on the next. */
    async function through(proxy: TcpProxy, ttlMs: number): Promise<Locks> {
      const store = redisStore(quiet(new Redis(proxy.url)), { closeClient: true });
      return locksOn(closing(store), { ttl: ttlMs, wait: "20s" });
    }

    async function proxied(): Promise<TcpProxy> {
      const proxy = await TcpProxy.open(server);
      onTestFinished(() => proxy.close());
      return proxy;
    }

    test("makes no second grant after a lost reply, and takes nothing from the next holder", async () => {
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
      // The second copy of the claim finds that another client holds the name.
      expect(["released", "lost"]).toContain(await lease.release());
      await lost.heal();
      const next = await waiting;
      expect((await others.inspect("lost reply"))!.holders).toHaveLength(1);
      expect(await next.release()).toBe("released");
    });

    test("has one holder at a time and rising tokens while connections break all the time", async () => {
      const places = await Promise.all([1, 2, 3].map(proxied));
      const clients = await Promise.all(places.map((proxy) => through(proxy, 3_000)));
      for (const proxy of places) {
        const strikes = { times: Number.POSITIVE_INFINITY };
        const every = (n: number) => {
          let requests = 0;
          return (request: Buffer) => request.includes("evalsha") && ++requests % n === 0;
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
            // A repeated release finds nothing: the lease counts as lost, to be on the safe side.
            await work.catch((error) => expect(error).toMatchObject({ code: "LEASE_LOST" }));
          }
        }),
      );
      expect(tokens).toHaveLength(45);
      expect(tokens).toEqual([...new Set(tokens)].sort((a, b) => (a < b ? -1 : 1)));
    });
  });

  describe("replicas, with a failover between a script and its WAIT", () => {
    const CLIENTS = {
      ioredis: async (url: string) => {
        const client = quiet(new Redis(url, { lazyConnect: true }));
        await client.connect();
        onTestFinished(() => client.disconnect());
        return { client, lost: "close" };
      },
      "node-redis": async (url: string) => {
        const client = quiet(createClient({ url }));
        await client.connect();
        onTestFinished(() => client.destroy());
        return { client, lost: "reconnecting" };
      },
    };

    let pairs: { primary: RedisServer; replica: RedisServer }[];
    beforeAll(async () => {
      pairs = await Promise.all(
        [1, 2].map(async () => {
          const primary = await lab.redis();
          const replica = await lab.redis({ replicaOf: primary });
          await replica.synced();
          return { primary, replica };
        }),
      );
    });

    test.each([
      ["ioredis", "under way"],
      ["ioredis", "not yet sent"],
      ["node-redis", "under way"],
      ["node-redis", "not yet sent"],
    ] as const)(
      "by %s, %s: the replicas of another server count for nothing",
      async (library, moment) => {
        let [one, two] = pairs as [(typeof pairs)[0], (typeof pairs)[0]];
        const { address, port, url } = one.primary;
        const target = { address, port, url };
        const proxy = await TcpProxy.open(target);
        onTestFinished(() => proxy.close());
        const { client, lost } = await CLIENTS[library](proxy.url);
        const wait = (client.wait as (...args: number[]) => Promise<number>).bind(client);
        const store = closing(redisStore(client, { replicas: 1 }));

        async function failOver(): Promise<void> {
          target.port = two.primary.port;
          const disconnected = new Promise<void>(
            (resolve) => void client.once(lost as "end", resolve),
          );
          const cut = proxy.cut();
          await cut.inject();
          await disconnected;
          await cut.heal();
        }

        /** Replicas of the written server do not confirm; those of the other server do. */
        async function during(
          send: () => Promise<unknown>,
        ): Promise<PromiseSettledResult<unknown>> {
          await one.replica.pause();
          let waits = 0;
          const hooked = async (...args: number[]): Promise<number> => {
            waits++;
            if (moment === "not yet sent") await failOver();
            const answer = wait(...args);
            answer.catch(() => {});
            if (moment === "under way") await failOver();
            return answer;
          };
          Object.assign(client, { wait: hooked });
          const [outcome] = await Promise.allSettled([send()]);
          Object.assign(client, { wait });
          await one.replica.resume();
          expect(waits).toBe(1);
          return outcome;
        }

        const granted = async (claim: Claim): Promise<string> =>
          (await store.claim(claim, ignore)).kind;
        const claimed = await during(() => granted(claimOf(`claimed, ${library} ${moment}`)));
        expect(claimed.status).toBe("rejected");

        // On the next connection confirmations count again; then back to the first server.
        const kept = claimOf(`kept, ${library} ${moment}`);
        expect(await granted(kept)).toBe("granted");
        const renewal = { name: kept.names[0]!, grantId: kept.grantId, ttlMs: 60_000 };
        expect((await store.renew([{ ...renewal, seq: 2 }]))[0]!.kind).toBe("granted");
        [one, two] = [two, one];
        const renewed = await during(() => store.renew([{ ...renewal, seq: 3 }]));
        expect(renewed).toMatchObject({ status: "fulfilled", value: [{ kind: "unknown" }] });
      },
    );
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

    test("an acquire fails without the replica, and leaves nothing behind", async () => {
      const locks = locksOn(await store());
      await paused(async () => {
        const error = await rejection(locks.acquire("name", { wait: 0 }));
        expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: true });
        expect(error.message).toContain("0 of 1 required replicas");
        await until("nothing is left", async () => (await locks.inspect("name")) === null);
      });
      await (await locks.acquire("name")).release();
    });

    test("many acquires without the replica take no longer than one", async () => {
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

    test.each(eventCases.map((one) => [one.name, one] as const))("%s", async (_name, one) => {
      const subject = realSubject(() => open(primary.url, { replicas: 1 }));
      expect(await runCase(one, subject)).toBe("passed");
    });

    test("a handover counts after the waiter's own renewal", async () => {
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
        // The waiter was notified, has renewed, and knows that no replica has the grant.
        await pause(1_500);
        expect(held).toBe(false);
      });
      await (await waiting).release();
    });
  });
});
