import { symlinkSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createLocks, type Lease, type Locks } from "../../../src/index.js";
import { etcdStore, openEtcdClient } from "../../../src/stores/etcd/index.js";
import { build, rejection, runNode } from "../../core/helpers.js";
import {
  endpointOf,
  LONG_MS,
  leases,
  type Method,
  OneEtcd,
  SHORT_MS,
  Wire,
  waitersAre,
} from "../../support/etcd.js";
import { describeWith } from "../../support/needs.js";

describeWith(["etcd"], "etcd", () => {
  const etcd = OneEtcd.forAll();

  describe("the cost", () => {
    test("is one transaction for an uncontended acquire, and another for its release", async (context) => {
      const { locks, wire } = await etcd.fresh(context, { ttl: LONG_MS });
      await (await locks.acquire("first")).release();
      wire.calls = [];
      const before = await etcd.server.commands();
      for (let i = 0; i < 20; i++) {
        const lease = await locks.acquire("name");
        expect(wire.calls.splice(0)).toEqual(["txn"]);
        expect(await lease.release()).toBe("released");
        expect(wire.calls.splice(0)).toEqual(["txn"]);
      }
      expect((await etcd.server.commands()) - before).toBe(40);
      const many = await locks.acquireAll(["a", "b", "c"]);
      expect(wire.calls.splice(0)).toEqual(["txn"]);
      await many.release();
    });

    test("is one session for each ttl in seconds, however many acquire at once", async (context) => {
      const { locks, wire } = await etcd.fresh(context);
      await Promise.all(
        (["5s", "4500ms", "7s", "5s", "6001ms"] as const).flatMap((ttl, i) =>
          [1, 2, 3].map((j) => locks.acquire(`${i} ${j}`, { ttl })),
        ),
      );
      expect(wire.granted.map(({ ttlS }) => ttlS).sort()).toEqual([5, 7]);
      await locks.acquire("more", { ttl: "5s" });
      expect(wire.count("leaseGrant")).toBe(2);
    });

    test("is the same for keeping 1,000 locks alive as for a few: they share one etcd lease", async (context) => {
      const { locks, wire, prefix } = await etcd.fresh(context, { ttl: 6_000 });
      const costOf = async (): Promise<number> => {
        wire.calls = [];
        await pause(2_500);
        // Nothing else is sent for them.
        const keeping: Method[] = ["leaseKeepAlive", "range", "leaseKeys"];
        expect(wire.calls.filter((one) => !keeping.includes(one))).toEqual([]);
        expect(wire.count("leaseKeys")).toBeLessThanOrEqual(2);
        return wire.count("leaseKeepAlive");
      };
      const few = await Promise.all([1, 2, 3].map((i) => locks.acquire(`few ${i}`)));
      const some: Lease[] = [];
      // Not all at once: on a busy machine, that would take longer than the ttl.
      while (some.length < 997) {
        const names = Array.from({ length: Math.min(100, 997 - some.length) }, (_, i) => i);
        const from = some.length;
        some.push(...(await Promise.all(names.map((i) => locks.acquire(`many ${from + i}`)))));
      }
      expect(wire.granted).toHaveLength(1);
      const session = wire.session(6_000);
      const claimed = (await etcd.everything(`${prefix}n/`)).map(({ lease }) => lease);
      expect(claimed).toEqual(Array(1_000).fill(session));
      // Eight proofs in a third of the ttl; requests that come while one is in flight share the next.
      expect(await costOf()).toBeLessThanOrEqual(2 * 8 * 2 + 4);
      for (const lease of [...few, ...some]) lease.assertHeld();
    });

    test("is no second watch for a second waiter, and nothing but the release for a handover", async (context) => {
      const { locks, another } = await etcd.fresh(context, { ttl: LONG_MS });
      const others = await another();
      const held = await locks.acquire("name");
      const first = others.locks.acquire("name");
      await waitersAre(locks, "name", 1);
      expect(others.wire.count("watch")).toBe(1);
      others.wire.calls = [];
      const second = others.locks.acquire("name");
      await waitersAre(locks, "name", 2);
      // The watch delivers what would otherwise have to be read.
      expect(others.wire.calls).toEqual(["txn"]);
      const third = others.locks.acquire("name");
      await waitersAre(locks, "name", 3);
      others.wire.calls = [];
      const before = await etcd.server.commands();
      await held.release();
      const one = await first;
      expect(others.wire.calls).toEqual([]);
      await one.release();
      const two = await second;
      await two.release();
      const three = await third;
      expect(others.wire.calls).toEqual(["txn", "txn"]);
      expect((await etcd.server.commands()) - before).toBe(3);
      expect([one.token, two.token, three.token]).toEqual(
        [one.token, two.token, three.token].toSorted((a, b) => (a < b ? -1 : 1)),
      );
      // No other client holds the name in between, and it is still watched for a while.
      const fourth = others.locks.acquire("name");
      await waitersAre(locks, "name", 1);
      expect(others.wire.count("watch")).toBe(0);
      await three.release();
      await fourth;
    });
  });

  describe("close", () => {
    test("ends all sessions, and their keys go", async (context) => {
      const { locks, wire, prefix } = await etcd.fresh(context, { ttl: LONG_MS });
      await locks.acquire("name");
      await locks.acquire("other", { ttl: "2m" });
      const waiting = rejection(locks.acquire("name"));
      await waitersAre(locks, "name", 1);
      await locks.close();
      expect(await waiting).toMatchObject({ code: "CLOSED" });
      const there = await leases(etcd.server);
      const ours = wire.granted.map(({ lease }) => lease.toString(16));
      expect(ours).toHaveLength(2);
      expect(there.filter((one) => ours.includes(one))).toEqual([]);
      expect(await etcd.everything(prefix)).toEqual([]);
    });

    test("leaves the leases of other Locks on the store, and the caller's own client", async (context) => {
      const wire = new Wire(await openEtcdClient({ endpoints: [endpointOf(etcd.server)] }));
      context.onTestFinished(() => wire.client.close());
      const store = etcdStore(wire.client, { prefix: etcd.prefix() });
      const [one, two] = [1, 2].map(() => createLocks(store, { ttl: SHORT_MS })) as [Locks, Locks];
      await one.acquire("one");
      const lease = await two.acquire("two");
      await one.close();
      await lease.renew();
      expect(await two.tryAcquire("one")).not.toBeNull();
      await two.close();
      const there = await leases(etcd.server);
      const ours = wire.granted.map(({ lease }) => lease.toString(16));
      expect(there.filter((one) => ours.includes(one))).toEqual([]);
      await wire.client.range({ key: "a" });
    });

    describe.concurrent("in a process of its own", () => {
      let built: ReturnType<typeof build>;
      beforeAll(() => {
        built = build();
        const modules = fileURLToPath(new URL("../../../node_modules", import.meta.url));
        symlinkSync(modules, built.file("node_modules"));
      });
      afterAll(() => built?.remove());

      test.each([
        ["ends after close", "await locks.close();"],
        ["ends by itself when all is released", ""],
      ])("%s", async (_, end) => {
        const { code, out, err, killed } = await runNode(`
          import { connect } from ${JSON.stringify(built.file("index.js"))};
          const locks = await connect(${JSON.stringify(etcd.server.url)}, { namespace: "process" });
          const lease = await locks.acquire("name", { ttl: "1s", atLeast: 100 });
          const waiting = locks.acquire("name");
          await locks.inspect("name");
          await lease.renew("2s");
          await lease.release();
          await (await waiting).release();
          const { value } = await locks.election("leader").observe({ every: "1h" }).next();
          ${end}
          console.log(value);
        `);
        expect({ code, out, err, killed }).toEqual({
          code: 0,
          out: "null",
          err: "",
          killed: false,
        });
      });
    });
  });
});
