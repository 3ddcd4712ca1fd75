import { describe, expect, test } from "vitest";
import { grantOf, ignore } from "../../../src/conformance/subject.js";
import type { Claim } from "../../../src/core/store.js";
import type { Txn } from "../../../src/stores/etcd/rpc/messages.js";
import { rejection } from "../../core/helpers.js";
import { LONG_MS, noAnswer, OneEtcd, type Wire } from "../../support/etcd.js";
import { describeWith } from "../../support/needs.js";
import { claimOf } from "../../support/redis.js";

const names = (count: number): string[] => Array.from({ length: count }, (_, i) => `name ${i}`);

/** Collects every transaction that is sent from now on. */
function sentBy(wire: Wire): Txn[] {
  const sent: Txn[] = [];
  wire.on.txn = (send, txn) => {
    sent.push(txn);
    return send();
  };
  return sent;
}

const partsOf = ({ success = [] }: Txn): number => success.filter(({ txn }) => txn).length || 1;

describeWith(["etcd"], "requests to etcd in one turn of the event loop", () => {
  const etcd = OneEtcd.forAll();

  describe.concurrent("are sent as one transaction", () => {
    test("when they are claims of different names, or their releases", async (context) => {
      const { locks, wire } = await etcd.fresh(context, { ttl: LONG_MS });
      await (await locks.acquire("the session is there")).release();
      const sent = sentBy(wire);
      const leases = await Promise.all(names(100).map((name) => locks.acquire(name)));
      expect(sent.map(partsOf)).toEqual([32, 32, 32, 4]);
      expect(leases.map(({ name }) => name)).toEqual(names(100));
      sent.length = 0;
      expect(new Set(await Promise.all(leases.map((lease) => lease.release())))).toEqual(
        new Set(["released"]),
      );
      expect(sent.map(partsOf)).toEqual([32, 32, 32, 4]);
      for (const name of names(100)) expect(await locks.inspect(name)).toBeNull();
    });

    test("and each has its own outcome", async (context) => {
      const { locks, another, wire } = await etcd.fresh(context, { ttl: LONG_MS });
      const { locks: others } = await another();
      const held = await others.acquire("name 1");
      await (await locks.acquire("the session is there")).release();
      const sent = sentBy(wire);
      const [first, second, third] = await Promise.all(
        names(3).map((name) => locks.tryAcquire(name)),
      );
      expect(sent.map(partsOf)).toEqual([3]);
      expect([first?.name, second, third?.name]).toEqual(["name 0", null, "name 2"]);
      const lost = await locks.acquire("lost");
      await others.forceRelease("lost", { why: "a test" });
      sent.length = 0;
      expect(await Promise.all([first!.release(), lost.release(), third!.release()])).toEqual([
        "released",
        "lost",
        "released",
      ]);
      // The reason of the loss is read after that.
      expect(sent.map(partsOf)).toEqual([3, 1]);
      expect(await held.release()).toBe("released");
    });

    test("when they read why grants were lost, for all releases that found nothing", async (context) => {
      const { store, wire } = await etcd.fresh(context, { ttl: LONG_MS });
      const sent = sentBy(wire);
      const releases = names(40).map((name) => ({ name, grantId: `grant of ${name}` }));
      const answers = await Promise.all(releases.map((release) => store.release([release])));
      expect(answers.flat()).toEqual(releases.map(() => ({ kind: "lost", reason: "expired" })));
      expect(sent.map(partsOf).sort()).toEqual([32, 32, 8, 8]);
    });

    test("and if its reply is lost, each claim is found again, and none is made twice", async (context) => {
      const { locks, wire, claims } = await etcd.fresh(context, {
        ttl: LONG_MS,
        retry: { pause: 20 },
      });
      await (await locks.acquire("the session is there")).release();
      wire.on.txn = async (send) => {
        delete wire.on.txn;
        await send();
        throw noAnswer();
      };
      const leases = await Promise.all(names(3).map((name) => locks.acquire(name)));
      for (const [i, name] of names(3).entries()) {
        const standing = await claims(name);
        expect(standing.map(({ createRevision }) => createRevision)).toEqual([leases[i]!.token]);
      }
    });
  });

  describe.concurrent("are not sent as one transaction", () => {
    test("when two are for one name, so that their tokens differ and rise", async (context) => {
      const { locks, wire } = await etcd.fresh(context, { ttl: LONG_MS });
      await (await locks.acquire("the session is there")).release();
      const sent = sentBy(wire);
      const shared = await Promise.all(
        [1, 2, 3, 4].flatMap(() =>
          ["one", "two"].map((name) => locks.acquire(name, { mode: "shared" })),
        ),
      );
      for (const txn of sent) expect(partsOf(txn)).toBeLessThanOrEqual(2);
      for (const name of ["one", "two"]) {
        const tokens = shared.filter((lease) => lease.name === name).map(({ token }) => token);
        expect(new Set(tokens).size).toBe(4);
      }
    });

    test("when one of them is large", async (context) => {
      const { locks, store, wire } = await etcd.fresh(context, { ttl: LONG_MS });
      await (await locks.acquire("the session is there")).release();
      const sent = sentBy(wire);
      const large = claimOf("", { ttlMs: LONG_MS });
      const [answer, lease] = await Promise.all([
        store.claim({ ...large, names: names(40), atLeastMs: 0 }, ignore),
        locks.acquire("small"),
        locks.acquire("smaller"),
      ]);
      expect(answer.kind).toBe("granted");
      expect(sent.map(partsOf)).toEqual([2, 1]);
      expect(await lease.release()).toBe("released");
    });
  });

  test("a session that is gone makes no other claim of the batch fail", async (context) => {
    const { store, wire } = await etcd.fresh(context);
    const claimFor = (name: string, ttlMs: number): Claim => claimOf(name, { ttlMs });
    for (const ttlMs of [LONG_MS, 2 * LONG_MS]) {
      grantOf(await store.claim(claimFor(`first ${ttlMs}`, ttlMs), ignore));
    }
    await etcd.raw.leaseRevoke(wire.session(LONG_MS));
    const sent = sentBy(wire);
    const both = [claimFor("dead", LONG_MS), claimFor("alive", 2 * LONG_MS)];
    const answers = await Promise.all(both.map((claim) => store.claim(claim, ignore)));
    expect(sent.map(partsOf)[0]).toBe(2);
    // The first claim found a new session, the other did not need one.
    for (const answer of answers) grantOf(answer);
    expect(wire.granted.map(({ ttlS }) => ttlS * 1_000)).toEqual([LONG_MS, 2 * LONG_MS, LONG_MS]);
  });

  test("a batch without a reply fails each claim on its own", async (context) => {
    const { store, wire } = await etcd.fresh(context);
    grantOf(await store.claim(claimOf("first", { ttlMs: LONG_MS }), ignore));
    let sent = 0;
    wire.on.txn = () => {
      sent++;
      return Promise.reject(noAnswer());
    };
    const claims = names(3).map((name) => store.claim(claimOf(name, { ttlMs: LONG_MS }), ignore));
    for (const claim of claims) expect(await rejection(claim)).toMatchObject({ name: "EtcdError" });
    expect(sent).toBe(1);
  });
});
