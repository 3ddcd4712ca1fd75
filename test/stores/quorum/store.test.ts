import { setTimeout as pause } from "node:timers/promises";
import { Redis } from "ioredis";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { connect, createLocks, type Duration, type Locks } from "../../../src/index.js";
import { quorumStore } from "../../../src/stores/quorum/index.js";
import { MARKER, recordOf } from "../../../src/stores/quorum/keys.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisOptions, RedisServer } from "../../../src/verify/lab/redis.js";
import { rejection } from "../../core/helpers.js";
import { describeWith } from "../../support/needs.js";
import { redlockUrl } from "../../support/quorum.js";
import { quiet } from "../../support/redis.js";
import { until } from "../../support/worker.js";

/** Less than a node gets to answer with a ttl of 5 s or more. */
const PAUSE_MS = 300;

describeWith(["redis"], "a quorum of Redis servers", () => {
  let lab: Lab;
  let servers: RedisServer[];
  beforeAll(async () => {
    lab = await Lab.open();
    servers = await start();
  });
  afterAll(() => lab.close());

  const start = (options: RedisOptions = {}): Promise<RedisServer[]> =>
    Promise.all([1, 2, 3].map(() => lab.redis(options)));

  async function open(url: string, ttl: Duration = "10s"): Promise<Locks> {
    const locks = await connect(url, { ttl, wait: "20s" });
    onTestFinished(() => locks.close().catch(() => {}));
    return locks;
  }

  const takes = async (locks: Locks, name = "name"): Promise<unknown> =>
    (await locks.acquire(name)).release();

  const onAll = (...command: readonly string[]): Promise<unknown> =>
    Promise.all(servers.map((server) => server.cli(...command)));

  test("serves the waiters of a process in order, also after one that gave up while it asked", async () => {
    const locks = await open(redlockUrl(servers));
    await takes(locks);
    for (let round = 0; round < 3; round++) {
      await Promise.all(servers.map((server) => server.pause()));
      const aborting = new AbortController();
      const first = rejection(locks.acquire("name", { signal: aborting.signal }));
      // Its claim is sent.
      await pause(20);
      aborting.abort();
      await first;
      const order: number[] = [];
      const waiters = [1, 2, 3].map(async (i) => {
        const lease = await locks.acquire("name");
        order.push(i);
        await pause(20);
        await lease.release();
      });
      await pause(20);
      await Promise.all(servers.map((server) => server.resume()));
      await Promise.all(waiters);
      expect(order).toEqual([1, 2, 3]);
    }
  });

  test("a forced release leaves an attempt that is under way alone, and takes the lease that comes of it", async () => {
    const proxies = await Promise.all(servers.map((server) => TcpProxy.open(server)));
    onTestFinished(async () => void (await Promise.all(proxies.map((proxy) => proxy.close()))));
    const slow = await open(redlockUrl(proxies));
    const operator = await open(redlockUrl(servers));
    await takes(slow);
    const late = proxies.slice(1).map((proxy) => proxy.delay(PAUSE_MS, "to-server"));
    await Promise.all(late.map((one) => one.inject()));
    const acquiring = slow.acquire("name");
    const hasVoted = async (): Promise<boolean> =>
      (await servers[0]!.cli("exists", recordOf("default:name"))) === "1";
    await until("one server has voted", hasVoted);
    expect(await operator.forceRelease("name", { why: "too early" })).toEqual([]);
    expect(await hasVoted()).toBe(true);
    const lease = await acquiring;
    await Promise.all(late.map((one) => one.heal()));
    expect(await rejection(operator.acquire("name", { wait: 0 }))).toMatchObject({
      code: "ACQUIRE_TIMEOUT",
    });
    const taken = await operator.forceRelease("name", { why: "now" });
    expect(taken.map(({ token }) => token)).toEqual([lease.token]);
    const next = await operator.acquire("name");
    expect(next.token).toBeGreaterThan(lease.token);
    await next.release();
  });

  test("renews, revokes and releases while the memory of the servers is full", async () => {
    const locks = await open(redlockUrl(servers));
    const plain = await locks.acquire("plain");
    const closed = await locks.acquire("closed", { atLeast: "1s" });
    const revoked = await locks.acquire("revoked");
    onTestFinished(() => onAll("config", "set", "maxmemory", "0").then(() => {}));
    await onAll("config", "set", "maxmemory", "1");
    // Its clean-up goes in one script with the release that follows.
    const error = await rejection(locks.tryAcquire("another"));
    expect(error.message).toContain("(OOM)");
    await plain.renew();
    const { token } = revoked;
    expect(await locks.forceRelease("revoked", { why: "test" })).toMatchObject([{ token }]);
    expect(await plain.release()).toBe("released");
    expect(await closed.release()).toBe("released");
  });

  test("closing one Locks leaves the requests of others on the same store alone", async () => {
    const clients = servers.map(({ url }) => quiet(new Redis(url)));
    onTestFinished(() => {
      for (const client of clients) client.disconnect();
    });
    const store = quorumStore(clients);
    const [closing, other] = [createLocks(store), createLocks(store)];
    const lease = await other.acquire("shared");
    await onAll("client", "pause", String(PAUSE_MS));
    const requests = Promise.all([lease.renew(), other.inspect("shared")]);
    await closing.close();
    const [, info] = await requests;
    expect(info?.holders).toHaveLength(1);
    await lease.release();
    await onAll("client", "pause", String(PAUSE_MS));
    const inspecting = other.inspect("shared");
    await createLocks(store).close();
    expect(await inspecting).toBeNull();
    await other.close();
  });

  test("counts one vote for a server that has come to be behind two addresses", async () => {
    const [a, b, c] = (await start()) as [RedisServer, RedisServer, RedisServer];
    const target = { address: b.address, port: b.port, url: b.url };
    await using proxy = await TcpProxy.open(target);
    const locks = await open(redlockUrl([a, proxy, c]), "2s");
    const lease = await locks.acquire("held");
    target.port = a.port;
    await b.cli("client", "kill", "type", "normal");
    await c.kill();
    await until("the server is found twice", async () => {
      const error = await rejection(locks.acquire("name", { wait: 500 }));
      expect(error).toMatchObject({ code: "STORE_UNAVAILABLE" });
      return error.message.includes("are the same Redis server");
    });
    await until("it is lost", async () => lease.state === "lost");
  });

  test("a server that has restarted with other settings is recovering, also for clients that know the earlier ones", async () => {
    const own = await start({ persistence: "everysec" });
    // Until the restart.
    for (const server of own) await server.cli("config", "set", "appendfsync", "always");
    const locks = await open(redlockUrl(own));
    await takes(locks);
    const last = own[2]!;
    const before = await last.cli("get", MARKER);
    expect(before).toMatch(/ always 0$/);
    await last.kill();
    await last.start();
    await until("it is examined", async () => {
      await takes(locks);
      return (await last.cli("get", MARKER)) !== before;
    });
    expect(await last.cli("get", MARKER)).toMatch(/ later lost\d+$/);
  });

  test("keeps to the settings that the last client has read, whatever others read before", async () => {
    const own = await start({ persistence: "always" });
    const [early, marker] = [await open(redlockUrl(own)), () => own[0]!.cli("get", MARKER)];
    await takes(early);
    for (const server of own) await server.cli("config", "set", "appendfsync", "everysec");
    await open(redlockUrl(own));
    expect(await marker()).toMatch(/ later 0$/);
    await takes(early);
    expect(await marker()).toMatch(/ later 0$/);
  });

  test("says how many servers had lost a lease, which they have again", async () => {
    const locks = await open(redlockUrl(servers));
    const lease = await locks.acquire("forgotten");
    await onAll("del", recordOf("default:forgotten"));
    const error = await rejection(lease.renew());
    expect(error.message).toMatch(/^3 of the 3 nodes .*: 3 had lost the lease, have it again/);
    await lease.renew();
    expect(await lease.release()).toBe("released");
  });
});
