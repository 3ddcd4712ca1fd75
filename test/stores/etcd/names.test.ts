import { setTimeout as pause } from "node:timers/promises";
import { expect, test } from "vitest";
import { grantOf, ignore } from "../../../src/conformance/subject.js";
import { MOST_WAITERS, REVOKED_KEPT, WAITERS_SHOWN } from "../../../src/core/store.js";
import { createLocks } from "../../../src/index.js";
import { etcdStore, openEtcdClient } from "../../../src/stores/etcd/index.js";
import { encodeValue } from "../../../src/stores/etcd/queue.js";
import { OPS_PER_TXN } from "../../../src/stores/etcd/transactions.js";
import { rejection } from "../../core/helpers.js";
import { endpointOf, LONG_MS, leases, OneEtcd } from "../../support/etcd.js";
import { describeWith } from "../../support/needs.js";
import { claimOf } from "../../support/redis.js";
import { until } from "../../support/worker.js";

describeWith(["etcd"], "names in etcd", () => {
  const etcd = OneEtcd.forAll();

  test("list counts only names whose values it can read", async (context) => {
    const { store, keys } = await etcd.fresh(context);
    const foreign = ["a", "c"].map((name) => ({
      put: { key: keys.claim(name, "x"), value: "not ours" },
    }));
    await etcd.raw.txn({ success: foreign });
    for (const name of ["b", "d", "e"]) await store.claim(claimOf(name), ignore);
    const listed = async (limit: number): Promise<string[]> =>
      (await store.list("", limit)).map(({ name }) => name);
    expect(await listed(1)).toEqual(["b"]);
    expect(await listed(2)).toEqual(["b", "d"]);
    expect(await listed(9)).toEqual(["b", "d", "e"]);
  });

  test("releases by force leave no more etcd leases than records", async (context) => {
    const server = (await etcd.lab.etcd()).servers[0]!;
    const { locks } = await etcd.fresh(context, { ttl: LONG_MS }, server);
    for (let i = 0; i < 2 * REVOKED_KEPT.many; i++) {
      await locks.acquire("name");
      await locks.forceRelease("name", { why: "test" });
    }
    expect((await locks.inspect("name"))!.revoked).toHaveLength(REVOKED_KEPT.many);
    // The session has one more.
    const most = REVOKED_KEPT.many + 1;
    await until("the leases are gone", async () => (await leases(server)).length === most);
  });

  test("a name whose atLeast was cancelled leaves no etcd lease", async (context) => {
    const server = (await etcd.lab.etcd()).servers[0]!;
    const { store } = await etcd.fresh(context, { ttl: LONG_MS }, server);
    for (let i = 0; i < 3; i++) {
      const claim = claimOf("name", { atLeastMs: 3_600_000 });
      await store.claim(claim, ignore);
      await store.release([{ name: "name", grantId: claim.grantId, unused: true }]);
    }
    await until("the leases are gone", async () => (await leases(server)).length === 1);
  });

  test("an etcd lease that keeps several names closed stays until the last of them opens", async (context) => {
    const { store, keys } = await etcd.fresh(context);
    const claim = claimOf("", { names: ["a", "b"], atLeastMs: 3_600_000 });
    await store.claim(claim, ignore);
    await store.release([{ name: "a", grantId: claim.grantId, unused: true }]);
    await store.release([{ name: "b", grantId: claim.grantId }]);
    await pause(100);
    expect(await etcd.isThere(keys.atLeast("a", claim.grantId))).toBe(false);
    expect(await etcd.isThere(keys.atLeast("b", claim.grantId))).toBe(true);
  });

  test("a grant is shortened by the drift that the claim allows for the time before it", async (context) => {
    const { store } = await etcd.fresh(context);
    await store.claim(claimOf("first"), ignore);
    const from = performance.now();
    await pause(400);
    const claim = claimOf("second", { driftFactor: 0.5 });
    const beforeMs = performance.now() - from;
    const grant = grantOf(await store.claim(claim, ignore));
    expect(grant.ttlMs).toBeLessThanOrEqual(claim.ttlMs - 2 * beforeMs);
  });

  test("a full queue takes no more, and inspect shows its first waiters", async (context) => {
    const { store, locks, keys, another } = await etcd.fresh(context, { ttl: LONG_MS });
    const name = "default:name";
    const holder = claimOf(name);
    await store.claim(holder, ignore);
    const { id: lease } = await etcd.raw.leaseGrant(LONG_MS / 1_000);
    const { permits, limit } = holder;
    const value = encodeValue({
      permits,
      limit,
      holder: "w",
      ttlMs: LONG_MS,
      atLeastMs: 0,
      atMs: 0,
    });
    for (let i = 0; i < MOST_WAITERS; i += OPS_PER_TXN) {
      const success = Array.from({ length: OPS_PER_TXN }, (_, j) => ({
        put: { key: keys.claim(name, `waiter ${String(i + j)}`), value, lease },
      }));
      await etcd.raw.txn({ success });
    }
    const full = { kind: "full", name, waiting: MOST_WAITERS };
    expect(await store.claim(claimOf(name, { queue: true }), ignore)).toEqual(full);
    expect(await rejection(locks.acquire("name"))).toMatchObject({ code: "QUEUE_FULL" });
    expect(await store.claim(claimOf(name), ignore)).toMatchObject({ kind: "busy" });
    for (const info of [await locks.inspect("name"), (await store.list("", 1))[0]!]) {
      expect(info!.waiting).toBe(MOST_WAITERS);
      expect(info!.waiters).toHaveLength(WAITERS_SHOWN);
    }
    // Room for one more, whose key is watched from then on.
    await etcd.raw.txn({ success: [{ delete: { key: keys.claim(name, "waiter 7") } }] });
    const other = await another();
    const last = claimOf(name, { queue: true });
    expect(await other.store.claim(last, ignore)).toMatchObject({ kind: "queued" });
    expect(await other.store.claim(claimOf(name, { queue: true }), ignore)).toEqual(full);
    await etcd.raw.leaseRevoke(lease);
    expect(await other.store.claim(last, ignore)).toMatchObject({ kind: "queued" });
  });

  test("a server without space keeps a lease alive that is renewed to another ttl", async (context) => {
    const flags = { "quota-backend-bytes": "200000" };
    const server = (await etcd.lab.etcd({ flags })).servers[0]!;
    const client = await openEtcdClient({ endpoints: [endpointOf(server)] });
    context.onTestFinished(() => client.close());
    const store = etcdStore(client);
    const locks = createLocks(store, { ttl: 3_000 });
    context.onTestFinished(() => locks.close());
    const claim = claimOf("name", { ttlMs: 3_000 });
    await store.claim(claim, ignore);
    const lease = await locks.acquire("other");
    const value = "x".repeat(50_000);
    await until("it is full", async () => {
      const put = { key: "filling", value };
      return client.txn({ success: [{ put }] }).then(
        () => false,
        ({ message }) => /space/.test(message),
      );
    });
    const { grantId } = claim;
    for (const [i, ttlMs] of [60_000, 1_000, 60_000].entries()) {
      const renewal = { name: "name", grantId, seq: i + 2, ttlMs };
      const [answer] = await store.renew([renewal]);
      expect(answer).toMatchObject({ kind: "granted", grant: { seq: i + 2, ttlMs: 3_000 } });
    }
    await lease.renew("1m");
    expect(lease.remainingMs).toBeLessThan(3_000);
    await pause(3_500);
    expect(lease.state).toBe("held");
    expect(await lease.release()).toBe("released");
  });
});
