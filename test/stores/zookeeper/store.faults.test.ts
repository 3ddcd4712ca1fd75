import { setTimeout as sleep } from "node:timers/promises";
import { expect, onTestFinished, test } from "vitest";
import { createLocks, type Locks } from "../../../src/index.js";
import { zookeeperStore } from "../../../src/stores/zookeeper/index.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";
import { OneZooKeeper, TTL_MS } from "../../support/zookeeper-store.js";

describeWith(["zookeeper"], "the ZooKeeper store over many seconds", () => {
  const zookeeper = OneZooKeeper.forAll();

  test("a lease is lost on time when its server is silent, and the next acquire has another session", async () => {
    const root = zookeeper.root();
    const through = await zookeeper.proxy();
    const [cutOff, other] = [zookeeper.open(root, through).locks, zookeeper.open(root).locks];
    const lease = await cutOff.acquire("name");
    const states: string[] = [];
    lease.on("jeopardy", () => states.push(lease.state));
    const lost = new Promise<number>((resolve) => {
      lease.signal.addEventListener("abort", () => resolve(performance.now()));
    });
    const waiting = other.acquire("name").then((next) => [next, performance.now()] as const);
    await sleep(TTL_MS);
    const silence = through.swallow("to-server");
    await silence.inject();
    const [next, grantedAtMs] = await waiting;
    expect(await lost).toBeLessThan(grantedAtMs);
    expect(states, "the holder was warned").toContain("jeopardy");
    expect(await next.release()).toBe("released");
    await silence.heal();
    const again = await cutOff.acquire("name");
    expect(again.token).toBeGreaterThan(next.token);
    await again.release();
  });

  test("a connection that dies without a sign costs no lease and keeps no waiter, as long as another can be opened", async () => {
    const ttlMs = 4_000;
    const through = await zookeeper.proxy();
    const root = zookeeper.root();
    const open = (port: { readonly port: number }): Locks => {
      const locks = createLocks(zookeeper.open(root, port).store, { ttl: ttlMs, wait: 20_000 });
      onTestFinished(() => locks.close());
      return locks;
    };
    const [struck, other] = [open(through), open(zookeeper.server)];
    const lease = await struck.acquire("own");
    const before = await other.acquire("shared");
    const waiting = struck.acquire("shared").then((next) => [next, performance.now()] as const);
    await until("a waiter", async () => ((await other.inspect("shared"))?.waiting ?? 0) === 1);
    const halfOpen = through.leaveHalfOpen();
    await halfOpen.inject();
    const releasedAtMs = performance.now();
    await before.release();
    const [next, grantedAtMs] = await waiting;
    // The session lasts for 6.8 s: two thirds of that would cost the lease.
    expect(grantedAtMs - releasedAtMs).toBeLessThan(3_000);
    await sleep(2 * ttlMs);
    expect([lease.state, next.state]).toEqual(["held", "held"]);
    expect(await Promise.all([lease.release(), next.release()])).toEqual(["released", "released"]);
    await halfOpen.heal();
  });

  test("claims of one process whose turn takes longer than a ttl to come keep it", async () => {
    const root = zookeeper.root();
    const through = await zookeeper.proxy();
    const [far, near] = [zookeeper.open(root, through).locks, zookeeper.open(root).locks];
    const held = await near.acquire("name");
    const delay = through.delay(50);
    await delay.inject();
    const order: number[] = [];
    const numbers = Array.from({ length: 40 }, (_, i) => i);
    const acquire = async (i: number): Promise<void> => {
      const lease = await far.acquire("name", { wait: 60_000 });
      order.push(i);
      await lease.release();
    };
    const done = Promise.all(numbers.map(acquire));
    done.catch(() => {});
    const allWait = async () => (await near.inspect("name"))?.waiting === numbers.length;
    await until("all wait", allWait, 20_000);
    await delay.heal();
    await held.release();
    await done;
    expect(order).toEqual(numbers);
  });

  test("one write renews all leases: a thousand cost no more than one", async () => {
    // On a busy machine, a thousand claims and as many renewals take a few seconds.
    const ttlMs = 10_000;
    const locks = createLocks(zookeeper.open(zookeeper.root()).store, { ttl: ttlMs });
    onTestFinished(() => locks.close());
    const names = Array.from({ length: 1_000 }, (_, i) => `name-${i}`);
    const leases = await Promise.all(names.map((name) => locks.acquire(name)));
    await sleep(ttlMs / 2);
    const before = await zookeeper.server.commands();
    await sleep(ttlMs * 2);
    const used = (await zookeeper.server.commands()) - before;
    expect(leases.filter(({ state }) => state === "lost")).toEqual([]);
    expect(used).toBeLessThan(150);
    await Promise.all(leases.map((lease) => lease.release()));
  });

  test("a handover costs its request, its reply, and an event for each process, however many wait", async () => {
    const stores = 2;
    const perHandover: number[] = [];
    for (const waiters of [4, 40]) {
      const root = zookeeper.root();
      // So long that pings and renewals hardly count.
      const all = Array.from({ length: stores }, () => {
        const locks = createLocks(zookeeper.open(root).store, { ttl: 60_000 });
        onTestFinished(() => locks.close());
        return locks;
      });
      const holder = await all[0]!.acquire("name");
      const done = Array.from({ length: waiters }, async (_, i) =>
        (await all[i % stores]!.acquire("name")).release(),
      );
      await until("all wait", async () => (await all[0]!.inspect("name"))?.waiting === waiters);
      const before = await zookeeper.server.packets();
      const beganMs = performance.now();
      await holder.release();
      await Promise.all(done);
      const used = (await zookeeper.server.packets()) - before;
      const tookMs = performance.now() - beganMs;
      await sleep(tookMs);
      const pings = (await zookeeper.server.packets()) - before - used;
      perHandover.push((used - pings) / (waiters + 1));
    }
    // A renewal or two may fall into it.
    for (const packets of perHandover) expect(packets).toBeLessThan(2 + stores + 0.5);
  }, 60_000);

  test("a server comes back with a shorter maxSessionTimeout: leases are lost before others get the name, and later ones are shorter", async () => {
    // A renewal comes later than the end of a session that was shortened.
    const [shortMs, ttl, wait] = [2_000, 30_000, 20_000];
    const lab = await Lab.open();
    onTestFinished(() => lab.close());
    const config = { maxSessionTimeout: "60000" };
    const server = (await lab.zookeeper({ config })).servers[0]!;
    const through = await TcpProxy.open(server);
    onTestFinished(() => through.close());
    const locksAt = (port: number): Locks => {
      const store = zookeeperStore({ servers: [`${server.address}:${port}`] });
      const locks = createLocks(store, { ttl, wait });
      onTestFinished(() => locks.close().catch(() => {}));
      return locks;
    };
    const cutOff = locksAt(through.port);
    const lease = await cutOff.acquire("name");
    const lost = new Promise<number>((resolve) => {
      lease.signal.addEventListener("abort", () => resolve(performance.now()));
    });
    await server.restartWith({ maxSessionTimeout: String(shortMs) });
    const later = await cutOff.acquire("later");
    expect(later.remainingMs).toBeLessThan(shortMs);
    const silence = through.swallow("to-server");
    await silence.inject();
    // Its node goes with its session, which the server ends after the short timeout.
    await locksAt(server.port).acquire("name");
    const grantedAtMs = performance.now();
    expect(await lost).toBeLessThan(grantedAtMs);
    await silence.heal();
  }, 60_000);

  test("a server that is wiped grants nothing to a process that knows higher tokens, until its tokenOffset is raised", async () => {
    const lab = await Lab.open();
    onTestFinished(() => lab.close());
    const server = (await lab.zookeeper()).servers[0]!;
    const servers = [`${server.address}:${server.port}`];
    const locksOf = (tokenOffset: bigint): Locks => {
      const locks = createLocks(zookeeperStore({ servers }), { ttl: TTL_MS, tokenOffset });
      onTestFinished(() => locks.close().catch(() => {}));
      return locks;
    };
    const locks = locksOf(0n);
    for (let i = 0; i < 20; i++) await (await locks.acquire(`name-${i}`)).release();
    const lease = await locks.acquire("name");
    const lost = new Promise((resolve) => lease.signal.addEventListener("abort", resolve));
    await server.wipe();
    await lost;
    const refused = await locks.acquire("name").catch((error: unknown) => error);
    expect(refused).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
    const offset = /tokenOffset by at least (\d+)/.exec(String(refused))?.[1];
    const next = await locksOf(BigInt(offset!)).acquire("name");
    expect(next.token).toBeGreaterThan(lease.token);
  }, 60_000);

  test("a server that is wiped grants nothing under another ttl either, while the first session waits for its return", async () => {
    const lab = await Lab.open();
    onTestFinished(() => lab.close());
    // The first session outlasts the restart.
    const config = { maxSessionTimeout: "600000" };
    const server = (await lab.zookeeper({ config })).servers[0]!;
    const store = zookeeperStore({ servers: [`${server.address}:${server.port}`] });
    const locksOf = (ttl: number): Locks => {
      const locks = createLocks(store, { ttl });
      onTestFinished(() => locks.close().catch(() => {}));
      return locks;
    };
    const locks = locksOf(120_000);
    for (let i = 0; i < 20; i++) await (await locks.acquire(`name-${i}`)).release();
    const lease = await locks.acquire("name");
    await server.wipe();
    const refused = await locksOf(TTL_MS)
      .acquire("name")
      .catch((error: unknown) => error);
    expect(refused).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
    expect(String(refused)).toContain("tokenOffset");
    expect(lease.state).not.toBe("lost");
  }, 60_000);

  test("an observer is told of changes, also after its session has ended", async () => {
    const root = zookeeper.root();
    const through = await zookeeper.proxy();
    const { store } = zookeeper.open(root, through);
    const { locks } = zookeeper.open(root);
    let changes = 0;
    const end = store.observe("default:name", () => changes++);
    onTestFinished(end);
    await until("it observes", () => changes > 0);
    const silence = through.swallow("to-server");
    await silence.inject();
    await sleep(11_000);
    await silence.heal();
    const before = changes;
    await until("it observes again", () => changes > before, 10_000);
    const seen = changes;
    await (await locks.acquire("name")).release();
    await until("it is told", () => changes > seen);
  }, 40_000);
});
