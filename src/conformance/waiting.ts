import assert from "node:assert/strict";
import { AcquireTimeoutError, ClosedError, StoreUnavailableError } from "../core/errors.js";
import type { Lease } from "../core/lease.js";
import type { Locks } from "../locks.js";
import type { FaultyStore } from "../testing/faulty-store.js";
import type { Bench, Case } from "./subject.js";

/**
 * `dying` waiters with the usual ttl, and behind them a waiter whose ttl is so long that its own
 * renewals come too late.
 */
async function longBehindShort(bench: Bench, { dying }: { dying: number }) {
  const long = { ttl: bench.ttlMs * 30 };
  const [one, other] = [await bench.locks(long), await bench.locks(long)];
  // The client has waited before, because a client that has just begun to listen may get another
  // `look`.
  const before = await one.acquire("before");
  const warm = bench.later(other.acquire("before"));
  await bench.pass(bench.ttlMs * 1.5);
  await before.release();
  await (await bench.settled(warm)).release();
  const holder = await one.acquire("name");
  const dead: { store: FaultyStore; acquired: Promise<Lease> }[] = [];
  for (let i = 1; i <= dying; i++) {
    const { locks, store } = await bench.client();
    dead.push({ store, acquired: bench.later(locks.acquire("name")) });
    await bench.waitersAre(one, "name", i);
  }
  const waiting = bench.later(other.acquire("name"));
  await bench.waitersAre(one, "name", dying + 1);
  return { holder, dead, waiting };
}

/** Waiting in the core: order, notification, giving up. */
export const waitingCases: readonly Case[] = [
  {
    name: "waiting is first come, first served, and nobody barges",
    needsQueue: true,
    async run(bench) {
      // A ticket that expires on a busy machine loses its place.
      const ttl = bench.ttlMs * 5;
      const clients = [
        await bench.locks({ ttl }),
        await bench.locks({ ttl }),
        await bench.locks({ ttl }),
      ];
      const held = await clients[0]!.acquire("name");
      const order: number[] = [];
      const waiters: Promise<void>[] = [];
      for (let i = 0; i < 9; i++) {
        waiters.push(
          clients[i % 3]!.acquire("name").then(async (lease) => {
            order.push(i);
            assert.equal(await clients[(i + 1) % 3]!.tryAcquire("name"), null, "no barging");
            await lease.release();
          }),
        );
        await bench.waitersAre(clients[0]!, "name", i + 1);
      }
      assert.equal(await clients[1]!.tryAcquire("name"), null);
      await held.release();
      await bench.settled(Promise.all(waiters), bench.ttlMs * 9);
      assert.deepEqual(order, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
      await bench.isEmpty(clients[0]!, "name");
    },
  },
  {
    name: "a release grants the name to the next waiter long before a lease expires",
    async run(bench) {
      const ttl = bench.ttlMs * 20;
      const [one, two] = [await bench.locks({ ttl }), await bench.client({ ttl })];
      const held = await one.acquire("name");
      const waiting = two.locks.acquire("name", { wait: Number.POSITIVE_INFINITY });
      await bench.waitersAre(one, "name", 1);
      const asked = two.store.sent.claim + two.store.sent.renew;
      await held.release();
      const lease = await bench.settled(waiting, bench.ttlMs * 3);
      assert.equal(lease.state, "held");
      if (two.store.traits.waiting === "pushed") {
        assert.equal(
          two.store.sent.claim + two.store.sent.renew,
          asked,
          "the waiter was notified and did not poll",
        );
      }
      await lease.release();
    },
  },
  {
    name: "50 contenders: never two holders, tokens unique and in order",
    async run(bench) {
      const clients = await Promise.all(
        [1, 2, 3, 4, 5].map(() => bench.locks({ ttl: bench.ttlMs * 10 })),
      );
      const tokens: bigint[] = [];
      let holders = 0;
      const contend = async (locks: Locks): Promise<void> => {
        const lease = await locks.acquire("name", { wait: Number.POSITIVE_INFINITY });
        holders++;
        assert.equal(holders, 1, "one holder");
        tokens.push(lease.token);
        await Promise.resolve();
        holders--;
        assert.equal(await lease.release(), "released");
      };
      const all = Array.from({ length: 50 }, (_, i) => contend(clients[i % 5]!));
      await bench.settled(Promise.all(all), bench.ttlMs * 50);
      assert.equal(tokens.length, 50);
      for (let i = 1; i < 50; i++)
        assert(tokens[i]! > tokens[i - 1]!, "tokens rise in grant order");
    },
  },
  {
    name: "a waiter is granted the name when the holder has crashed",
    async run(bench) {
      const crashed = await bench.client();
      await crashed.locks.acquire("name");
      crashed.store.all = "hang";
      const lease = await bench.settled((await bench.locks()).acquire("name"), bench.ttlMs * 2);
      assert.equal(lease.state, "held");
      await lease.release();
    },
  },
  {
    name: "a waiter is granted the name when the holder and the first waiter have crashed",
    async run(bench) {
      const [holder, first, second] = [
        await bench.client(),
        await bench.client(),
        await bench.locks(),
      ];
      await holder.locks.acquire("name");
      const dead = first.locks.acquire("name");
      dead.catch(() => {});
      await bench.waitersAre(second, "name", 1);
      const waiting = bench.later(second.acquire("name"));
      await bench.waitersAre(second, "name", 2);
      holder.store.all = "hang";
      first.store.all = "hang";
      first.store.faults.push = "hold";
      const lease = await bench.settled(waiting, bench.ttlMs * 3);
      assert.equal(lease.state, "held");
      await lease.release();
    },
  },
  {
    name: "a waiter with a long ttl is granted the name when a holder with a short one, which had waited too, has crashed",
    needsQueue: true,
    async run(bench) {
      const { holder, dead, waiting } = await longBehindShort(bench, { dying: 1 });
      await holder.release();
      await bench.settled(dead[0]!.acquired);
      dead[0]!.store.all = "hang";
      const lease = await bench.settled(waiting, bench.ttlMs * 2);
      assert.equal(lease.state, "held");
      await lease.release();
    },
  },
  {
    name: "a waiter with a long ttl is granted the name when that holder and the two waiters after it have crashed",
    needsQueue: true,
    async run(bench) {
      const { holder, dead, waiting } = await longBehindShort(bench, { dying: 3 });
      await holder.release();
      await bench.settled(dead[0]!.acquired);
      for (const { store } of dead) {
        store.all = "hang";
        store.faults.push = "hold";
      }
      // A ticket keeps its expiry when it is granted, so all three end within about one ttl.
      const lease = await bench.settled(waiting, bench.ttlMs * 2);
      assert.equal(lease.state, "held");
      await lease.release();
    },
  },
  {
    name: "a wait times out on time, the error names the holder, and nothing is left behind",
    async run(bench) {
      const [one, two] = [await bench.locks({ holder: "the holder" }), await bench.locks()];
      const held = await one.acquire("name");
      const startedMs = bench.nowMs;
      const wait = bench.ttlMs * 1.5;
      await assert.rejects(bench.settled(two.acquire("name", { wait })), (error) => {
        assert(error instanceof AcquireTimeoutError);
        assert.equal(error.code, "ACQUIRE_TIMEOUT");
        assert.match(error.message, /the holder/);
        return true;
      });
      assert(bench.nowMs - startedMs >= wait);
      if (bench.subject.virtual) assert(bench.nowMs - startedMs <= wait + 2);
      assert.equal((await one.inspect("name"))?.waiters.length, 0);
      await held.release();
      await bench.isEmpty(two, "name");
      await assert.rejects(async () => {
        const lease = await one.acquire("name");
        try {
          await two.acquire("name", { wait: 0 });
        } finally {
          await lease.release();
        }
      }, AcquireTimeoutError);
    },
  },
  {
    name: "an abort ends the wait at once and leaves nothing behind",
    async run(bench) {
      const [one, two] = [await bench.locks(), await bench.locks()];
      const held = await one.acquire("name");
      const controller = new AbortController();
      const waiting = bench.later(two.acquire("name", { signal: controller.signal }));
      await bench.waitersAre(one, "name", 1);
      controller.abort(new Error("changed my mind"));
      await assert.rejects(waiting, /changed my mind/);
      await bench.waitersAre(one, "name", 0);
      await held.release();
      await bench.isEmpty(two, "name");
      await assert.rejects(two.acquire("name", { signal: controller.signal }), /changed my mind/);
      await bench.isEmpty(two, "name");
    },
  },
  {
    name: "an abort while the claim is under way leaves nothing behind",
    async run(bench) {
      const { locks, store } = await bench.client();
      store.faults.claim = bench.ttlMs / 4;
      const controller = new AbortController();
      const waiting = bench.later(locks.acquire("name", { signal: controller.signal }));
      controller.abort(new Error("changed my mind"));
      await assert.rejects(waiting, /changed my mind/);
      await bench.until(
        "the late grant is released",
        async () => (await locks.inspect("name")) === null,
        bench.ttlMs / 2,
      );
      await bench.pass(bench.ttlMs / 3);
      await bench.isEmpty(locks, "name");
    },
  },
  {
    name: "after a lost reply the claim is repeated: one grant, one token",
    async run(bench) {
      const { locks, store } = await bench.client({ retry: { pause: bench.ttlMs / 10 } });
      store.faults.claim = "fail-reply";
      const waiting = bench.later(locks.acquire("name"));
      await bench.until("asked twice", () => store.sent.claim >= 2);
      store.faults.claim = "none";
      const lease = await bench.settled(waiting);
      const info = await locks.inspect("name");
      assert.deepEqual(
        info?.holders.map((one) => one.token),
        [lease.token],
      );
      await lease.release();
      await bench.isEmpty(locks, "name");
    },
  },
  {
    name: "an acquire of unknown outcome is never a success, and leaves nothing beyond the ttl",
    async run(bench) {
      const { locks, store } = await bench.client({ commandTimeout: bench.ttlMs / 2 });
      store.all = "lose-reply";
      await assert.rejects(
        bench.settled(locks.acquire("name", { wait: 0 })),
        (error) => error instanceof StoreUnavailableError && error.retryable,
      );
      await bench.pass(bench.ttlMs * 1.2);
      await bench.isEmpty(locks, "name");
    },
  },
  {
    name: "a name that is held and a store that is down are different errors",
    async run(bench) {
      const [holder, waiter] = [await bench.locks({ ttl: bench.ttlMs * 20 }), await bench.client()];
      const held = await holder.acquire("name");
      for (const fault of ["hang", "refuse"] as const) {
        const waiting = waiter.locks.acquire("name", { wait: bench.ttlMs * 2 });
        waiting.catch(() => {});
        await bench.waitersAre(holder, "name", 1);
        waiter.store.all = fault;
        await assert.rejects(bench.settled(waiting, bench.ttlMs * 4), StoreUnavailableError);
        waiter.store.all = "none";
        await bench.pass(bench.ttlMs * 1.2);
      }
      await held.release();
    },
  },
  {
    name: "a wait that ends while a claim is under way is a timeout, not an outage",
    async run(bench) {
      const [holder, waiter] = [await bench.locks(), await bench.client()];
      // A client that has to connect first answers too late.
      await (await waiter.locks.acquire("before")).release();
      const held = await holder.acquire("name");
      waiter.store.faults.claim = bench.ttlMs / 20;
      const waiting = waiter.locks.acquire("name", { wait: bench.ttlMs / 40 });
      await assert.rejects(bench.settled(waiting), AcquireTimeoutError);
      await bench.pass(bench.ttlMs / 10);
      assert.equal((await holder.inspect("name"))?.waiters.length, 0);
      await held.release();
    },
  },
  {
    name: "a push that arrives too late is no grant",
    needsQueue: true,
    async run(bench) {
      const [holder, late, third] = [
        await bench.locks(),
        await bench.client(),
        await bench.locks(),
      ];
      // The client has waited before, because a process that does not listen yet has a ticket
      // before its claim is answered.
      const before = await holder.acquire("before");
      const warm = late.locks.acquire("before");
      await bench.waitersAre(holder, "before", 1);
      await before.release();
      await (await bench.settled(warm)).release();
      const held = await holder.acquire("name");
      const waiting = late.locks.acquire("name", { wait: Number.POSITIVE_INFINITY });
      let lease: Lease | null = null;
      waiting.then(
        (one) => {
          lease = one;
        },
        () => {},
      );
      await bench.waitersAre(holder, "name", 1);
      // Cut off: the release grants the name to this client, but its push is delayed until the
      // grant is long over.
      late.store.faults.push = "hold";
      late.store.all = "refuse";
      // A renewal that is under way may tell it of the grant.
      await bench.until("its last request is answered", () => late.store.underWay === 0);
      await held.release();
      const next = await bench.settled(third.acquire("name"), bench.ttlMs * 3);
      late.store.all = "none";
      await bench.until(
        "the client waits again",
        async () => ((await third.inspect("name"))?.waiters.length ?? 0) === 1,
      );
      late.store.deliverPushes();
      await bench.pass(bench.ttlMs * 0.3);
      assert.equal(lease, null, "two clients would hold the name");
      assert.equal(next.state, "held");
      late.store.faults.push = "none";
      await next.release();
      await (await bench.settled(waiting)).release();
    },
  },
  {
    name: "close releases leases, rejects waiters, leaves nothing behind",
    async run(bench) {
      const [one, two] = [await bench.locks(), await bench.locks()];
      const leases = await Promise.all(["a", "b", "c"].map((name) => one.acquire(name)));
      const held = await two.acquire("d");
      const waiting = assert.rejects(one.acquire("d"), ClosedError);
      await bench.waitersAre(two, "d", 1);
      await bench.settled(one.close());
      await waiting;
      for (const name of ["a", "b", "c"]) await bench.isEmpty(two, name);
      await bench.waitersAre(two, "d", 0);
      assert.deepEqual(
        leases.map((lease) => lease.state),
        ["lost", "lost", "lost"],
      );
      assert.equal(leases[0]!.signal.aborted, true, "work that still runs is notified");
      await assert.rejects(one.acquire("a"), ClosedError);
      await one.close();
      await held.release();
      await two.close();
      if (bench.subject.virtual) assert.equal(bench.virtual.timers, 0, "no timer is left");
    },
  },
];
