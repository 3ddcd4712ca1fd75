import { setTimeout as pause } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import { grantOf, ignore } from "../../src/conformance/subject.js";
import { etcdStore } from "../../src/stores/etcd/index.js";
import { Code, EtcdError } from "../../src/stores/etcd/rpc/errors.js";
import type { Txn } from "../../src/stores/etcd/rpc/messages.js";
import { Deferred } from "../core/helpers.js";
import { GRACE_MS, LONG_MS, OneEtcd, opsOf, waitersAre } from "../support/etcd.js";
import { describeWith } from "../support/needs.js";
import { claimOf } from "../support/redis.js";
import { until } from "../support/worker.js";

/** Of one name, with nothing compared. */
const isRefresh = ({ compare, success = [] }: Txn): boolean =>
  compare === undefined && success.length === 1 && success[0]!.range !== undefined;

describeWith(["etcd"], "races in etcd", () => {
  const etcd = OneEtcd.forAll();

  test("an answer from before the watch does not make its queue complete", async (context) => {
    const { another, wire, prefix, locks } = await etcd.fresh(context, { ttl: LONG_MS });
    const [others, third] = [(await another()).locks, (await another()).locks];
    await (await locks.acquire("the session is there")).release();
    const first = await others.acquire("name");
    // A store on a client of somebody else, which closes nothing but what is its own.
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
    // A ticket before ours, of which that answer does not know.
    const before = third.acquire("name", { wait: "20s" });
    await waitersAre(others, "name", 1);
    const heard: unknown[] = [];
    wire.on.watch = (send) => {
      const watch = send();
      delivered.resolve();
      return watch;
    };
    const claim = claimOf("default:name", { queue: true, ttlMs: LONG_MS });
    expect((await store.claim(claim, (push) => heard.push(push))).kind).toBe("queued");
    await waitersAre(others, "name", 2);
    await first.release();
    const lease = await before;
    await pause(200);
    expect(heard).toEqual([]);
    expect(await lease.release()).toBe("released");
    await until("it is told", () => heard.length > 0, GRACE_MS);
    await store.release([{ name: "default:name", grantId: claim.grantId }]);
    await store.close();
  });

  describe.concurrent("many that fit together, at once", () => {
    test.for([
      ["readers that ask once", { mode: "shared", wait: 0 }],
      ["readers that wait", { mode: "shared", wait: "20s" }],
    ] as const)("%s: all get in, and in few steps", async ([, options], context) => {
      const { another, wire, locks } = await etcd.fresh(context, { ttl: LONG_MS });
      const stores = [locks, (await another()).locks, (await another()).locks];
      for (const one of stores) await (await one.acquire("the session is there")).release();
      wire.calls = [];
      const leases = await Promise.all(
        Array.from({ length: 120 }, (_, i) => stores[i % 3]!.acquire("name", options)),
      );
      expect(new Set(leases.map(({ token }) => token)).size).toBe(120);
      // Two each, and a few that met somebody on the way.
      expect(wire.count("txn")).toBeLessThan(40 * 4);
      expect((await locks.inspect("name"))!.holders).toHaveLength(120);
    });

    test("permits: as many as there are, and nobody else", async (context) => {
      const { another, locks } = await etcd.fresh(context, { ttl: LONG_MS });
      const stores = [locks, (await another()).locks, (await another()).locks];
      const semaphores = stores.map((one) => one.semaphore("name", { permits: 20 }));
      const taken = await Promise.all(
        Array.from({ length: 60 }, (_, i) => semaphores[i % 3]!.tryAcquire()),
      );
      expect(taken.filter((lease) => lease !== null)).toHaveLength(20);
      // Who came too late leaves nothing behind.
      const info = await locks.inspect("name");
      expect([info!.holders.length, info!.waiters.length]).toEqual([20, 0]);
    });
  });

  test("a session that ends does not end a lease that has moved to another", async (context) => {
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

  test("notices to who has gone meanwhile go, too", async (context) => {
    const { locks, another, prefix } = await etcd.fresh(context, { ttl: 1_000 });
    const { locks: others } = await another();
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
    await until("they are gone", async () => (await notices()) === 0, 3_000 + GRACE_MS);
    expect(kept.state).toBe("held");
  });

  test("a name that is not permitted fails nobody else, and its release is not owed", async (context) => {
    const { locks, wire } = await etcd.fresh(context, { ttl: LONG_MS, retry: { pause: 20 } });
    await (await locks.acquire("the session is there")).release();
    let refused = 0;
    // As by a server that looks at the parts, too.
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

  test("a ttl longer than any timer", async (context) => {
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
