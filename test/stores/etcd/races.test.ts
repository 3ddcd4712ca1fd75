import { setTimeout as pause } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import { grantOf, ignore } from "../../../src/conformance/subject.js";
import { etcdStore } from "../../../src/stores/etcd/index.js";
import { Code, EtcdError } from "../../../src/stores/etcd/rpc/errors.js";
import type { Txn } from "../../../src/stores/etcd/rpc/messages.js";
import { Deferred } from "../../core/helpers.js";
import { GRACE_MS, LONG_MS, OneEtcd, opsOf, waitersAre } from "../../support/etcd.js";
import { describeWith } from "../../support/needs.js";
import { claimOf } from "../../support/redis.js";
import { until } from "../../support/worker.js";

/** A transaction for one name that compares nothing. */
const isRefresh = ({ compare, success = [] }: Txn): boolean =>
  compare === undefined && success.length === 1 && success[0]!.range !== undefined;

describeWith(["etcd"], "races in etcd", () => {
  const etcd = OneEtcd.forAll();

  test("a waiter is not granted the name by a reply that is older than its watch", async (context) => {
    const { another, wire, prefix, locks } = await etcd.fresh(context, { ttl: LONG_MS });
    const [others, third] = [(await another()).locks, (await another()).locks];
    await (await locks.acquire("the session is there")).release();
    const first = await others.acquire("name");
    // The store uses a client that is not its own, so close ends only what the store has opened.
    const store = etcdStore(wire.client, { prefix });
    const [executed, delivered] = [new Deferred<void>(), new Deferred<void>()];
    wire.on.txn = async (send, txn) => {
      const answer = await send();
      if (!isRefresh(txn)) return answer;
      delete wire.on.txn;
      executed.resolve();
      await delivered.promise;
      return answer;
    };
    const ends = store.observe("default:name", ignore);
    await executed.promise;
    ends();
    await store.close();
    // A ticket before ours, which that reply does not contain.
    const before = third.acquire("name", { wait: "20s" });
    await waitersAre(others, "name", 1);
    const pushed: unknown[] = [];
    wire.on.watch = (send) => {
      const watch = send();
      delivered.resolve();
      return watch;
    };
    const claim = claimOf("default:name", { queue: true, ttlMs: LONG_MS });
    expect((await store.claim(claim, (push) => pushed.push(push))).kind).toBe("queued");
    await waitersAre(others, "name", 2);
    await first.release();
    const lease = await before;
    await pause(200);
    expect(pushed).toEqual([]);
    expect(await lease.release()).toBe("released");
    await until("it is notified", () => pushed.length > 0, GRACE_MS);
    await store.release([{ name: "default:name", grantId: claim.grantId }]);
    await store.close();
  });

  describe.concurrent("many claims that fit together, at once", () => {
    test.for([
      ["readers that do not wait", { mode: "shared", wait: 0 }],
      ["readers that wait", { mode: "shared", wait: "20s" }],
    ] as const)("%s: all are granted, in few transactions", async ([, options], context) => {
      const { another, wire, locks } = await etcd.fresh(context, { ttl: LONG_MS });
      const stores = [locks, (await another()).locks, (await another()).locks];
      for (const one of stores) await (await one.acquire("the session is there")).release();
      wire.calls = [];
      const leases = await Promise.all(
        Array.from({ length: 60 }, (_, i) => stores[i % 3]!.acquire("name", options)),
      );
      expect(new Set(leases.map(({ token }) => token)).size).toBe(60);
      // Two transactions each, and a few that were repeated because of others.
      expect(wire.count("txn")).toBeLessThan(20 * 4);
      expect((await locks.inspect("name"))!.holders).toHaveLength(60);
    });

    test("permits: as many as there are, and no more", async (context) => {
      const { another, locks } = await etcd.fresh(context, { ttl: LONG_MS });
      const stores = [locks, (await another()).locks, (await another()).locks];
      const semaphores = stores.map((one) => one.semaphore("name", { permits: 20 }));
      const taken = await Promise.all(
        Array.from({ length: 60 }, (_, i) => semaphores[i % 3]!.tryAcquire()),
      );
      expect(taken.filter((lease) => lease !== null)).toHaveLength(20);
      // Claims that came too late leave nothing behind.
      const info = await locks.inspect("name");
      expect([info!.holders.length, info!.waiters.length]).toEqual([20, 0]);
    });
  });

  test("a session that ends does not end a lease that has moved to another session", async (context) => {
    const { locks, wire, keys, claims } = await etcd.fresh(context, { ttl: 20_000 });
    const lease = await locks.acquire("name");
    const old = wire.session(20_000);
    const opened = new Deferred<void>();
    wire.on.range = async (send, range) => {
      if (range.key === keys.session(old)) await opened.promise;
      return send();
    };
    lease.renew().catch(ignore);
    await until("it is proving", () => wire.count("leaseKeepAlive") > 0);
    await lease.renew(LONG_MS);
    await etcd.raw.leaseRevoke(old);
    opened.resolve();
    await pause(100);
    await lease.renew();
    expect(lease.state).toBe("held");
    expect((await claims("name"))[0]!.lease).toBe(wire.session(LONG_MS));
  });

  test("notices to holders that have released meanwhile are deleted, too", async (context) => {
    const ttl = 4_000;
    const { locks, another, prefix, wire } = await etcd.fresh(context, { ttl });
    const { locks: others } = await another();
    const reconciled = new Deferred<void>();
    wire.on.leaseKeys = (send) => reconciled.promise.then(send);
    for (let i = 0; i < 5; i++) {
      const lease = await locks.acquire(`name ${i}`);
      await others.forceRelease(`name ${i}`, { why: "a test" });
      expect(await lease.release()).toBe("lost");
    }
    const kept = await locks.acquire("it lives on");
    const notices = async (): Promise<number> =>
      (await etcd.everything(prefix)).filter(
        ({ key }) => key.startsWith(`${prefix}s/`) && key.includes("/default:name "),
      ).length;
    expect(await notices()).toBe(5);
    reconciled.resolve();
    await until("they are gone", async () => (await notices()) === 0, 1.5 * ttl + GRACE_MS);
    expect(kept.state).toBe("held");
  });

  test("a name that this user may not lock makes no other fail, and its release is not retried", async (context) => {
    const { locks, wire } = await etcd.fresh(context, { ttl: LONG_MS, retry: { pause: 20 } });
    await (await locks.acquire("the session is there")).release();
    let refused = 0;
    // Fails as a server does that checks the rights of the parts, too.
    wire.on.txn = (send, txn) => {
      const keysOf = opsOf(txn).map(({ put, delete: gone }) => put?.key ?? gone?.key ?? "");
      if (!keysOf.some((key) => key.includes("secret"))) return send();
      refused++;
      const denied = { grpcCode: Code.PERMISSION_DENIED, executed: "no", endpoint: null } as const;
      return Promise.reject(new EtcdError("permission denied", denied));
    };
    const [one, secret, two] = await Promise.allSettled(
      ["one", "secret", "two"].map((name) => locks.acquire(name)),
    );
    expect([one!.status, secret!.status, two!.status]).toEqual([
      "fulfilled",
      "rejected",
      "fulfilled",
    ]);
    expect(secret).toMatchObject({ reason: { code: "STORE_UNAVAILABLE", retryable: false } });
    await pause(200);
    const before = refused;
    await pause(500);
    expect(refused).toBe(before);
  });

  test("a ttl longer than any timer is kept", async (context) => {
    const { store } = await etcd.fresh(context);
    const warnings: string[] = [];
    const warned = ({ name }: Error): void => void warnings.push(name);
    process.on("warning", warned);
    context.onTestFinished(() => void process.off("warning", warned));
    const claim = claimOf("name", { ttlMs: 30 * 24 * 3_600_000 });
    expect(grantOf(await store.claim(claim, ignore)).ttlMs).toBeGreaterThan(29 * 24 * 3_600_000);
    await pause(100);
    expect(warnings).toEqual([]);
    await store.release([{ name: "name", grantId: claim.grantId }]);
  });
});
