import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { connect, type Lease, type Locks, type LocksOptions } from "../../../src/index.js";
import { checkHistory } from "../../../src/verify/check/check.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { PostgresServer } from "../../../src/verify/lab/postgres.js";
import { describeWith } from "../../support/needs.js";
import { expectKept, startWorkers } from "../../support/worker.js";

/** Upper bounds: the time that drift and abortBefore take off the end of a lease is not subtracted. */
const SLACK_MS = 700;
/** The server ends a silent session after this time, if no ttl is longer. */
const SILENCE_MS = 5_000;

const lostAt = (lease: Lease): Promise<number> =>
  new Promise((resolve) => {
    lease.on("lost", () => resolve(performance.now()));
  });

describeWith(["postgres"], "locks of PostgreSQL sessions under faults", () => {
  let lab: Lab;
  let server: PostgresServer;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.postgres();
  });
  afterAll(() => lab.close());

  const open = async (url: string, options: LocksOptions = {}): Promise<Locks> => {
    const locks = await connect(`${url}?mode=session`, { wait: "30s", ...options });
    onTestFinished(() => locks.close());
    return locks;
  };
  const proxied = async (): Promise<TcpProxy> => {
    const proxy = await TcpProxy.open(server);
    onTestFinished(() => proxy.close());
    return proxy;
  };
  test("the server is killed and started again: the loss is signalled at once, and the next token is higher", async () => {
    const locks = await open(server.url, { ttl: "1m" });
    const lease = await locks.acquire("restarted");
    const lost = lostAt(lease);
    const killedAtMs = performance.now();
    await server.kill();
    expect((await lost) - killedAtMs).toBeLessThan(3_000);
    const again = locks.acquire("restarted");
    await server.start();
    expect((await again).token).toBeGreaterThan(lease.token);
  });

  test("the server is stopped in an orderly way: the loss is signalled at once", async () => {
    const locks = await open(server.url, { ttl: "1m" });
    const lost = lostAt(await locks.acquire("stopped"));
    const stoppedAtMs = performance.now();
    await server.stop();
    expect((await lost) - stoppedAtMs).toBeLessThan(3_000);
    await server.start();
  });

  test("the connection is cut: all leases are lost at once, and another client is granted the names", async () => {
    const proxy = await proxied();
    const [locks, other] = [await open(proxy.url, { ttl: "1m" }), await open(server.url)];
    const leases = await Promise.all(["a", "b"].map((name) => locks.acquire(`cut ${name}`)));
    const lost = Promise.all(leases.map(lostAt));
    const cutAtMs = performance.now();
    const cut = proxy.cut();
    await cut.inject();
    expect(Math.max(...(await lost)) - cutAtMs).toBeLessThan(1_000);
    const next = await other.acquire("cut a");
    expect(next.token).toBeGreaterThan(leases[0]!.token);
    await cut.heal();
    expect((await locks.acquire("cut b")).token).toBeGreaterThan(leases[1]!.token);
  });

  test.each([
    ["to-server", 3_000],
    ["to-client", 7_000],
  ] as const)(
    "bytes %s vanish (ttl %d): the lease is lost by its own deadline, and only then another client is granted the name",
    { timeout: 60_000 },
    async (direction, ttl) => {
      const proxy = await proxied();
      const [locks, other] = [await open(proxy.url, { ttl }), await open(server.url)];
      const lease = await locks.acquire("swallowed");
      const lost = lostAt(lease);
      const silentAtMs = performance.now();
      await proxy.swallow(direction).inject();
      const granted = other
        .acquire("swallowed")
        .then((next) => ({ next, atMs: performance.now() }));
      const lostAtMs = await lost;
      expect(lostAtMs - silentAtMs).toBeLessThan(ttl + SLACK_MS);
      const { next, atMs } = await granted;
      expect(atMs).toBeGreaterThan(lostAtMs);
      // The server, or this process, gives the connection up; then the waiter polls.
      expect(atMs - silentAtMs).toBeLessThan(ttl + SILENCE_MS + 3_000);
      expect(next.token).toBeGreaterThan(lease.token);
    },
  );

  test("the server is paused beyond the ttl: the lease is lost on time, and locks work again when it goes on", async () => {
    const ttl = 2_000;
    const locks = await open(server.url, { ttl });
    const lease = await locks.acquire("paused");
    const lost = lostAt(lease);
    const pausedAtMs = performance.now();
    await server.pause();
    try {
      expect((await lost) - pausedAtMs).toBeLessThan(ttl + SLACK_MS);
      await sleep(1_000);
    } finally {
      await server.resume();
    }
    expect((await locks.acquire("paused")).token).toBeGreaterThan(lease.token);
  });

  test("a short pause of the server costs nothing", async () => {
    const locks = await open(server.url, { ttl: 6_000 });
    const lease = await locks.acquire("short pause");
    await server.pause();
    await sleep(2_500);
    await server.resume();
    await sleep(2_000);
    lease.assertHeld();
    expect(await lease.release()).toBe("released");
  });

  describe("a claim in flight", () => {
    test("its connection is reset: the claim is made again on another session, and nothing stays held", async () => {
      const proxy = await proxied();
      const locks = await open(proxy.url, { ttl: "10s" });
      const reset = proxy.resetMidCommand({ when: "claim_session_locks" });
      await reset.inject();
      const lease = await locks.acquire("in flight");
      await reset.heal();
      const info = await locks.inspect("in flight");
      expect(info?.holders.map(({ token }) => token)).toEqual([lease.token]);
      await lease.release();
      expect(await locks.inspect("in flight")).toBeNull();
    });

    test("its reply vanishes: the connection is given up, and the claim is made again", async () => {
      const proxy = await proxied();
      const locks = await open(proxy.url, { ttl: "20s" });
      await proxy.truncate("to-client", { when: "floor" }).inject();
      const lease = await locks.acquire("vanished");
      lease.assertHeld();
      expect((await locks.inspect("vanished"))?.holders).toHaveLength(1);
    });
  });

  describe("processes", () => {
    const url = (): string => `${server.url}?mode=session`;

    test("a killed holder's name is free at once, long before its ttl", async () => {
      const { workers, timeLine } = await startWorkers(2, url(), { ttl: "1m" });
      const [holder, waiter] = workers;
      const held = await holder!.acquire("name");
      const waiting = waiter!.acquire("name", { wait: "30s" });
      const killedAtMs = performance.now();
      await holder!.kill();
      expect((await waiting).token).toBeGreaterThan(held.token);
      expect(performance.now() - killedAtMs).toBeLessThan(5_000);
      expectKept(timeLine, ["S1", "S2"]);
    });

    test("a paused holder's session is ended by the server, and the holder finds its lease lost", async () => {
      const { workers, timeLine } = await startWorkers(2, url(), { ttl: 1_500 });
      const [paused, next] = workers;
      const held = await paused!.acquire("name");
      const pausedAtMs = performance.now();
      paused!.pause();
      const granted = await next!.acquire("name", { wait: "30s" });
      expect(performance.now() - pausedAtMs).toBeLessThan(SILENCE_MS + 3_000);
      paused!.resume();
      expect(await paused!.look(held.op)).toBe(false);
      expect(await paused!.release(held.op)).toBe("lost");
      expect(await next!.look(granted.op)).toBe(true);
      expect(granted.token).toBeGreaterThan(held.token);
      expectKept(timeLine, ["S1", "S2", "S4", "S6", "S7"], { wakeMs: 2_000 });
    });

    test("backends of many processes are ended at random: tokens tell a former holder from the next", async () => {
      const { workers, timeLine } = await startWorkers(4, url(), {
        ttl: 3_000,
        wait: "30s",
        poll: { min: 5, max: 50 },
      });
      const work = workers.map((one) => one.loop({ name: "name", forMs: 5_000, holdMs: 5 }));
      for (let i = 0; i < 8; i++) {
        await sleep(500);
        await server.sql(
          "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' ORDER BY random() LIMIT 1",
        );
      }
      const granted = await Promise.all(work.map((one) => one.catch(() => 0)));
      expect(granted.reduce((sum, one) => sum + one, 0)).toBeGreaterThan(100);
      // A former holder may overlap with the next one until it notices.
      const verdicts = checkHistory(timeLine.history());
      expect(verdicts.find(({ rule }) => rule === "S2")).toMatchObject({ verdict: "ok" });
    });
  });
});
