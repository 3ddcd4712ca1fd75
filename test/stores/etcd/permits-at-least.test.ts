import { setTimeout as pause } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import { grantOf, ignore } from "../../../src/conformance/subject.js";
import { createLocks, type Lease, type Locks } from "../../../src/index.js";
import { etcdStore, openEtcdClient } from "../../../src/stores/etcd/index.js";
import type { ClaimValue } from "../../../src/stores/etcd/queue.js";
import type { KeyValue } from "../../../src/stores/etcd/rpc/messages.js";
import { Worker } from "../../../src/verify/traffic/worker.js";
import { rejection } from "../../core/helpers.js";
import {
  endpointOf,
  GRACE_MS,
  LONG_MS,
  OneEtcd,
  SHORT_MS,
  waitersAre,
} from "../../support/etcd.js";
import { describeWith } from "../../support/needs.js";
import { claimOf } from "../../support/redis.js";
import { until } from "../../support/worker.js";

describeWith(["etcd"], "permits and closed names in etcd", () => {
  const etcd = OneEtcd.forAll();

  describe.concurrent("semaphores", () => {
    const claimedIn = ({ value }: KeyValue): ClaimValue => JSON.parse(value) as ClaimValue;

    test("made smaller: holders stay, marked as such, and nobody is granted a permit until there is room", async (context) => {
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

    test("made larger: waiters are granted permits at once", async (context) => {
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

    test("a lease that is renewed to another ttl after a resize keeps the new limit, and its place", async (context) => {
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

    test("with atLeast, permits stay taken, and follow a resize", async (context) => {
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

    test("a client that watches a closed name learns of its new limit", async (context) => {
      const { locks, another } = await etcd.fresh(context, { ttl: LONG_MS });
      const others = (await another()).locks.semaphore("pool", { permits: 3 });
      const pool = locks.semaphore("pool", { permits: 3 });
      await (await pool.acquire({ atLeast: "1m" })).release();
      await pool.acquire({ permits: 2 });
      // The client watches the name, and goes on doing so for a while.
      const gaveUp = new AbortController();
      const waiting = rejection(others.acquire({ signal: gaveUp.signal }));
      await waitersAre(locks, "pool", 1);
      gaveUp.abort(new Error("a test"));
      await waiting;
      await waitersAre(locks, "pool", 0);
      await pool.resize(2);
      // Until the watch has delivered the new limit, the claim is compared with the server's and refused too.
      await pause(200);
      expect(await rejection(others.acquire({ wait: "2s" }))).toMatchObject({
        code: "INVALID_ARGUMENT",
      });
    });

    test("closed by a lease that a resize let in: the new limit stays", async (context) => {
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

    /** The moment from which the name could be acquired. */
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
      // Opened by URL, so under the default prefix.
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
      const sentAtMs = performance.now();
      await worker.acquire("immediate", options);
      const grantedAtMs = performance.now();
      await pause(500);
      const releasedAtMs = performance.now();
      await blocking.release();
      await waiting;
      const handedOverAtMs = performance.now();
      await worker.kill();
      const [immediate, waited] = await Promise.all([
        openedAt(locks, "immediate"),
        openedAt(locks, "waited"),
      ]);
      expect(immediate).toBeGreaterThanOrEqual(sentAtMs + AT_LEAST_MS);
      expect(immediate).toBeLessThan(grantedAtMs + AT_LEAST_MS + 3_000);
      expect(waited).toBeGreaterThanOrEqual(releasedAtMs + AT_LEAST_MS);
      expect(waited).toBeLessThan(handedOverAtMs + AT_LEAST_MS + 3_000);
    });

    test("ends on time where its process lives, and its keys go with it", async (context) => {
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

    test("a waiter for a name that is only closed has a ticket, in order, and is notified", async (context) => {
      const { store, another } = await etcd.fresh(context);
      const others = await another();
      const held = claimOf("name", { atLeastMs: 1_000 });
      grantOf(await store.claim(held, ignore));
      await store.release([{ name: "name", grantId: held.grantId }]);
      const pushed: string[] = [];
      for (const [client, holder] of [
        [store, "first"],
        [others.store, "second"],
      ] as const) {
        const claim = claimOf("name", { queue: true, holder });
        const answer = await client.claim(claim, ({ kind }) => pushed.push(`${holder} ${kind}`));
        expect(answer.kind).toBe("queued");
      }
      expect(await store.inspect("name")).toMatchObject({
        holders: [{ closed: true }],
        waiters: [{ holder: "first" }, { holder: "second" }],
      });
      await until("it is notified", () => pushed.length > 0, 1_000 + GRACE_MS);
      expect(pushed).toEqual(["first granted"]);
    });

    test("counts from the grant for a lease that had to wait", async (context) => {
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
