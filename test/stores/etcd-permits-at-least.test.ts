import { setTimeout as pause } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import { grantOf, ignore } from "../../src/conformance/subject.js";
import { createLocks, type Lease, type Locks } from "../../src/index.js";
import { etcdStore, openEtcdClient } from "../../src/stores/etcd/index.js";
import type { Claimed } from "../../src/stores/etcd/queue.js";
import type { KeyValue } from "../../src/stores/etcd/rpc/messages.js";
import { Worker } from "../../src/verify/traffic/worker.js";
import { rejection } from "../core/helpers.js";
import { endpointOf, GRACE_MS, LONG_MS, OneEtcd, SHORT_MS, waitersAre } from "../support/etcd.js";
import { describeWith } from "../support/needs.js";
import { claimOf } from "../support/redis.js";
import { until } from "../support/worker.js";

describeWith(["etcd"], "permits and closed names in etcd", () => {
  const etcd = OneEtcd.forAll();

  describe.concurrent("semaphores", () => {
    const claimedIn = ({ value }: KeyValue): Claimed => JSON.parse(value) as Claimed;

    test("made smaller: holders stay, marked as such, and nobody comes until there is room", async (context) => {
      const { locks, another, claims } = await etcd.fresh(context, { ttl: LONG_MS });
      const others = await another();
      const pool = locks.semaphore("pool", { permits: 3 });
      const [one, two] = [await pool.acquire({ permits: 2 }), await pool.acquire()];
      const waiting = others.locks.semaphore("pool", { permits: 3 }).acquire();
      const tooMuch = rejection(
        others.locks.semaphore("pool", { permits: 3 }).acquire({ permits: 3 }),
      );
      await waitersAre(locks, "pool", 2);
      await pool.resize(1);
      expect((await claims("pool")).map(claimedIn)).toEqual(
        expect.arrayContaining([
          expect.objectContaining({ permits: 2, limit: 1, held: true }),
          expect.objectContaining({ permits: 1, limit: 1, held: true }),
        ]),
      );
      expect(await tooMuch).toMatchObject({ code: "INVALID_ARGUMENT" });
      expect(await locks.inspect("pool")).toMatchObject({
        limit: 1,
        holders: [{ token: one.token }, { token: two.token }],
        waiters: [{ permits: 1 }],
      });
      await one.release();
      expect((await locks.inspect("pool"))!.waiters).toHaveLength(1);
      await two.release();
      const lease = await waiting;
      expect(lease.token).toBeGreaterThan(two.token);
      const asBefore = locks.semaphore("pool", { permits: 3 });
      expect(await rejection(asBefore.tryAcquire())).toMatchObject({ code: "INVALID_ARGUMENT" });
      expect(await pool.tryAcquire()).toBeNull();
    });

    test("made larger: who waits comes in at once", async (context) => {
      const { locks, another } = await etcd.fresh(context, { ttl: LONG_MS });
      const others = await another();
      const held = await locks.semaphore("pool", { permits: 1 }).acquire();
      const waiting: Promise<Lease>[] = [];
      for (let i = 1; i <= 3; i++) {
        waiting.push(others.locks.semaphore("pool", { permits: 1 }).acquire());
        await waitersAre(locks, "pool", i);
      }
      await locks.semaphore("pool", { permits: 1 }).resize(3);
      const came = await Promise.all(waiting.slice(0, 2));
      expect(new Set(came.map(({ floor }) => floor))).toEqual(new Set([held.token]));
      await waitersAre(locks, "pool", 1);
      await held.release();
      await waiting[2];
      expect((await locks.inspect("pool"))!.holders).toHaveLength(3);
    });

    test("a lease that is renewed to another ttl after a change keeps the new limit, and its place", async (context) => {
      const { locks, another, claims } = await etcd.fresh(context, { ttl: LONG_MS });
      const others = await another();
      const pool = locks.semaphore("pool", { permits: 3 });
      const [one, two] = [await pool.acquire(), await pool.acquire({ permits: 2 })];
      await others.locks.semaphore("pool", { permits: 3 }).resize(1);
      await one.renew("2m");
      await two.renew("2m");
      expect((await claims("pool")).map((kv) => claimedIn(kv).limit)).toEqual([1, 1]);
      expect(await locks.inspect("pool")).toMatchObject({
        limit: 1,
        holders: [{ token: one.token }, { token: two.token }],
        waiters: [],
      });
      await two.renew();
    });

    test("closed by atLeast: permits stay taken, and follow a change of the limit", async (context) => {
      const { locks, another } = await etcd.fresh(context, { ttl: LONG_MS });
      const others = await another();
      const pool = locks.semaphore("pool", { permits: 2 });
      const closing = await pool.acquire({ atLeast: "1m" });
      await closing.release();
      const beside = await pool.acquire();
      const waiting = others.locks.semaphore("pool", { permits: 2 }).acquire({ atLeast: "1m" });
      await waitersAre(locks, "pool", 1);
      await pool.resize(3);
      const came = await waiting;
      expect(await locks.inspect("pool")).toMatchObject({
        limit: 3,
        holders: [
          { token: closing.token, closed: true },
          { token: beside.token, closed: false },
          { token: came.token, closed: false },
        ],
      });
      await beside.release();
      await came.release();
      expect(await locks.inspect("pool")).toMatchObject({
        limit: 3,
        holders: [
          { token: closing.token, closed: true },
          { token: came.token, closed: true },
        ],
      });
      await pool.resize(1);
      expect(await pool.tryAcquire()).toBeNull();
      await pool.resize(3);
      expect(await pool.tryAcquire({ permits: 2 })).toBeNull();
      expect(await pool.tryAcquire()).not.toBeNull();
    });

    test("who watches a name that is closed hears of its new limit", async (context) => {
      const { locks, another } = await etcd.fresh(context, { ttl: LONG_MS });
      const others = (await another()).locks.semaphore("pool", { permits: 3 });
      const pool = locks.semaphore("pool", { permits: 3 });
      await (await pool.acquire({ atLeast: "1m" })).release();
      await pool.acquire({ permits: 2 });
      // It watches, and goes on doing so for a while.
      const gaveUp = new AbortController();
      const waiting = rejection(others.acquire({ signal: gaveUp.signal }));
      await waitersAre(locks, "pool", 1);
      gaveUp.abort(new Error("a test"));
      await waiting;
      await waitersAre(locks, "pool", 0);
      await pool.resize(2);
      // Until its watch has told that; what is older is compared, and refused.
      await pause(200);
      expect(await rejection(others.acquire({ wait: "2s" }))).toMatchObject({
        code: "INVALID_ARGUMENT",
      });
    });

    test("closed by one who came in by a change of the limit: the new one stays", async (context) => {
      const { locks, another } = await etcd.fresh(context, { ttl: LONG_MS });
      const others = await another();
      const held = await locks.semaphore("pool", { permits: 1 }).acquire();
      const waiting = others.locks.semaphore("pool", { permits: 1 }).acquire({ atLeast: "1m" });
      await waitersAre(locks, "pool", 1);
      await locks.semaphore("pool", { permits: 1 }).resize(2);
      const came = await waiting;
      await held.release();
      await came.release();
      expect(await locks.inspect("pool")).toMatchObject({
        limit: 2,
        holders: [{ token: came.token, closed: true }],
      });
      expect(await locks.semaphore("pool", { permits: 2 }).tryAcquire()).not.toBeNull();
    });
  });

  describe.concurrent("atLeast", () => {
    const AT_LEAST_MS = 2_000;

    /** From when on it could be had. */
    async function openedAt(locks: Locks, name: string): Promise<number> {
      let openedAtMs = 0;
      await until(
        `${name} is open`,
        async () => {
          openedAtMs = performance.now();
          return (await locks.tryAcquire(name)) !== null;
        },
        AT_LEAST_MS + 5_000,
      );
      return openedAtMs;
    }

    test("outlives a process that is killed, whether it had to wait or not", async (context) => {
      // By the URL, so under the usual prefix.
      const store = etcdStore(await openEtcdClient({ endpoints: [endpointOf(etcd.server)] }), {
        closeClient: true,
      });
      const locks = createLocks(store, { ttl: SHORT_MS, namespace: "at-least" });
      context.onTestFinished(() => locks.close());
      const worker = await Worker.start({
        client: "w1",
        url: etcd.server.url,
        locks: { ttl: SHORT_MS, namespace: "at-least" },
      });
      context.onTestFinished(() => worker.kill());
      const blocking = await locks.acquire("waited");
      const options = { atLeast: AT_LEAST_MS };
      const waiting = worker.acquire("waited", options);
      await waitersAre(locks, "waited", 1);
      const askedAtMs = performance.now();
      await worker.acquire("asked", options);
      const grantedAtMs = performance.now();
      await pause(500);
      const releasedAtMs = performance.now();
      await blocking.release();
      await waiting;
      const handedOverAtMs = performance.now();
      await worker.kill();
      const [asked, waited] = await Promise.all([
        openedAt(locks, "asked"),
        openedAt(locks, "waited"),
      ]);
      expect(asked).toBeGreaterThanOrEqual(askedAtMs + AT_LEAST_MS);
      expect(asked).toBeLessThan(grantedAtMs + AT_LEAST_MS + 3_000);
      expect(waited).toBeGreaterThanOrEqual(releasedAtMs + AT_LEAST_MS);
      expect(waited).toBeLessThan(handedOverAtMs + AT_LEAST_MS + 3_000);
    });

    test("ends on time where its process lives, and its keys with it", async (context) => {
      const { locks, another, prefix } = await etcd.fresh(context);
      const others = await another();
      const fromMs = performance.now();
      const lease = await locks.acquire("name", { atLeast: 700 });
      const grantedAtMs = performance.now();
      expect(await lease.release()).toBe("released");
      expect(await others.locks.tryAcquire("name")).toBeNull();
      expect((await others.locks.inspect("name"))!.holders).toMatchObject([
        { closed: true, token: lease.token },
      ]);
      const next = await others.locks.acquire("name");
      expect(performance.now()).toBeGreaterThanOrEqual(fromMs + 700);
      expect(performance.now()).toBeLessThan(grantedAtMs + 700 + GRACE_MS);
      await next.release();
      expect(await etcd.everything(`${prefix}n/`)).toEqual([]);
    });

    test("who waits for a name that is only closed has a ticket, in order, and is told", async (context) => {
      const { store, another } = await etcd.fresh(context);
      const others = await another();
      const held = claimOf("name", { atLeastMs: 1_000 });
      grantOf(await store.claim(held, ignore));
      await store.release([{ name: "name", grantId: held.grantId }]);
      const told: string[] = [];
      for (const [client, holder] of [
        [store, "first"],
        [others.store, "second"],
      ] as const) {
        const claim = claimOf("name", { queue: true, holder });
        const answer = await client.claim(claim, ({ kind }) => told.push(`${holder} ${kind}`));
        expect(answer.kind).toBe("queued");
      }
      expect(await store.inspect("name")).toMatchObject({
        holders: [{ closed: true }],
        waiters: [{ holder: "first" }, { holder: "second" }],
      });
      await until("it is told", () => told.length > 0, 1_000 + GRACE_MS);
      expect(told).toEqual(["first granted"]);
    });

    test("of one who waited counts from its grant", async (context) => {
      const { locks, another } = await etcd.fresh(context);
      const others = await another();
      const held = await others.locks.acquire("name");
      const waiting = locks.acquire("name", { atLeast: 800 });
      await waitersAre(locks, "name", 1);
      await pause(900);
      const fromMs = performance.now();
      await held.release();
      expect(await (await waiting).release()).toBe("released");
      expect(await others.locks.tryAcquire("name")).toBeNull();
      await others.locks.acquire("name");
      expect(performance.now()).toBeGreaterThanOrEqual(fromMs + 800);
    });
  });
});
