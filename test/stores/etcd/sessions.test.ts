import assert from "node:assert/strict";
import { setTimeout as pause } from "node:timers/promises";
import { describe, expect, test, vi } from "vitest";
import { grantOf, ignore } from "../../../src/conformance/subject.js";
import type { Claim, Grant } from "../../../src/core/store.js";
import type { KeyValue } from "../../../src/stores/etcd/rpc/messages.js";
import type { EtcdServer } from "../../../src/verify/lab/etcd.js";
import { Deferred, rejection } from "../../core/helpers.js";
import {
  GRACE_MS,
  isMove,
  LONG_MS,
  noAnswer,
  OneEtcd,
  SHORT_MS,
  type Wire,
} from "../../support/etcd.js";
import { describeWith } from "../../support/needs.js";
import { claimOf } from "../../support/redis.js";
import { until } from "../../support/worker.js";

// These tests mostly wait.
vi.setConfig({ maxConcurrency: 10 });

describeWith(["etcd"], "sessions of etcd", () => {
  const etcd = OneEtcd.forAll();

  describe.concurrent("the ttl of a lease", () => {
    test("is what the server gave, not what was requested", async (context) => {
      const slow = (await etcd.lab.etcd({ timing: "default" })).servers[0] as EtcdServer;
      const { locks } = await etcd.fresh(context, {}, slow);
      // The server gives 2 s; of the requested 1 s, less than 900 ms could be relied on.
      const lease = await locks.acquire("name", { ttl: "1s" });
      expect(lease.remainingMs).toBeGreaterThan(900);
      expect(lease.remainingMs).toBeLessThan(2_000);
      await lease.renew();
      expect(lease.remainingMs).toBeGreaterThan(900);
    });

    test.for<[string, object, string]>([
      ["renew: false", { renew: false }, "expired"],
      ["maxHold", { maxHold: 500 }, "max-hold"],
    ])(
      "ends a lease that is not renewed, though its session lives on: %s",
      async ([, options, reason], context) => {
        // Long enough that a busy machine does not lose the lease that keeps the session alive.
        const ttlMs = 3 * SHORT_MS;
        const { locks, claims } = await etcd.fresh(context, { ttl: ttlMs });
        const kept = await locks.acquire("kept");
        const fromMs = performance.now();
        const lease = await locks.acquire("name", options);
        let lostAtMs = Number.POSITIVE_INFINITY;
        let claimsWhenLost: Promise<KeyValue[]> | undefined;
        lease.on("lost", (error) => {
          lostAtMs = performance.now();
          claimsWhenLost = claims("name");
          expect(error.reason).toBe(reason);
        });
        await until(
          "it is gone",
          async () => (await claims("name")).length === 0,
          ttlMs * 2 + GRACE_MS,
        );
        const goneAtMs = performance.now();
        expect(goneAtMs - fromMs).toBeGreaterThanOrEqual(ttlMs);
        expect(lostAtMs).toBeLessThan(goneAtMs);
        expect(await claimsWhenLost).toHaveLength(1);
        kept.assertHeld();
        expect(await claims("kept")).toHaveLength(1);
        expect(await locks.tryAcquire("name")).not.toBeNull();
      },
    );

    test("changed twice at the same time: the lease belongs to the session that the last reply names", async (context) => {
      const { locks, wire, claims } = await etcd.fresh(context, { ttl: 20_000 });
      const lease = await locks.acquire("name");
      const shorter = lease.renew("2s").catch(ignore);
      // The change of the session has begun.
      await until("a session for it is requested", () => wire.count("leaseGrant") === 2);
      await lease.renew("20s");
      await shorter;
      expect(lease.remainingMs).toBeGreaterThan(15_000);
      expect((await claims("name"))[0]!.lease).toBe(wire.session(20_000));
    });

    test("changed by a renewal whose reply is lost: the next renewal changes it back", async (context) => {
      const { locks, wire, claims } = await etcd.fresh(context, { ttl: 20_000 });
      const lease = await locks.acquire("name");
      wire.on.txn = async (send, txn) => {
        const answer = await send();
        if (!isMove(txn)) return answer;
        delete wire.on.txn;
        throw new Error("lost");
      };
      await expect(lease.renew("3s")).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
      expect((await claims("name"))[0]!.lease).toBe(wire.session(3_000));
      await lease.renew("20s");
      expect(lease.remainingMs).toBeGreaterThan(15_000);
      expect((await claims("name"))[0]!.lease).toBe(wire.session(20_000));
    });

    test("changed to one whose session has died unnoticed: a new session is begun, and nothing is lost", async (context) => {
      const { locks, wire, claims } = await etcd.fresh(context, { ttl: 20_000 });
      const [lease, beside] = [await locks.acquire("name"), await locks.acquire("beside")];
      await (await locks.acquire("other", { ttl: 5_000 })).release();
      const died = wire.session(5_000);
      await etcd.raw.leaseRevoke(died);
      await lease.renew("5s");
      expect(wire.session(5_000)).not.toBe(died);
      expect((await claims("name"))[0]!.lease).toBe(wire.session(5_000));
      await beside.renew();
      expect([lease.state, beside.state]).toEqual(["held", "held"]);
    });

    test.for<[string, (wire: Wire) => void]>([
      [
        "no keepalive is answered",
        ({ on }) => {
          on.leaseKeepAlive = () => Promise.reject(noAnswer());
        },
      ],
      [
        "nothing is, from the answer to the move on",
        ({ on }) => {
          on.txn = async (send, txn) => {
            const answer = await send();
            if (!isMove(txn)) return answer;
            const silent = () => Promise.reject(noAnswer());
            Object.assign(on, { txn: silent, range: silent, leaseKeepAlive: silent });
            return silent();
          };
        },
      ],
    ])(
      "changed to a shorter one whose session is half used: the lease is good for no longer than its key exists, though %s",
      async ([, breaks], context) => {
        const { locks, wire, claims } = await etcd.fresh(context, { ttl: 20_000 });
        const lease = await locks.acquire("name");
        await (await locks.acquire("other", { ttl: 3_000 })).release();
        wire.on.leaseKeepAlive = () => Promise.reject(noAnswer());
        // Enough is left for a new claim.
        await pause(1_200);
        delete wire.on.leaseKeepAlive;
        breaks(wire);
        await rejection(lease.renew("3s"));
        expect(lease.remainingMs).toBeLessThan(3_000);
        const { ttlS } = await etcd.raw.leaseTimeToLive((await claims("name"))[0]!.lease);
        // The server rounds down to whole seconds.
        expect((ttlS + 1) * 1_000).toBeGreaterThan(lease.remainingMs);
        await standsFor(lease.remainingMs, async () => (await claims("name")).length > 0);
      },
    );

    test("changed: the lease belongs to another session, and outlives the first", async (context) => {
      const { locks, wire, claims } = await etcd.fresh(context, { ttl: 4_000 });
      const [lease, other] = [await locks.acquire("name"), await locks.acquire("other")];
      const [before] = await claims("name");
      expect(before!.lease).toBe(wire.session(4_000));
      const fromMs = performance.now();
      await lease.renew("12s");
      const leftMs = lease.remainingMs + performance.now() - fromMs;
      expect(leftMs).toBeGreaterThan(6_000);
      expect(leftMs).toBeLessThan(12_000);
      const [moved] = await claims("name");
      expect(moved!.lease).toBe(wire.session(12_000));
      expect(moved!.createRevision).toBe(before!.createRevision);
      expect(lease.token).toBe(before!.createRevision);
      await etcd.raw.leaseRevoke(wire.session(4_000));
      await until("the other is lost", () => other.state === "lost", 4_000 + GRACE_MS);
      await lease.renew();
      expect(lease.remainingMs).toBeGreaterThan(6_000);
      expect(await claims("name")).toHaveLength(1);
      // Back to a ttl whose session is begun anew.
      await lease.renew("4s");
      expect(lease.remainingMs).toBeLessThan(4_000);
      expect((await claims("name"))[0]!.lease).toBe(wire.session(4_000));
      expect(wire.granted.map(({ ttlS }) => ttlS)).toEqual([4, 12, 4]);
    });

    test("is for a new grant only what is left of its session's proof", async (context) => {
      const { store, wire } = await etcd.fresh(context);
      const ttlMs = 8_000;
      grantOf(await store.claim(claimOf("first", { ttlMs }), ignore));
      wire.on.leaseKeepAlive = () => Promise.reject(noAnswer());
      await pause(500);
      const { ttlMs: goodForMs } = grantOf(await store.claim(claimOf("second", { ttlMs }), ignore));
      expect(goodForMs).toBeLessThanOrEqual(7_500);
      expect(goodForMs).toBeGreaterThan(4_000);
      // With less than half of its time left, a session is proved first, which fails here.
      await pause(3_600);
      await rejection(store.claim(claimOf("third", { ttlMs }), ignore));
    });
  });

  describe.concurrent("a grant is good for no longer than until its key is given up for lack of renewal", () => {
    const TTL_MS = 2_000;
    const SLOW_MS = 600;
    type Given = Awaited<ReturnType<OneEtcd["fresh"]>>;
    /** Each resolves with a grant, and when it was requested. The session is proved long after that. */
    const WAYS: Record<string, (given: Given, claim: Claim) => Promise<[Grant, number]>> = {
      "claimed again": async ({ store, wire }, claim) => {
        grantOf(await store.claim(claim, ignore));
        wire.on.txn = (send) => {
          delete wire.on.txn;
          return pause(SLOW_MS).then(send);
        };
        const sentAtMs = performance.now();
        const grant = grantOf(await store.claim({ ...claim, seq: 2 }, ignore));
        return [grant, sentAtMs];
      },
      "renewed to another ttl": async ({ store, wire }, claim) => {
        grantOf(await store.claim({ ...claim, ttlMs: LONG_MS }, ignore));
        wire.on.txn = (send, txn) => (isMove(txn) ? pause(SLOW_MS).then(send) : send());
        const sentAtMs = performance.now();
        const renewal = { name: "name", grantId: claim.grantId, seq: 2, ttlMs: TTL_MS };
        const renewing = store.renew([renewal]);
        // This claim makes the store check which claims are to be given up.
        grantOf(await store.claim(claimOf("beside", { ttlMs: TTL_MS }), ignore));
        const [answer] = await renewing;
        assert(answer?.kind === "granted");
        return [answer.grant, sentAtMs];
      },
      "handed over": async ({ store, another }, claim) => {
        const [held, beside] = [claimOf("name"), claimOf("beside", { ttlMs: TTL_MS })];
        const holder = (await another()).store;
        grantOf(await holder.claim(held, ignore));
        const handed = new Deferred<Grant>();
        grantOf(await store.claim(beside, ignore));
        const sentAtMs = performance.now();
        const answer = await store.claim({ ...claim, queue: true }, (push) => {
          if (push.kind === "granted") handed.resolve(push.grant);
        });
        expect(answer.kind).toBe("queued");
        await pause(SLOW_MS);
        const renewal = { name: "beside", grantId: beside.grantId, seq: 2, ttlMs: TTL_MS };
        expect(await store.renew([renewal])).toMatchObject([{ kind: "granted" }]);
        await holder.release([{ name: "name", grantId: held.grantId }]);
        return [await handed.promise, sentAtMs];
      },
    };

    test.for(Object.entries(WAYS))("%s", async ([, way], context) => {
      const given = await etcd.fresh(context);
      const claim = claimOf("name", { ttlMs: TTL_MS });
      const key = given.keys.claim("name", claim.grantId);
      const [grant, sentAtMs] = await way(given, claim);
      expect(grant.ttlMs).toBeGreaterThan(TTL_MS / 2);
      const goodForMs = sentAtMs + grant.ttlMs - performance.now();
      await standsFor(goodForMs, () => etcd.isThere(key));
      expect(grant.ttlMs).toBeLessThanOrEqual(TTL_MS);
      await until("it is gone", async () => !(await etcd.isThere(key)), SLOW_MS + GRACE_MS);
    });
  });

  describe.concurrent("the proof that a session lives", () => {
    const BROKEN: Record<string, (wire: Wire) => void> = {
      "another term": ({ on }) => {
        on.leaseKeepAlive = async (send) => {
          const answer = await send();
          return { ...answer, term: answer.term + 1n };
        };
      },
      "another member": ({ on }) => {
        on.leaseKeepAlive = async (send) => {
          const answer = await send();
          return { ...answer, member: answer.member + 1n };
        };
      },
      "a read in another term": ({ on }) => {
        on.range = async (send) => {
          const answer = await send();
          return { ...answer, term: answer.term + 1n };
        };
      },
      "a lease that has gone, but its key has not": ({ on }) => {
        on.leaseKeepAlive = async (send) => ({ ...(await send()), ttlS: 0 });
      },
      "no answer to the keepalive": ({ on }) => {
        on.leaseKeepAlive = () => Promise.reject(noAnswer());
      },
      "no answer to the read": ({ on }) => {
        on.range = () => Promise.reject(noAnswer());
      },
    };

    test.for(Object.entries(BROKEN))(
      "with %s is unknown, and the deadline stays",
      async ([, breaks], context) => {
        const { locks, store, wire } = await etcd.fresh(context);
        const claim = claimOf("name", { ttlMs: SHORT_MS });
        grantOf(await store.claim(claim, ignore));
        const lease = await locks.acquire("lease");
        breaks(wire);
        const renewal = { name: "name", grantId: claim.grantId, seq: 2, ttlMs: SHORT_MS };
        expect(await store.renew([renewal])).toMatchObject([{ kind: "unknown" }]);
        const fromMs = performance.now();
        const beforeMs = lease.remainingMs;
        await rejection(lease.renew());
        expect(lease.remainingMs).toBeLessThanOrEqual(beforeMs);
        expect(lease.state).toBe("jeopardy");
        await until("the loss is reported", () => lease.state === "lost", beforeMs + GRACE_MS);
        expect(performance.now() - fromMs).toBeLessThan(SHORT_MS + GRACE_MS);
        expect(lease.signal.reason).toMatchObject({ reason: "expired" });
      },
    );

    test("fails once: the lease is in jeopardy, and recovers with the next proof", async (context) => {
      const { locks, wire } = await etcd.fresh(context, { ttl: 3_000 });
      const lease = await locks.acquire("name");
      wire.on.leaseKeepAlive = async (send) => {
        delete wire.on.leaseKeepAlive;
        return { ...(await send()), term: 0n };
      };
      const events: string[] = [];
      for (const event of ["jeopardy", "recovered", "lost"] as const) {
        lease.on(event, () => events.push(event));
      }
      await rejection(lease.renew());
      await until("it is proved again", () => lease.remainingMs > 2_000 && events.length > 1);
      expect(events).toEqual(["jeopardy", "recovered"]);
    });

    test("fails because the session's key is gone: the lease is lost, and the next has another session", async (context) => {
      const { locks, wire, keys } = await etcd.fresh(context, { ttl: LONG_MS });
      const lease = await locks.acquire("name");
      const session = wire.session(LONG_MS);
      await etcd.raw.txn({ success: [{ delete: { key: keys.session(session) } }] });
      expect(await rejection(lease.renew())).toMatchObject({ code: "LEASE_LOST" });
      await etcd.raw.leaseRevoke(session);
      const next = await locks.acquire("name");
      expect(wire.session(LONG_MS)).not.toBe(session);
      expect(next.token).toBeGreaterThan(lease.token);
    });
  });
});

/** Fails if the key disappears before that time has passed. */
async function standsFor(ms: number, isThere: () => Promise<boolean>): Promise<void> {
  const untilMs = performance.now() + ms;
  for (;;) {
    const stands = await isThere();
    const leftMs = untilMs - performance.now();
    if (leftMs <= 0) return;
    expect(stands, `it stands, with ${Math.round(leftMs)} of ${Math.round(ms)} ms left`).toBe(true);
    await pause(Math.min(leftMs, 50));
  }
}
