import assert from "node:assert/strict";
import {
  AcquireTimeoutError,
  InvalidArgumentError,
  LeaseLostError,
  StaleTokenError,
} from "../core/errors.js";
import type { Lease } from "../core/lease.js";
import type { Locks } from "../core/locks.js";
import { LOCK_LIMIT, type Push } from "../core/store.js";
import { type Case, grantOf, ignore } from "./subject.js";

/** What is built on the rule: readers, permits, several names, leaders, schedules. */
export const primitiveCases: readonly Case[] = [
  {
    name: "a writer is not starved by readers that keep coming",
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
        "the crashed reader is gone, the living one is not",
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
      assert.equal(await yours.tryAcquire(), null, "not past the one that wants many");
      await last.release();
      await (await bench.settled(four)).release();
      assert.equal(await one.inspect("name"), null);
    },
  },
  {
    name: "the permits of crashed holders come back, each at its own expiry",
    feature: "permits",
    async run(bench) {
      const [crashed, living] = [await bench.client(), await bench.locks()];
      const doomed = crashed.locks.semaphore("name", { permits: 2 });
      await doomed.acquire({ ttl: bench.ttlMs, renew: false });
      await doomed.acquire({ ttl: bench.ttlMs * 4, renew: false });
      crashed.store.all = "hang";
      const semaphore = living.semaphore("name", { permits: 2 });
      assert.equal(await semaphore.tryAcquire(), null);
      const lease = await bench.settled(semaphore.acquire(), bench.ttlMs * 2);
      assert.equal(await semaphore.tryAcquire(), null, "the other runs longer");
      const both = await bench.settled(semaphore.acquire(), bench.ttlMs * 5);
      await lease.release();
      await both.release();
    },
  },
  {
    name: "another limit is an error, and so is a lock of that name; resize changes it",
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
      await assert.rejects(small.acquire(), refused, "its limit is the old one");
      assert.equal(await large.tryAcquire(), null);
      await large.resize(1);
      await held.release();
      assert.equal(await large.tryAcquire(), null, "as many as there are now");
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
      assert.equal(await store.resize("name", 4), null, "not in use: nothing is kept");
      const held = bench.claim("name", { limit: 4, permits: 3 });
      grantOf(await store.claim(held, ignore));
      const many = bench.claim("name", { limit: 4, permits: 4, queue: true });
      const few = bench.claim("name", { limit: 4, permits: 1, queue: true });
      assert.equal((await store.claim(many, ignore)).kind, "queued");
      assert.equal((await store.claim(few, ignore)).kind, "queued");
      assert.equal(await store.resize("name", 2), 4);
      const renewal = (claim: typeof held) => ({
        name: "name",
        grantId: claim.grantId,
        seq: 2,
        ttlMs: bench.ttlMs,
      });
      const answers = await store.renew([renewal(held), renewal(many), renewal(few)]);
      assert.deepEqual(
        answers.map(({ kind }) => kind),
        ["granted", "lost", "queued"],
      );
      const again = await store.claim({ ...few, seq: 3 }, ignore);
      assert.equal(again.kind, "queued", "its own ticket is found, whatever limit it says");
      await store.release([{ name: "name", grantId: held.grantId }]);
      assert.equal((await store.renew([{ ...renewal(few), seq: 4 }]))[0]?.kind, "granted");
      assert.deepEqual((await store.inspect("name"))?.limit, 2);
      const lock = bench.claim("lock");
      grantOf(await store.claim(lock, ignore));
      assert.equal(await store.resize("lock", 2), LOCK_LIMIT, "a lock stays a lock");
      assert.equal((await store.claim(bench.claim("lock"), ignore)).kind, "busy");
    },
  },
  {
    name: "permits do not fence each other out, zombies of an earlier time are refused",
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
  {
    name: "acquireAll: all or nothing, in one order for everybody, tokens by name",
    async run(bench) {
      const [one, two] = [await bench.locks(), await bench.locks()];
      const all = await one.acquireAll(["c", "a", "b", "a"]);
      assert.deepEqual(all.names, ["a", "b", "c"]);
      assert.deepEqual([...all.tokens.keys()], ["a", "b", "c"]);
      await assert.rejects(two.acquireAll(["b", "z"], { wait: 0 }), AcquireTimeoutError);
      assert.equal(await two.inspect("z"), null, "nothing of it is left");
      const waiting = two.acquireAll(["z", "b", "y"]);
      await bench.waitersAre(one, "b", 1);
      assert.equal(await all.release(), "released");
      const next = await bench.settled(waiting);
      assert(next.tokens.get("b")! > all.tokens.get("b")!);
      await next.release();
      assert.deepEqual(await one.list(), []);
    },
  },
  {
    name: "acquireAll gives up everything when one is not to be had in time, or is lost",
    async run(bench) {
      const [one, two] = [await bench.client(), await bench.locks()];
      const held = await two.acquire("b");
      await assert.rejects(
        bench.settled(one.locks.acquireAll(["c", "b", "a"], { wait: bench.ttlMs })),
        (error) => error instanceof AcquireTimeoutError && error.lockName === "b",
      );
      for (const name of ["a", "c"]) assert.equal(await two.inspect(name), null);
      await held.release();
      const all = await one.locks.acquireAll(["a", "b"]);
      const lost = new Promise<LeaseLostError>((resolve) => {
        all.signal.addEventListener("abort", () => resolve(all.signal.reason as LeaseLostError));
      });
      one.store.all = "hang";
      const error = await bench.settled(lost, bench.ttlMs * 2);
      assert(error instanceof LeaseLostError);
      assert.equal(all.state, "lost");
      assert.throws(() => all.assertHeld(), LeaseLostError);
    },
  },
  {
    name: "opposite orders: acquireAll never waits in a circle, plain acquire does and it is seen",
    async run(bench) {
      const clients = [await bench.locks({ holder: "one" }), await bench.locks({ holder: "two" })];
      const rounds = bench.subject.virtual ? 200 : 20;
      const work = clients.map(async (locks, i) => {
        const names = i === 0 ? ["a", "b"] : ["b", "a"];
        for (let round = 0; round < rounds; round++) {
          const all = await locks.acquireAll(names, { wait: Number.POSITIVE_INFINITY });
          assert.equal(all.state, "held");
          await all.release();
        }
      });
      await bench.settled(Promise.all(work), bench.ttlMs * 20);

      const [one, two] = clients as [Locks, Locks];
      const [a, b] = [await one.acquire("a"), await two.acquire("b")];
      assert.deepEqual(await one.deadlocks(), []);
      const crossed = [
        one.acquire("b", { wait: bench.ttlMs * 4 }),
        two.acquire("a", { wait: bench.ttlMs * 4 }),
      ];
      for (const waiting of crossed) waiting.catch(ignore);
      await bench.waitersAre(one, "a", 1);
      await bench.waitersAre(one, "b", 1);
      const [deadlock, ...others] = await two.deadlocks();
      assert.deepEqual(others, []);
      assert.deepEqual(
        deadlock?.map(({ holder, holds, waitsFor, blockedBy }) => ({
          holder,
          holds,
          waitsFor,
          blockedBy,
        })),
        [
          { holder: "one", holds: ["a"], waitsFor: "b", blockedBy: "two" },
          { holder: "two", holds: ["b"], waitsFor: "a", blockedBy: "one" },
        ],
      );
      await a.release();
      await (await bench.settled(crossed[1]!)).release();
      await b.release();
      await (await bench.settled(crossed[0]!)).release();
      assert.deepEqual(await one.deadlocks(), []);
    },
  },
  {
    name: "a leader that is cut off knows before the next is elected, whose token is higher",
    async run(bench) {
      const [one, two] = [await bench.client({ holder: "one" }), await bench.locks()];
      const first = await one.locks.election("name").campaign();
      let elected = false;
      const candidate = two.election("name");
      const next = candidate.campaign().then((lease) => {
        elected = true;
        return lease;
      });
      await bench.waitersAre(two, "name", 1);
      let knewFirst = false;
      first.on("lost", () => {
        knewFirst = !elected;
      });
      one.store.all = "hang";
      const second = await bench.settled(next, bench.ttlMs * 2);
      assert(knewFirst, "it knew first");
      assert(second.token > first.token);
      const leaders: (bigint | null)[] = [];
      const observed = (async () => {
        for await (const leader of candidate.observe({ every: bench.ttlMs / 10 })) {
          leaders.push(leader?.token ?? null);
          if (leader === null) break;
        }
      })();
      await bench.until("it is observed", () => leaders.length === 1);
      assert.equal(await candidate.resign(), "released");
      await bench.settled(observed);
      assert.deepEqual(leaders, [second.token, null]);
    },
  },
  {
    name: "once runs a function once per period, whoever asks",
    feature: "at-least",
    async run(bench) {
      const clients = [await bench.locks(), await bench.locks(), await bench.locks()];
      let ran = 0;
      const ask = (): Promise<boolean[]> =>
        Promise.all(
          clients.map(async (locks) => {
            const period = { every: bench.ttlMs * 4, slack: 0 };
            const result = await locks.once("name", period, () => ++ran);
            if (!result.ran) assert(result.nextInMs > 0 && result.nextInMs <= bench.ttlMs * 4);
            return result.ran;
          }),
        );
      assert.equal((await bench.settled(ask())).filter(Boolean).length, 1);
      assert.deepEqual(await ask(), [false, false, false]);
      await bench.pass(bench.ttlMs * 4);
      assert.equal((await bench.settled(ask())).filter(Boolean).length, 1);
      assert.equal(ran, 2);
    },
  },
  {
    name: "a grant that has run out is not revived while it closes the name",
    feature: "at-least",
    async run(bench) {
      const store = await bench.store();
      const claim = bench.claim("name", { permits: 1, limit: 2, atLeastMs: bench.ttlMs * 20 });
      grantOf(await store.claim(claim, ignore));
      await bench.pass(bench.ttlMs * 1.1);
      const other = bench.claim("name", { permits: 1, limit: 2 });
      const { floor, token } = grantOf(await store.claim(other, ignore));
      assert.equal(floor, token, "it no longer holds");
      assert.equal((await store.claim({ ...claim, seq: 2 }, ignore)).kind, "lost");
      const unused = { name: "name", grantId: claim.grantId, unused: true };
      assert.deepEqual(await store.release([unused]), ["released"]);
      assert.equal((await store.inspect("name"))?.holders.length, 1, "it closes nothing any more");
    },
  },
  {
    name: "a grant that nobody has used does not keep the name closed",
    feature: "at-least",
    async run(bench) {
      const { locks, store } = await bench.client();
      store.faults.claim = "fail-reply";
      await assert.rejects(locks.acquire("name", { wait: 0, atLeast: "1h" }));
      store.faults.claim = "none";
      await bench.until("it is open again", async () => (await locks.inspect("name")) === null);
      const used = await locks.acquire("name", { atLeast: bench.ttlMs * 3 });
      await used.release();
      assert.equal(await locks.tryAcquire("name"), null, "one that was used does");
    },
  },
  {
    name: "revoke leaves those who wait in their places",
    feature: "revoke",
    async run(bench) {
      const store = await bench.store();
      const held = bench.claim("name");
      grantOf(await store.claim(held, ignore));
      const waiting = ["first", "second", "third"].map((holder) =>
        bench.claim("name", { holder, queue: true }),
      );
      for (const one of waiting) assert.equal((await store.claim(one, ignore)).kind, "queued");
      await store.revoke("name", { holder: "x", why: "y" });
      const info = await store.inspect("name");
      assert.deepEqual(
        info?.holders.map(({ holder }) => holder),
        ["first"],
      );
      assert.deepEqual(
        info?.waiters.map(({ holder }) => holder),
        ["second", "third"],
      );
    },
  },
  {
    name: "an ask that comes after the revocation makes nothing",
    feature: "revoke",
    async run(bench) {
      const store = await bench.store();
      const claim = bench.claim("name", { seq: 2, queue: true });
      grantOf(await store.claim(claim, ignore));
      await store.revoke("name", { holder: "x", why: "y" });
      for (const seq of [1, 3]) {
        const late = await store.claim({ ...claim, seq }, ignore);
        assert.deepEqual(late, { kind: "lost", reason: "revoked", why: "by x: y" });
      }
      const info = await store.inspect("name");
      assert.deepEqual([info?.holders, info?.waiters], [[], []]);
      const release = { name: "name", grantId: claim.grantId };
      assert.notEqual((await store.release([release]))[0], "released");
    },
  },
  {
    name: "revoke does not take the name from who comes next",
    feature: "revoke",
    async run(bench) {
      const [one, two] = [await bench.store(), await bench.store()];
      const pushes: Push[] = [];
      grantOf(await one.claim(bench.claim("name", { ttlMs: bench.ttlMs }), ignore));
      const next = bench.claim("name", { ttlMs: bench.ttlMs * 4, queue: true });
      const asked = await two.claim(next, (push) => pushes.push(push));
      assert.equal(asked.kind, "queued");
      // A session's end is noticed by the store itself: who comes next holds the name by then.
      if (one.traits.liveness === "session") return;
      // The holder runs out, and nobody has noticed.
      await bench.pass(bench.ttlMs * 1.1);
      assert.deepEqual(await one.revoke("name", { holder: "x", why: "y" }), []);
      if (one.traits.waiting === "pushed") {
        await bench.until("it is told", () => pushes.length > 0);
        const [push] = pushes;
        if (push?.kind === "granted") assert.equal(push.grant.ttlMs, bench.ttlMs * 4);
      }
      const renewal = { name: "name", grantId: next.grantId, seq: 2, ttlMs: bench.ttlMs };
      assert.equal((await two.renew([renewal]))[0]?.kind, "granted");
    },
  },
  {
    name: "forceRelease is kept with who and why, the holder learns it, the next token is higher",
    feature: "revoke",
    async run(bench) {
      const [one, two] = [
        await bench.locks({ holder: "one" }),
        await bench.locks({ holder: "two" }),
      ];
      const held = await one.acquire("name");
      const [from] = await two.forceRelease("name", { why: "for a test" });
      assert.equal(from?.token, held.token);
      const next = await two.acquire("name");
      assert(next.token > held.token);
      await bench.until("the holder knows", () => held.state === "lost", bench.ttlMs);
      const loss = held.signal.reason as LeaseLostError;
      assert.equal(loss.reason, "revoked");
      assert.match(loss.message, /by two: for a test/);
      await next.release();
      const info = await one.inspect("name");
      assert.deepEqual(
        info?.revoked.map(({ holder, token, by, why }) => ({ holder, token, by, why })),
        [{ holder: "one", token: held.token, by: "two", why: "for a test" }],
      );
      assert.deepEqual(info?.holders, []);
      assert.deepEqual(await one.list(), [], "it is not in use");
    },
  },
];
