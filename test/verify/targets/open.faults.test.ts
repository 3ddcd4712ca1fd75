import { describe, expect, test } from "vitest";
import { connect } from "../../../src/index.js";
import { seededRandom } from "../../../src/testing/seeded-random.js";
import { LAB_TARGETS, type LabName } from "../../../src/verify/targets/index.js";
import { withTarget } from "../../../src/verify/targets/open.js";
import { describeWith } from "../../support/needs.js";
import { idleMember } from "../runner/fakes.js";

describeWith(["redis"], "a Redis Cluster", () => {
  test("changes the roles of its servers under a fault, and serves all slots again", {
    timeout: 120_000,
  }, async () => {
    await withTarget({ lab: "redis-cluster" }, ["cluster"], async (target) => {
      const random = seededRandom(1);
      for (const name of ["replica made the primary", "primary killed, its replica takes over"]) {
        const kind = target.kinds.find((one) => one.name === name)!;
        expect(kind.breaks === undefined, name).toBe(name === "replica made the primary");
        const one = kind.make(idleMember("w1"), random, 100)!;
        await one.inject();
        await one.heal();
      }
      await target.recover();
      const locks = await connect(target.url);
      await Promise.all(
        Array.from({ length: 20 }, (_, i) =>
          locks.withLock(`name ${i}`, { wait: "20s" }, () => {}),
        ),
      );
      await locks.close();
    });
  });
});

describeWith(["redis"], "a Redis primary and its replica", () => {
  test("change places in a failover, and the runner's connection leads to the new primary", {
    timeout: 60_000,
  }, async () => {
    await withTarget({ lab: "redis-replica" }, ["failover to the replica"], async (target) => {
      const locks = await connect(target.url);
      await locks.withLock("name", () => {});
      const one = target.kinds[0]!.make(idleMember("w1"), seededRandom(1), 100)!;
      await one.inject();
      await locks.withLock("name", { wait: "20s" }, () => {});
      expect((await locks.inspect("name"))?.holders ?? []).toEqual([]);
      await locks.close();
    });
  });
});

describeWith(["redis"], "a Redis replica whose link is cut", () => {
  test("confirms no grant, and all of them once it is healed, also after a failover", {
    timeout: 120_000,
  }, async () => {
    await withTarget({ lab: "redis-replica" }, ["cluster"], async (target) => {
      const fault = (name: string) =>
        target.kinds
          .find((one) => one.name === name)!
          .make(idleMember("w1"), seededRandom(1), 100)!;
      const locks = await connect(target.url, { ttl: 2_000 });
      for (const failsOver of [false, true]) {
        const cut = fault("replica link cut");
        await cut.inject();
        const refused = locks.tryAcquire(`cut ${failsOver}`);
        await expect(refused).rejects.toThrow(/required replicas/);
        if (failsOver) await fault("failover to the replica").inject();
        await cut.heal();
        await locks.withLock("healed", { wait: "20s" }, () => {});
      }
      await locks.close();
    });
  });
});

describeWith(["postgres"], "PostgreSQL and its standby", () => {
  test("change places in a failover that keeps what was granted, in each run anew", {
    timeout: 120_000,
  }, async () => {
    await withTarget({ lab: "postgres-standby" }, ["failover to the standby"], async (target) => {
      const locks = await connect(target.url, { ttl: "20s" });
      for (const name of ["first", "second"]) {
        const lease = await locks.acquire(name);
        const fault = () => target.kinds[0]!.make(idleMember("w1"), seededRandom(1), 100);
        await fault()!.inject();
        expect(fault()).toBeNull();
        await expect.poll(() => lease.renew().then(() => "renewed", String)).toBe("renewed");
        expect(await locks.tryAcquire(name)).toBeNull();
        expect(await lease.release()).toBe("released");
        await target.recover();
      }
      await locks.close();
    });
  });
});

describeWith(["etcd"], "etcd without space", () => {
  test("keeps the leases that are held, and grants others once it is healed", {
    timeout: 60_000,
  }, async () => {
    await withTarget({ lab: "etcd" }, ["space used up"], async ({ kinds: [kind], url }) => {
      const one = kind!.make(idleMember("w1"), seededRandom(1), 100)!;
      const locks = await connect(url, { ttl: "20s" });
      const lease = await locks.acquire("held");
      await one.inject();
      await lease.renew();
      lease.assertHeld();
      await one.heal();
      const other = await locks.acquire("other", { wait: "10s" });
      expect([await lease.release(), await other.release()]).toEqual(["released", "released"]);
      await locks.close();
    });
  });
});

describe.each(Object.keys(LAB_TARGETS) as LabName[])("the lab %s", (lab) => {
  describeWith(LAB_TARGETS[lab].needs, "with its servers", () => {
    test("sees claims past Holdfast, by a client of the server", {
      timeout: 120_000,
    }, async () => {
      await withTarget({ lab }, undefined, async (target) => {
        for (const { name, needsClock = false } of target.kinds)
          expect(needsClock, name).toBe(name.includes("clock"));
        const locks = await connect(target.url, { namespace: "verify-1", ttl: 2_000 });
        const lease = await locks.acquire("held");
        const left = () => target.leftOf!(["verify-1:held", "verify-1:other"]);
        expect((await left()).join()).toMatch(/verify-1(:|%3A)held/);
        const waiting = locks.acquire("held", { wait: "20s" });
        await lease.release();
        const next = await waiting;
        expect(await left()).not.toEqual([]);
        await next.release();
        await expect.poll(left).toEqual([]);
        await locks.close();
      });
    });
  });
});
