import assert from "node:assert/strict";
import { InvalidArgumentError, StaleTokenError } from "../core/errors.js";
import type { Lease } from "../core/lease.js";
import { LOCK_LIMIT } from "../core/store.js";
import type { Locks } from "../locks.js";
import { type Case, grantOf, ignore } from "./subject.js";

/** Readers and permits: several holders of one name. */
export const permitCases: readonly Case[] = [
  {
    name: "a writer is not starved by readers that keep coming",
    needsQueue: true,
    feature: "shared",
    async run(bench) {
      const [one, two] = [await bench.locks(), await bench.locks()];
      const order: string[] = [];
      const take = (locks: Locks, who: string, mode: "shared" | "exclusive"): Promise<Lease> =>
        bench.later(
          locks.acquire("name", { mode }).then((lease) => {
            order.push(who);
            return lease;
          }),
        );
      const first = await take(one, "reader 1", "shared");
      const writing = take(two, "writer", "exclusive");
      await bench.waitersAre(one, "name", 1);
      const late = [take(one, "reader 2", "shared"), take(two, "reader 3", "shared")];
      await bench.waitersAre(one, "name", 3);
      await first.release();
      const writer = await bench.settled(writing);
      assert.deepEqual(order, ["reader 1", "writer"]);
      await writer.release();
      const readers = await bench.settled(Promise.all(late));
      assert.deepEqual(order.slice(0, 2), ["reader 1", "writer"]);
      assert(readers.every((lease) => lease.token > writer.token));
      const floor = readers[0]!.token < readers[1]!.token ? readers[0] : readers[1];
      for (const reader of readers) {
        assert.equal(reader.floor, reader === floor ? reader.token : floor!.token);
      }
      for (const reader of readers) await reader.release();
    },
  },
  {
    name: "each reader has an expiry of its own",
    feature: "shared",
    async run(bench) {
      const [crashed, living] = [await bench.client(), await bench.locks()];
      await crashed.locks.acquire("name", { mode: "shared" });
      const reader = await living.acquire("name", { mode: "shared" });
      crashed.store.all = "hang";
      await bench.until(
        "the crashed reader is gone, and the living one is not",
        async () => (await living.inspect("name"))?.holders.length === 1,
        bench.ttlMs * 2,
      );
      assert.equal((await living.inspect("name"))!.holders[0]!.token, reader.token);
      const writing = bench.later(living.acquire("name"));
      await reader.release();
      await (await bench.settled(writing)).release();
    },
  },
  {
    name: "a semaphore gives out its permits and no more",
    feature: "permits",
    async run(bench) {
      const [one, two] = [await bench.locks(), await bench.locks()];
      const [mine, yours] = [
        one.semaphore("name", { permits: 4 }),
        two.semaphore("name", { permits: 4 }),
      ];
      const three = await mine.acquire({ permits: 3 });
      assert.equal(three.mode, "permits");
      assert.equal(three.permits, 3);
      assert.equal(await yours.tryAcquire({ permits: 2 }), null);
      const last = await yours.tryAcquire();
      assert(last !== null && last.token > three.token && last.floor === three.token);
      assert.equal(await mine.tryAcquire(), null);
      await three.release();
      const four = bench.later(mine.acquire({ permits: 4 }));
      await bench.waitersAre(one, "name", 1);
      assert.equal(await yours.tryAcquire(), null, "nobody passes the waiter that claims many");
      await last.release();
      await (await bench.settled(four)).release();
      assert.equal(await one.inspect("name"), null);
    },
  },
  {
    name: "the permits of crashed holders come back, each at its own expiry",
    feature: ["permits", "own-ttl"],
    async run(bench) {
      const [crashed, living] = [await bench.client(), await bench.locks()];
      const doomed = crashed.locks.semaphore("name", { permits: 2 });
      await doomed.acquire({ ttl: bench.ttlMs, renew: false });
      await doomed.acquire({ ttl: bench.ttlMs * 4, renew: false });
      crashed.store.all = "hang";
      const semaphore = living.semaphore("name", { permits: 2 });
      assert.equal(await semaphore.tryAcquire(), null);
      const lease = await bench.settled(semaphore.acquire(), bench.ttlMs * 2);
      assert.equal(await semaphore.tryAcquire(), null, "the other lease lasts longer");
      const both = await bench.settled(semaphore.acquire(), bench.ttlMs * 5);
      await lease.release();
      await both.release();
    },
  },
  {
    name: "another limit, or a lock of the same name, is refused; resize changes the limit",
    feature: "permits",
    async run(bench) {
      const [one, two] = [await bench.locks(), await bench.locks()];
      const small = one.semaphore("name", { permits: 2 });
      const held = await small.acquire({ permits: 2 });
      const large = two.semaphore("name", { permits: 3 });
      const refused = (error: unknown): boolean => error instanceof InvalidArgumentError;
      await assert.rejects(large.acquire(), refused);
      await assert.rejects(two.acquire("name"), refused);
      await assert.rejects(two.acquire("name", { mode: "shared" }), refused);
      const waiting = bench.later(small.acquire());
      await bench.waitersAre(one, "name", 1);
      await large.resize(3);
      const third = await bench.settled(waiting);
      await assert.rejects(small.acquire(), refused, "this semaphore still has the old limit");
      assert.equal(await large.tryAcquire(), null);
      await large.resize(1);
      await held.release();
      assert.equal(await large.tryAcquire(), null, "all permits of the new limit are taken");
      await third.release();
      await (await large.acquire()).release();
      const lock = await one.acquire("name");
      await assert.rejects(large.resize(5), refused);
      await lock.release();
    },
  },
  {
    name: "resize keeps holders and tickets, and drops tickets that can never be granted",
    feature: "permits",
    async run(bench) {
      const store = await bench.store();
      assert.equal(await store.resize("name", 4), null, "a name that is not in use keeps no limit");
      const held = bench.lastingClaim("name", { limit: 4, permits: 3 });
      grantOf(await store.claim(held, ignore));
      const many = bench.lastingClaim("name", { limit: 4, permits: 4, queue: true });
      const few = bench.lastingClaim("name", { limit: 4, permits: 1, queue: true });
      assert.equal((await store.claim(many, ignore)).kind, "queued");
      assert.equal((await store.claim(few, ignore)).kind, "queued");
      assert.equal(await store.resize("name", 2), 4);
      const renewal = (claim: typeof held) => ({
        name: "name",
        grantId: claim.grantId,
        seq: 2,
        ttlMs: claim.ttlMs,
      });
      const answers = await store.renew([renewal(held), renewal(many), renewal(few)]);
      assert.deepEqual(
        answers.map(({ kind }) => kind),
        ["granted", "lost", "queued"],
      );
      const again = await store.claim({ ...few, seq: 3 }, ignore);
      assert.equal(
        again.kind,
        "queued",
        "a repeated claim finds its ticket, whatever limit it names",
      );
      await store.release([{ name: "name", grantId: held.grantId }]);
      assert.equal((await store.renew([{ ...renewal(few), seq: 4 }]))[0]?.kind, "granted");
      assert.deepEqual((await store.inspect("name"))?.limit, 2);
      const lock = bench.lastingClaim("lock");
      grantOf(await store.claim(lock, ignore));
      assert.equal(await store.resize("lock", 2), LOCK_LIMIT, "a lock stays a lock");
      assert.equal((await store.claim(bench.lastingClaim("lock"), ignore)).kind, "busy");
    },
  },
  {
    name: "holders of permits do not fence each other out, and an earlier holder is refused",
    feature: "permits",
    needsFence: true,
    async run(bench) {
      const { fence } = await bench.subject.fence!();
      const [one, two] = [await bench.client(), await bench.locks()];
      const zombie = await one.locks.semaphore("name", { permits: 2 }).acquire({ permits: 2 });
      await fence.enter(undefined, "cell", zombie);
      one.store.all = "hang";
      const semaphore = two.semaphore("name", { permits: 2 });
      const first = await bench.settled(semaphore.acquire(), bench.ttlMs * 2);
      const second = await semaphore.acquire();
      for (const lease of [second, first, second]) {
        await fence.enter(undefined, "cell", lease);
        await fence.guard(undefined, "cell", lease);
      }
      await assert.rejects(fence.guard(undefined, "cell", zombie), StaleTokenError);
      await first.release();
      await second.release();
    },
  },
];
