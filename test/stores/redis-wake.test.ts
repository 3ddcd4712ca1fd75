import { symlinkSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { Redis } from "ioredis";
import { createClient } from "redis";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import type { Locks } from "../../src/index.js";
import { type RedisStore, redisStore } from "../../src/stores/redis/index.js";
import { TcpProxy } from "../../src/verify/faults/proxy.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { freePort } from "../../src/verify/lab/ports.js";
import type { RedisServer } from "../../src/verify/lab/redis.js";
import { build, runNode } from "../core/helpers.js";
import { describeWith } from "../support/needs.js";
import { byIoredis, callsSince, claimOf, locksOn, quiet } from "../support/redis.js";
import { until } from "../support/worker.js";

/** So long that no renewal of a ticket is due in a test, unless it is about that. */
const LONG = { ttl: "60s", wait: "40s" };

describeWith(["redis"], "Redis wakes its waiters", () => {
  let lab: Lab;
  let server: RedisServer;
  let names = 0;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis();
  });
  afterAll(() => lab.close());

  const freshName = (): string => `name ${++names}`;

  async function proxied(target = server): Promise<TcpProxy> {
    const proxy = await TcpProxy.open(target);
    onTestFinished(() => proxy.close());
    return proxy;
  }

  /** A store whose subscriptions go each to the next of these places, the last for all further ones. */
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
    expect(proxy.connections).toBe(1);
    const channels = (await server.cli("pubsub", "channels", "holdfast:*")).split("\n");
    expect(channels).toHaveLength(1);
    for (const lease of leases) await lease.release();
    for (const lease of waiting) await (await lease).release();
    expect(proxy.connections).toBe(1);
  });

  test("who subscribes asks again: what was freed meanwhile is not missed", async () => {
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

  test("a message that is lost costs time: the next renewal of the ticket finds the grant", async () => {
    const proxy = await proxied();
    const ttlMs = 1_500;
    const locks = locksOn(subscribingAt([proxy.url]), { ttl: ttlMs, wait: "20s" });
    const others = await another();
    const name = freshName();
    const holder = await others.acquire(name);
    const waiting = locks.acquire(name);
    await waitersAre(others, name, 1);
    await proxy.swallow("to-client").inject();
    const fromMs = performance.now();
    await holder.release();
    const { holders } = (await others.inspect(name))!;
    const lease = await waiting;
    expect(performance.now() - fromMs).toBeLessThan(ttlMs + 2_000);
    // It was made the holder by the release.
    expect(lease.token).toBe(holders[0]!.token);
    await lease.release();
  });

  test("who learns of its grant by a renewal keeps no subscription open", async () => {
    const own = await lab.redis();
    const client = quiet(new Redis(own.url));
    onTestFinished(() => client.disconnect());
    const duplicate = client.duplicate.bind(client);
    // It listens, and hears nothing.
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

  test("after a reset it listens again, and all tickets are looked at in one command", async () => {
    const proxy = await proxied();
    const locks = locksOn(subscribingAt([proxy.url]), LONG);
    const others = await another();
    const many = Array.from({ length: 50 }, freshName);
    const held = await Promise.all(many.map((name) => others.acquire(name)));
    const waiting = many.map((name) => locks.acquire(name));
    await waitersAre(others, many[49]!, 1);
    const calls = await callsSince(server);
    const cut = proxy.cut();
    await cut.inject();
    await cut.heal();
    await until("they are looked at", async () => (await calls("evalsha")) > 0);
    expect(proxy.connections).toBe(2);
    expect(await calls("evalsha")).toBe(1);
    // Each has kept its ticket, and is pushed.
    await Promise.all(held.map((lease) => lease.release()));
    await Promise.all(waiting.map(async (one) => (await one).release()));
  });

  test("who was away when its turn came loses its place, and gets it later", async () => {
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
    const cut = proxy.cut();
    await cut.inject();
    await until("nobody listens for it", async () => (await listeners()) === 1);
    await holder.release();
    const lease = await second;
    await cut.heal();
    // Its connection tells that it was away: it asks anew.
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
    for (const client of [dying, ...subscribers]) client.disconnect();
    await until("it is gone", async () => (await listeners()) === 1);
    const fromMs = performance.now();
    await holder.release();
    await (await next).release();
    expect(performance.now() - fromMs).toBeLessThan(2_000);
  });

  test("what is no message of ours does no harm", async () => {
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

  describe("a subscription that is not alive is replaced, and who waits is pushed", () => {
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
    };

    // Side by side: each takes as long as it takes to notice.
    test(Object.keys(ends).join("; "), async () => {
      const outcomes = await Promise.allSettled(
        Object.values(ends).map(async (replaced) => {
          const own = await lab.redis();
          await replaced(own, await proxied(own), await proxied(own));
        }),
      );
      const failed = Object.keys(ends).filter((_, i) => outcomes[i]!.status === "rejected");
      expect(failed).toEqual([]);
    });

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
      const calls = await callsSince(own);
      await end();
      await until("it is replaced", () => alive.connections === 1, 15_000);
      await until("it listens", async () => (await calls("subscribe")) > 0);
      // All tickets are looked at then.
      await until("they are looked at", async () => (await calls("evalsha")) > 0);
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
        fileURLToPath(new URL("../../node_modules", import.meta.url)),
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

    /** A process that holds, waits and closes; what it has left then. */
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
        // ioredis gives a server that does not answer two seconds to end the connection.
        for (let i = 0; i < 100 && left().length > 0; i++) await new Promise((go) => setTimeout(go, 50));
        console.log("left", left().join());`,
        12_000,
      );
    }

    test.each(Object.entries(CLIENTS))("leaves no socket and no timer: %s", async (_, open) => {
      expect(await closes(open(server.url))).toMatchObject({
        code: 0,
        out: "CLOSED\nleft",
        killed: false,
      });
    });

    test.each(["SIGKILL", "SIGSTOP"])(
      "nor when the server is gone, or does not answer: %s",
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
