import { symlinkSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { Cluster, Redis } from "ioredis";
import { createClient, createCluster } from "redis";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { connect, type Locks } from "../../../src/index.js";
import { type RedisStore, redisStore } from "../../../src/stores/redis/index.js";
import { keyOf } from "../../../src/stores/redis/keys.js";
import { type Target, TcpProxy } from "../../../src/verify/faults/proxy.js";
import { redisConnectionKind } from "../../../src/verify/faults/redis-kind.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { freePort } from "../../../src/verify/lab/ports.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { startRedisCluster } from "../../../src/verify/lab/redis-cluster.js";
import { build, runNode } from "../../core/helpers.js";
import { describeWith } from "../../support/needs.js";
import {
  byCluster,
  byIoredis,
  callsSince,
  canBeNotified,
  claimOf,
  locksOn,
  quiet,
} from "../../support/redis.js";
import { until } from "../../support/worker.js";

/** So long that no renewal of a ticket is due, unless the test is about that. */
const LONG = { ttl: "60s", wait: "40s" } as const;

describeWith(["redis"], "Redis notifies its waiters", () => {
  let lab: Lab;
  let server: RedisServer;
  let names = 0;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis();
  });
  afterAll(() => lab.close());

  const freshName = (): string => `name ${++names}`;

  async function proxied(target: Target = server): Promise<TcpProxy> {
    const proxy = await TcpProxy.open(target);
    onTestFinished(() => proxy.close());
    return proxy;
  }

  /** A store whose subscriptions connect to these addresses in turn; the last serves all further ones. */
  function subscribingAt(
    urls: readonly string[],
    { url = server.url, ...options }: { url?: string; retryStrategy?: () => null } = {},
  ): RedisStore {
    let subscriptions = 0;
    const client = quiet(new Redis(url));
    client.duplicate = () => {
      const place = urls[Math.min(subscriptions++, urls.length - 1)]!;
      const subscriber = quiet(new Redis(place, options));
      onTestFinished(() => subscriber.disconnect());
      return subscriber;
    };
    return closing(redisStore(client, { closeClient: true }));
  }

  function closing(store: RedisStore): RedisStore {
    onTestFinished(() => store.close());
    return store;
  }

  const waitersAre = (locks: Locks, name: string, count: number): Promise<void> =>
    until(
      `${count} wait`,
      async () => ((await locks.inspect(name))?.waiters.length ?? 0) === count,
    );

  const another = async (url = server.url): Promise<Locks> =>
    locksOn(closing(await byIoredis(url)), LONG);

  test("a subscription that is reset again and again is back soon after", async () => {
    const proxy = await TcpProxy.open(server, { kindOf: redisConnectionKind });
    onTestFinished(() => proxy.close());
    const name = freshName();
    await locksOn(await byIoredis(server.url)).acquire(name, LONG);
    const locks = await connect(proxy.url);
    onTestFinished(() => locks.close());
    locks.acquire(name, LONG).catch(() => {});
    await canBeNotified(server, `default:${name}`, 1);
    const [channel] = (await server.cli("pubsub", "channels")).split("\n");
    const listeners = async (): Promise<string> => server.cli("pubsub", "numsub", channel!);
    const cut = proxy.cut({ only: "subscription" });
    await cut.inject();
    await until("nobody listens", async () => (await listeners()).endsWith("0"));
    await sleep(300);
    await cut.heal();
    // A silent connection is noticed by a ping, after up to 7 s.
    await until("it listens", async () => (await listeners()).endsWith("1"), 4_000);
  });

  test("by one subscription for all, opened when the first has to wait", async () => {
    const proxy = await proxied();
    const locks = locksOn(subscribingAt([proxy.url]), LONG);
    const [one, two] = [freshName(), freshName()];
    const leases = [await locks.acquire(one), await locks.acquire(two)];
    expect(await locks.tryAcquire(one)).toBeNull();
    expect(proxy.connections).toBe(0);
    const waiting = [one, one, two, two].map((name) => locks.acquire(name));
    await waitersAre(locks, one, 2);
    await waitersAre(locks, two, 2);
    // A ticket is in the queue before its process has subscribed.
    await until("it listens", async () => {
      const channels = await server.cli("pubsub", "channels", "holdfast:*");
      return channels !== "" && channels.split("\n").length === 1;
    });
    expect(proxy.connections).toBe(1);
    for (const lease of leases) await lease.release();
    for (const lease of waiting) await (await lease).release();
    expect(proxy.connections).toBe(1);
  });

  test("a ticket is checked after its process subscribes: a name that was freed meanwhile is not missed", async () => {
    const proxy = await proxied();
    const locks = locksOn(subscribingAt([proxy.url]), LONG);
    const name = freshName();
    const holder = await (await another()).acquire(name);
    const slow = proxy.stall();
    await slow.inject();
    const waiting = locks.acquire(name);
    await until("it subscribes", () => proxy.connections === 1);
    await holder.release();
    await slow.heal();
    await (await waiting).release();
  });

  test("a lost message costs time: the next renewal of the ticket finds the grant", async () => {
    const proxy = await proxied();
    const ttlMs = 1_500;
    const locks = locksOn(subscribingAt([proxy.url]), { ttl: ttlMs, wait: "20s" });
    const others = await another();
    const name = freshName();
    const holder = await others.acquire(name);
    const waiting = locks.acquire(name);
    await waitersAre(others, name, 1);
    await canBeNotified(server, `default:${name}`, 1);
    await proxy.swallow("to-client").inject();
    const fromMs = performance.now();
    await holder.release();
    const { holders } = (await others.inspect(name))!;
    const lease = await waiting;
    expect(performance.now() - fromMs).toBeLessThan(ttlMs + 2_000);
    // The release made this waiter the holder.
    expect(lease.token).toBe(holders[0]!.token);
    await lease.release();
  });

  test("a waiter that learns of its grant from a renewal keeps no subscription open", async () => {
    const own = await lab.redis();
    const client = quiet(new Redis(own.url));
    onTestFinished(() => client.disconnect());
    const duplicate = client.duplicate.bind(client);
    // The process has subscribed, and receives nothing.
    client.duplicate = () => {
      const subscriber = duplicate();
      const on = subscriber.on.bind(subscriber);
      subscriber.on = (event: string, listener: (...args: never[]) => void) =>
        event === "message" ? subscriber : on(event as "error", listener as () => void);
      return subscriber;
    };
    const store = redisStore(client);
    const [held, waiting] = [claimOf("name"), claimOf("name", { queue: true })];
    await store.claim(held, () => {});
    expect((await store.claim(waiting, () => {})).kind).toBe("queued");
    await store.release([{ name: "name", grantId: held.grantId }]);
    const renewal = { name: "name", grantId: waiting.grantId, seq: 2, ttlMs: 60_000 };
    expect((await store.renew([renewal]))[0]?.kind).toBe("granted");
    const listening = (): Promise<string> => own.cli("client", "list", "type", "pubsub");
    expect(await listening()).not.toBe("");
    await store.close();
    await until("nobody listens", async () => (await listening()) === "");
  });

  test("after a reset, the process subscribes again, and all tickets are checked in one command", async () => {
    const proxy = await proxied();
    const locks = locksOn(subscribingAt([proxy.url]), LONG);
    const others = await another();
    const many = Array.from({ length: 50 }, freshName);
    const held = await Promise.all(many.map((name) => others.acquire(name)));
    const waiting = many.map((name) => locks.acquire(name));
    await waitersAre(others, many[49]!, 1);
    for (const name of many) await canBeNotified(server, `default:${name}`, 1);
    const calls = await callsSince(server);
    const cut = proxy.cut();
    await cut.inject();
    await cut.heal();
    await until("the tickets are checked", async () => (await calls("evalsha")) > 0);
    expect(proxy.connections).toBe(2);
    expect(await calls("evalsha")).toBe(1);
    // Each has kept its ticket, and is pushed its grant.
    await Promise.all(held.map((lease) => lease.release()));
    await Promise.all(waiting.map(async (one) => (await one).release()));
  });

  test("a waiter that could not be reached when its turn came loses its place, and gets the name later", async () => {
    const proxy = await proxied();
    const away = locksOn(subscribingAt([proxy.url]), LONG);
    const others = await another();
    const name = freshName();
    const holder = await others.acquire(name);
    const order: string[] = [];
    const first = away.acquire(name).then((lease) => {
      order.push("away");
      return lease;
    });
    await waitersAre(others, name, 1);
    const second = others.acquire(name).then((lease) => {
      order.push("there");
      return lease;
    });
    await waitersAre(others, name, 2);
    await canBeNotified(server, `default:${name}`, 2);
    const cut = proxy.cut();
    await cut.inject();
    await until("nobody listens for it", async () => (await listeners()) === 1);
    await holder.release();
    const lease = await second;
    await cut.heal();
    // Its connection reports that it was lost: the waiter claims again.
    await waitersAre(others, name, 1);
    await lease.release();
    await (await first).release();
    expect(order).toEqual(["there", "away"]);
  });

  const listeners = async (): Promise<number> => {
    const channels = (await server.cli("pubsub", "channels", "holdfast:*")).split("\n");
    return channels.filter((one) => one !== "").length;
  };

  test("a dead waiter is skipped at once", async () => {
    const others = await another();
    const name = freshName();
    const holder = await others.acquire(name);
    const dying = quiet(new Redis(server.url));
    const subscribers: Redis[] = [];
    const duplicate = dying.duplicate.bind(dying);
    dying.duplicate = (...args) => {
      const subscriber = duplicate(...args);
      subscribers.push(subscriber);
      return subscriber;
    };
    const dead = locksOn(redisStore(dying), LONG);
    dead.acquire(name).catch(() => {});
    await waitersAre(others, name, 1);
    const next = others.acquire(name);
    await waitersAre(others, name, 2);
    await canBeNotified(server, `default:${name}`, 2);
    for (const client of [dying, ...subscribers]) client.disconnect();
    await until("it is gone", async () => (await listeners()) === 1);
    const fromMs = performance.now();
    await holder.release();
    await (await next).release();
    expect(performance.now() - fromMs).toBeLessThan(2_000);
  });

  describe("while subscriptions fail, though commands work", () => {
    const withoutSubscription = async (): Promise<RedisStore> => {
      const nobody = `redis://127.0.0.1:${await freePort()}`;
      return subscribingAt([nobody], { retryStrategy: () => null });
    };

    test("a waiter keeps its place for longer than its ttl, and a wait that times out says who holds", async () => {
      const locks = locksOn(await withoutSubscription(), { ttl: 1_000, wait: "20s" });
      const others = await another();
      const name = freshName();
      const holder = await others.acquire(name);
      const order: string[] = [];
      const first = locks.acquire(name).finally(() => order.push("first"));
      await waitersAre(others, name, 1);
      const second = others.acquire(name).finally(() => order.push("second"));
      for (const one of [first, second]) one.catch(() => {});
      await waitersAre(others, name, 2);
      await expect(locks.acquire(name, { wait: 3_500 })).rejects.toMatchObject({
        code: "ACQUIRE_TIMEOUT",
      });
      await holder.release();
      await (await first).release();
      await (await second).release();
      expect(order).toEqual(["first", "second"]);
    });

    test("a handover does not wait for the next renewal of the ticket", async () => {
      const locks = locksOn(await withoutSubscription(), LONG);
      const others = await another();
      const name = freshName();
      const holder = await others.acquire(name);
      const waiting = locks.acquire(name);
      await waitersAre(others, name, 1);
      await holder.release();
      const fromMs = performance.now();
      await (await waiting).release();
      expect(performance.now() - fromMs).toBeLessThan(5_000);
    });
  });

  test("a malformed message does no harm", async () => {
    const locks = locksOn(subscribingAt([server.url]), LONG);
    const name = freshName();
    const holder = await locks.acquire(name);
    const waiting = locks.acquire(name);
    await waitersAre(locks, name, 1);
    const channels = (await server.cli("pubsub", "channels", "holdfast:*")).split("\n");
    for (const text of [
      "",
      "garbage",
      "null",
      "[]",
      "{}",
      '{"grantId":1}',
      '{"grantId":"x","grant":3}',
    ]) {
      for (const channel of channels) await server.cli("publish", channel, text);
    }
    await holder.release();
    await (await waiting).release();
  });

  describe("when commands go to another server, the subscription goes too", () => {
    const CLIENTS = {
      ioredis: (urls: { commands: string; subscriptions: string }) =>
        subscribingAt([urls.subscriptions], { url: urls.commands }),
      "node-redis": async (urls: { commands: string; subscriptions: string }) => {
        const client = quiet(createClient({ url: urls.commands }));
        await client.connect();
        client.duplicate = (() => quiet(createClient({ url: urls.subscriptions }))) as never;
        return closing(redisStore(client, { closeClient: true }));
      },
    };

    test.each(Object.entries(CLIENTS))("by %s", async (_, open) => {
      const [before, after] = await failoverPair();
      // One address, which leads to another server later. The subscription is not told of it.
      const target = { address: before.address, port: before.port, url: before.url };
      const [commands, subscriptions] = [await proxied(target), await proxied(target)];
      const store = await open({ commands: commands.url, subscriptions: subscriptions.url });
      const locks = locksOn(store, LONG);
      const holder = claimOf("default:name");
      await closing(await byIoredis(before.url)).claim(holder, () => {});
      const waiting = locks.acquire("name");
      waiting.catch(() => {});
      await until("it waits", async () => (await locks.inspect("name"))!.waiters.length === 1);
      await canBeNotified(before, "default:name", 1);
      await after.synced();
      await after.promote();
      target.port = after.port;
      const cut = commands.cut();
      await cut.inject();
      await cut.heal();
      const listening = async (at: RedisServer): Promise<boolean> =>
        (await at.cli("pubsub", "channels", "holdfast:*")) !== "";
      await until("it listens there", () => listening(after));
      await until("and not here", async () => !(await listening(before)));
      const fromMs = performance.now();
      await closing(await byIoredis(after.url)).release([
        { name: "default:name", grantId: holder.grantId },
      ]);
      await (await waiting).release();
      expect(performance.now() - fromMs).toBeLessThan(3_000);
    });

    async function failoverPair(): Promise<[RedisServer, RedisServer]> {
      const before = await lab.redis();
      const after = await lab.redis({ replicaOf: before });
      await after.synced();
      return [before, after];
    }
  });

  describe("a dead subscription is replaced, and waiters are notified", () => {
    const ends: Record<
      string,
      (own: RedisServer, dead: TcpProxy, alive: TcpProxy) => Promise<void>
    > = {
      "half-open: found by a ping": async (own, dead, alive) => {
        const locks = locksOn(subscribingAt([dead.url, alive.url], { url: own.url }), LONG);
        await isReplaced(own, locks, alive, () => silence(dead));
      },
      "half-open, by node-redis": async (own, dead, alive) => {
        const client = quiet(createClient({ url: own.url }));
        await client.connect();
        const urls = [dead.url, alive.url];
        client.duplicate = (() => quiet(createClient({ url: urls.shift()! }))) as never;
        const locks = locksOn(closing(redisStore(client, { closeClient: true })), LONG);
        await isReplaced(own, locks, alive, () => silence(dead));
      },
      "ended for good, by a client that does not connect again": async (own, dead, alive) => {
        const options = { url: own.url, retryStrategy: () => null };
        const locks = locksOn(subscribingAt([dead.url, alive.url], options), LONG);
        await isReplaced(own, locks, alive, () => dead.cut().inject());
      },
      "also when the next one fails at first": async (own, dead, alive) => {
        const options = { url: own.url, retryStrategy: () => null };
        const nobody = `redis://127.0.0.1:${await freePort()}`;
        const locks = locksOn(subscribingAt([dead.url, nobody, alive.url], options), LONG);
        await isReplaced(own, locks, alive, () => dead.cut().inject());
      },
      "in a cluster": async () => {
        const servers = await startRedisCluster(lab);
        const cases = {
          "ioredis, silent": [byIoredisCluster, silence],
          "ioredis, reset": [byIoredisCluster, reset],
          "ioredis, its node is no longer of the cluster": [byIoredisCluster, forgotten],
          "node-redis, silent": [byNodeRedisCluster, silence],
          "node-redis, reset": [byNodeRedisCluster, reset],
          "node-redis, its node is no longer of the cluster": [byNodeRedisCluster, forgotten],
        } as const;
        const waiting: (() => Promise<void>)[] = [];
        // Sequentially, to see whose subscription is where.
        for (const [open, end] of Object.values(cases)) {
          waiting.push(await waitsInCluster(servers, open, end));
        }
        const outcomes = await Promise.allSettled(waiting.map((isPushed) => isPushed()));
        const failed = failedOf(cases, outcomes);
        if (failed.length > 0) throw new Error(failed.join("; "));
      },
    };

    const failedOf = (
      cases: Record<string, unknown>,
      outcomes: readonly PromiseSettledResult<void>[],
    ): readonly string[] =>
      Object.keys(cases).flatMap((name, i) => {
        const outcome = outcomes[i]!;
        return outcome.status === "rejected" ? [`${name}: ${outcome.reason}`] : [];
      });

    // Concurrent: each needs its time to notice.
    test(Object.keys(ends).join("; "), async () => {
      const outcomes = await Promise.allSettled(
        Object.values(ends).map(async (replaced) => {
          const own = await lab.redis();
          await replaced(own, await proxied(own), await proxied(own));
        }),
      );
      expect(failedOf(ends, outcomes).join("; ")).toBe("");
    });

    type OpenCluster = (
      servers: readonly RedisServer[],
      proxies: readonly TcpProxy[],
    ) => Promise<{ store: RedisStore; forget(node: number): void }>;

    type End = (proxy: TcpProxy, forget: () => void) => unknown;

    const byIoredisCluster: OpenCluster = async (servers, proxies) => {
      const natMap = Object.fromEntries(
        servers.map(({ address, port }, i) => [
          `${address}:${port}`,
          { host: proxies[i]!.address, port: proxies[i]!.port },
        ]),
      );
      const nodes = proxies.map(({ address, port }) => ({ host: address, port }));
      const client = quiet(new Cluster(nodes, { natMap, lazyConnect: true }));
      await client.connect();
      const all = client.nodes.bind(client);
      return {
        store: redisStore(client, { closeClient: true }),
        forget(i) {
          client.nodes = (role) =>
            all(role).filter(({ options }) => options.port !== proxies[i]!.port);
        },
      };
    };

    const byNodeRedisCluster: OpenCluster = async (servers, proxies) => {
      const nodeAddressMap = Object.fromEntries(
        servers.map(({ address, port }, i) => [
          `${address}:${port}`,
          { host: proxies[i]!.address, port: proxies[i]!.port },
        ]),
      );
      const rootNodes = proxies.map(({ url }) => ({ url }));
      const client = quiet(createCluster({ rootNodes, nodeAddressMap }));
      await client.connect();
      return {
        store: redisStore(client, { closeClient: true }),
        forget(i) {
          const masters = client.masters.filter(({ port }) => port !== servers[i]!.port);
          Object.defineProperty(client, "masters", { value: masters });
        },
      };
    };

    /** The connection to the subscribed node ends; the name that is waited for belongs to another node. */
    async function waitsInCluster(
      servers: readonly RedisServer[],
      open: OpenCluster,
      end: End,
    ): Promise<() => Promise<void>> {
      const proxies = await Promise.all(servers.map((one) => proxied(one)));
      const { store, forget } = await open(servers, proxies);
      closing(store);
      let checks = 0;
      const renew = store.renew.bind(store);
      store.renew = (renewals) => {
        checks++;
        return renew(renewals);
      };
      const locks = locksOn(store, LONG);
      const others = locksOn(closing(await byCluster(servers, "")), LONG);
      const channels = (): Promise<string[]> =>
        Promise.all(servers.map((one) => one.cli("pubsub", "channels", "holdfast:*")));
      const before = await channels();

      // Any name serves to see by which node the process has subscribed.
      const first = freshName();
      await others.acquire(first);
      const seen = new AbortController();
      const waiting = locks.acquire(first, { signal: seen.signal });
      let listens = -1;
      await until("it listens", async () => {
        listens = (await channels()).findIndex((one, i) => one !== before[i]);
        return listens >= 0;
      });
      const name = await nameElsewhere(servers, listens);
      const holder = await others.acquire(name);
      const next = locks.acquire(name);
      for (const one of [waiting, next]) one.catch(() => {});
      await waitersAre(others, name, 1);
      seen.abort();
      await waitersAre(others, first, 0);
      return async () => {
        checks = 0;
        await end(proxies[listens]!, () => forget(listens));
        await until("the ticket is checked", () => checks > 0, 12_000);
        const fromMs = performance.now();
        await holder.release();
        await (await next).release();
        expect(performance.now() - fromMs).toBeLessThan(3_000);
      };
    }

    async function nameElsewhere(servers: readonly RedisServer[], not: number): Promise<string> {
      for (;;) {
        const name = freshName();
        const slot = await servers[0]!.cli("cluster", "keyslot", keyOf(`default:${name}`));
        const node = Math.floor(Number(slot) / (16_384 / servers.length));
        if (node !== not) return name;
      }
    }

    const forgotten: End = (_, forget) => forget();

    async function reset(proxy: TcpProxy): Promise<void> {
      const cut = proxy.cut();
      await cut.inject();
      await cut.heal();
    }

    async function silence(proxy: TcpProxy): Promise<void> {
      await proxy.swallow("to-client").inject();
      await proxy.swallow("to-server").inject();
    }

    async function isReplaced(
      own: RedisServer,
      locks: Locks,
      alive: TcpProxy,
      end: () => unknown,
    ): Promise<void> {
      const others = await another(own.url);
      const name = freshName();
      const holder = await others.acquire(name);
      const waiting = locks.acquire(name);
      waiting.catch(() => {});
      await waitersAre(others, name, 1);
      await canBeNotified(own, `default:${name}`, 1);
      const calls = await callsSince(own);
      await end();
      await until("it is replaced", () => alive.connections === 1, 15_000);
      await until("it listens", async () => (await calls("subscribe")) > 0);
      // All tickets are checked then.
      await until("the tickets are checked", async () => (await calls("evalsha")) > 0);
      const fromMs = performance.now();
      await holder.release();
      await (await waiting).release();
      expect(performance.now() - fromMs).toBeLessThan(3_000);
    }
  });

  describe("close()", () => {
    let built: ReturnType<typeof build>;
    beforeAll(async () => {
      built = build();
      symlinkSync(
        fileURLToPath(new URL("../../../node_modules", import.meta.url)),
        built.file("node_modules"),
      );
    });
    afterAll(() => built?.remove());

    const CLIENTS = {
      "connect()": (url: string) => `const locks = await connect(${JSON.stringify(url)}, options);`,
      ioredis: (url: string) => `
        const { Redis } = await import(${JSON.stringify(import.meta.resolve("ioredis"))});
        const client = new Redis(${JSON.stringify(url)});
        client.on("error", () => {});
        const locks = createLocks(redisStore(client, { closeClient: true }), options);`,
      "node-redis": (url: string) => `
        const { createClient } = await import(${JSON.stringify(import.meta.resolve("redis"))});
        const client = createClient({ url: ${JSON.stringify(url)} });
        client.on("error", () => {});
        await client.connect();
        const locks = createLocks(redisStore(client, { closeClient: true }), options);`,
      "a client of one's own": (url: string) => `
        const { Redis } = await import(${JSON.stringify(import.meta.resolve("ioredis"))});
        const client = new Redis(${JSON.stringify(url)});
        const locks = createLocks(redisStore(client), options);
        process.on("closed", () => client.disconnect());`,
    };

    /** A process that holds, waits and closes; resolves with the sockets and timers that are left. */
    async function closes(
      open: string,
      more: { beforeClose?: string } = {},
    ): Promise<{ code: number | null; out: string; err: string; killed: boolean }> {
      return runNode(
        `
        import { connect, createLocks } from ${JSON.stringify(built.file("index.js"))};
        import { redisStore } from ${JSON.stringify(built.file("stores/redis/index.js"))};
        const options = { ttl: "20s", commandTimeout: 500 };
        ${open}
        const name = "of " + process.pid;
        const lease = await locks.acquire(name);
        const waiting = locks.acquire(name).catch((error) => error.code);
        while ((await locks.inspect(name)).waiters.length === 0) await new Promise((go) => setTimeout(go, 5));
        ${more.beforeClose ?? ""}
        await locks.close().catch((error) => console.log(error.code));
        process.emit("closed");
        console.log(await waiting);
        const left = () => process.getActiveResourcesInfo().filter((one) => /TCP|TLS|Timeout|Immediate/.test(one));
        // ioredis gives a server that does not reply two seconds to end the connection.
        for (let i = 0; i < 100 && left().length > 0; i++) await new Promise((go) => setTimeout(go, 50));
        console.log("left", left().join());`,
        12_000,
      );
    }

    test.each(Object.entries(CLIENTS))("leaves no socket and no timer with %s", async (_, open) => {
      expect(await closes(open(server.url))).toMatchObject({
        code: 0,
        out: "CLOSED\nleft",
        killed: false,
      });
    });

    const CLUSTERS = {
      "connect()": (url: string) => CLIENTS["connect()"](`${url}?cluster`),
      ioredis: (url: string) => `
        const { Cluster } = await import(${JSON.stringify(import.meta.resolve("ioredis"))});
        const client = new Cluster([${JSON.stringify(url)}]);
        client.on("error", () => {});
        const locks = createLocks(redisStore(client, { closeClient: true }), options);`,
      "node-redis": (url: string) => `
        const { createCluster } = await import(${JSON.stringify(import.meta.resolve("redis"))});
        const client = createCluster({ rootNodes: [{ url: ${JSON.stringify(url)} }] });
        client.on("error", () => {});
        await client.connect();
        const locks = createLocks(redisStore(client, { closeClient: true }), options);`,
    };

    test("leaves none with a cluster", async () => {
      const own = await lab.redis({
        config: {
          "cluster-enabled": "yes",
          "cluster-port": String(await freePort()),
          "cluster-announce-ip": "127.0.0.1",
        },
      });
      await own.cli("cluster", "addslotsrange", "0", "16383");
      const isUp = async (): Promise<boolean> => /state:ok/.test(await own.cli("cluster", "info"));
      await until("it is up", isUp);
      const left = await Promise.all(Object.values(CLUSTERS).map((open) => closes(open(own.url))));
      expect(left.map(({ out }) => out)).toEqual(left.map(() => "CLOSED\nleft"));
    });

    test.each(["SIGKILL", "SIGSTOP"])(
      "leaves none when the server is gone, or does not reply: %s",
      async (signal) => {
        const left = await Promise.all(
          (["connect()", "ioredis", "node-redis"] as const).map(async (client) => {
            const doomed = await lab.redis();
            const { out, killed } = await closes(CLIENTS[client](doomed.url), {
              beforeClose: `
                process.kill(${doomed.pid}, "${signal}");
                await new Promise((go) => setTimeout(go, 200));`,
            });
            return [client, killed ? "killed" : out.replace(/^.*CLOSED\nleft/s, "")];
          }),
        );
        expect(left).toEqual(Object.entries({ "connect()": "", ioredis: "", "node-redis": "" }));
      },
    );
  });
});
