import assert from "node:assert/strict";
import { type Claim, MOST_WAITERS, type Push, WAITERS_SHOWN } from "../core/store.js";
import { type Case, grantOf, ignore } from "./subject.js";

const CLAIMS_AT_ONCE = 100;

/** The contract itself: claims, renewals and releases as a core sends them. */
export const contractCases: readonly Case[] = [
  {
    name: "grants exclude each other",
    async run(bench) {
      const [one, two] = [await bench.store(), await bench.store()];
      const held = bench.lastingClaim("name");
      grantOf(await one.claim(held, ignore));
      assert.equal((await two.claim(bench.lastingClaim("name"), ignore)).kind, "busy");
      grantOf(await two.claim(bench.lastingClaim("other name"), ignore));
      assert.deepEqual(await one.release([{ name: "name", grantId: held.grantId }]), ["released"]);
      grantOf(await two.claim(bench.lastingClaim("name"), ignore));
    },
  },
  {
    name: "shared, exclusive and permits follow one rule",
    feature: "permits",
    async run(bench) {
      const store = await bench.store();
      // A model of the rule gets the same random claims and releases.
      let seed = 42;
      const random = (below: number): number => {
        seed = (seed * 1_103_515_245 + 12_345) % 2 ** 31;
        return seed % below;
      };
      for (const limit of [1, 3, 10]) {
        const name = `semaphore of ${limit}`;
        const holding: { grantId: string; permits: number }[] = [];
        for (let step = 0; step < 60; step++) {
          const inUse = holding.reduce((sum, one) => sum + one.permits, 0);
          if (random(3) === 0 && holding.length > 0) {
            const [gone] = holding.splice(random(holding.length), 1);
            assert.deepEqual(await store.release([{ name, grantId: gone!.grantId }]), ["released"]);
            continue;
          }
          const claim = bench.lastingClaim(name, { limit, permits: 1 + random(limit) });
          const answer = await store.claim(claim, ignore);
          const fits = inUse + claim.permits <= limit;
          assert.equal(
            answer.kind,
            fits ? "granted" : "busy",
            `${inUse}+${claim.permits}/${limit}`,
          );
          if (fits) holding.push(claim);
        }
        await store.release(holding.map(({ grantId }) => ({ name, grantId })));
      }
      const readers = [
        bench.lastingClaim("rw", { permits: 1 }),
        bench.lastingClaim("rw", { permits: 1 }),
      ];
      for (const reader of readers) grantOf(await store.claim(reader, ignore));
      const writer = bench.lastingClaim("rw", { queue: true });
      assert.equal((await store.claim(writer, ignore)).kind, "queued");
      // Nobody passes the waiting writer, though a reader would fit.
      assert.equal(
        (await store.claim(bench.lastingClaim("rw", { permits: 1 }), ignore)).kind,
        "busy",
      );
      await store.release(readers.map(({ grantId }) => ({ name: "rw", grantId })));
      grantOf(await store.claim({ ...writer, seq: 2 }, ignore));
    },
  },
  {
    name: "a name in use with one limit is refused with another",
    feature: "permits",
    async run(bench) {
      const store = await bench.store();
      grantOf(await store.claim(bench.lastingClaim("name", { limit: 4, permits: 1 }), ignore));
      const other = await store.claim(bench.lastingClaim("name", { limit: 5, permits: 1 }), ignore);
      assert.deepEqual(other, { kind: "mismatch", name: "name", limit: 4 });
      assert.equal((await store.claim(bench.lastingClaim("name"), ignore)).kind, "mismatch");
    },
  },
  {
    name: "a repeated claim finds its grant with the same token, and extends it",
    async run(bench) {
      const [one, two] = [await bench.store(), await bench.store()];
      const ttlMs = bench.ttlMs * 2;
      // The time to connect would count.
      grantOf(await one.claim(bench.claim("before", { ttlMs }), ignore));
      const claim = bench.claim("name", { ttlMs });
      const first = grantOf(await one.claim(claim, ignore));
      await bench.pass(ttlMs * 0.6);
      const again = grantOf(await one.claim({ ...claim, seq: 2 }, ignore));
      assert.equal(again.token, first.token);
      assert.equal(again.floor, first.floor);
      assert.equal(again.seq, 2, "its expiry rests on the second request");
      await bench.pass(ttlMs * 0.6);
      const other = await two.claim(bench.claim("name"), ignore);
      assert.equal(other.kind, "busy", "the store has extended it, too, not only the caller");
    },
  },
  {
    name: "a repeated claim finds its ticket in the same place",
    needsQueue: true,
    async run(bench) {
      const store = await bench.store();
      const held = bench.lastingClaim("name");
      grantOf(await store.claim(held, ignore));
      const [a, b] = [
        bench.lastingClaim("name", { queue: true }),
        bench.lastingClaim("name", { queue: true }),
      ];
      await store.claim(a, ignore);
      await store.claim(b, ignore);
      for (const seq of [2, 3]) {
        const answer = await store.claim({ ...a, seq }, ignore);
        assert(answer.kind === "queued" && answer.position.ahead === 0);
      }
      assert.equal((await store.inspect("name"))?.waiters.length, 2);
      await store.release([{ name: "name", grantId: held.grantId }]);
      grantOf(await store.claim({ ...a, seq: 4 }, ignore));
      assert.equal((await store.claim({ ...b, seq: 2 }, ignore)).kind, "queued");
    },
  },
  {
    name: "a stale release touches neither the successor nor the queue",
    needsQueue: true,
    async run(bench) {
      const store = await bench.store();
      const stale = bench.claim("name");
      grantOf(await store.claim(stale, ignore));
      await bench.pass(bench.ttlMs * 1.2);
      const successor = bench.lastingClaim("name");
      grantOf(await store.claim(successor, ignore));
      const waiter = bench.lastingClaim("name", { queue: true });
      await store.claim(waiter, ignore);
      const release = { name: "name", grantId: stale.grantId };
      const lost = [{ kind: "lost", reason: "superseded" }];
      assert.deepEqual(await store.release([release]), lost);
      assert.deepEqual(await store.release([release]), lost);
      const info = await store.inspect("name");
      assert.deepEqual(
        info?.holders.map((one) => one.holder),
        [successor.holder],
      );
      assert.deepEqual(
        info?.waiters.map((one) => one.holder),
        [waiter.holder],
      );
    },
  },
  {
    name: "a stale renewal touches nobody and creates nothing",
    async run(bench) {
      const store = await bench.store();
      const stale = bench.claim("name");
      const renewal = { name: "name", grantId: stale.grantId, seq: 2, ttlMs: bench.ttlMs * 100 };
      assert.deepEqual(await store.renew([renewal]), [{ kind: "lost", reason: "expired" }]);
      await bench.isEmpty(store, "name");
      grantOf(await store.claim(stale, ignore));
      await bench.pass(bench.ttlMs * 1.2);
      const successor = bench.claim("name");
      grantOf(await store.claim(successor, ignore));
      assert.deepEqual(await store.renew([renewal]), [{ kind: "lost", reason: "superseded" }]);
      assert((await store.inspect("name"))!.holders[0]!.expiresInMs <= bench.ttlMs);
      const released = { name: "name", grantId: successor.grantId };
      await store.release([released]);
      const [late] = await store.renew([{ ...released, seq: 2, ttlMs: bench.ttlMs }]);
      assert.equal(late?.kind, "lost", "a renewal after the release revives nothing");
      await bench.isEmpty(store, "name");
    },
  },
  {
    name: "a renewal that a later one has overtaken changes nothing",
    feature: "own-ttl",
    async run(bench) {
      const store = await bench.store();
      const claim = bench.claim("name");
      const { token } = grantOf(await store.claim(claim, ignore));
      const renewal = { name: "name", grantId: claim.grantId };
      await store.renew([{ ...renewal, seq: 3, ttlMs: bench.ttlMs * 10 }]);
      const [late] = await store.renew([{ ...renewal, seq: 2, ttlMs: bench.ttlMs / 2 }]);
      assert(late?.kind === "granted" && late.grant.token === token);
      assert.equal(late.grant.seq, 3, "the grant names the request that its expiry rests on");
      await bench.pass(bench.ttlMs);
      assert.equal((await store.claim(bench.claim("name"), ignore)).kind, "busy");
    },
  },
  {
    name: "a batch has one reply for each request, in order",
    async run(bench) {
      const store = await bench.store();
      const claims = ["a", "b", "c"].map((name) => bench.lastingClaim(name));
      for (const claim of claims) grantOf(await store.claim(claim, ignore));
      await store.release([{ name: "b", grantId: claims[1]!.grantId }]);
      const renewals = claims.map((claim) => ({
        name: claim.names[0]!,
        grantId: claim.grantId,
        seq: 2,
        ttlMs: claim.ttlMs,
      }));
      const kinds = (await store.renew(renewals)).map((answer) => answer.kind);
      assert.deepEqual(kinds, ["granted", "lost", "granted"]);
      const answers = await store.release(renewals);
      assert.deepEqual(answers, ["released", { kind: "lost", reason: "expired" }, "released"]);
    },
  },
  {
    name: "many names in one claim: all or nothing",
    feature: "many-names",
    async run(bench) {
      const store = await bench.store();
      const all = bench.lastingClaim("", { names: ["a", "b", "c"] });
      const answer = await store.claim(all, ignore);
      assert(answer.kind === "granted" && answer.grants.length === 3);
      await store.release([{ name: "b", grantId: all.grantId }]);
      assert.equal(
        (await store.claim(bench.lastingClaim("", { names: ["a", "b"] }), ignore)).kind,
        "busy",
      );
      assert.equal(await store.inspect("b"), null, "nothing is left of a claim that failed");
      const last = await store.claim(bench.lastingClaim("", { names: ["b", "c"] }), ignore);
      assert.equal(last.kind, "busy");
      assert.equal(await store.inspect("b"), null, "nor if only the last name was taken");
      const again = await store.claim({ ...all, seq: 2 }, ignore);
      assert(again.kind === "granted" && again.grants[0]!.token === answer.grants[0]!.token);
    },
  },
  {
    name: "a lease expires after its own ttl, and the name is free",
    async run(bench) {
      const store = await bench.store();
      grantOf(await store.claim(bench.claim("name"), ignore));
      grantOf(await store.claim(bench.claim("long", { ttlMs: bench.ttlMs * 10 }), ignore));
      await bench.pass(bench.ttlMs * 0.2);
      assert.equal((await store.claim(bench.claim("name"), ignore)).kind, "busy");
      await bench.pass(bench.ttlMs);
      grantOf(await store.claim(bench.claim("name"), ignore));
      assert.equal((await store.claim(bench.claim("long"), ignore)).kind, "busy");
    },
  },
  {
    name: "a freed name is granted to the first waiter, which is notified",
    async run(bench) {
      const [one, two] = [await bench.store(), await bench.store()];
      const held = bench.lastingClaim("name");
      grantOf(await one.claim(held, ignore));
      const pushes: Push[] = [];
      const waiter = bench.lastingClaim("name", { queue: true });
      await two.claim(waiter, (push) => pushes.push(push));
      await one.release([{ name: "name", grantId: held.grantId }]);
      if (two.traits.waiting === "pushed") {
        await bench.until("the waiter is notified", () => pushes.length > 0);
      }
      const grant = grantOf(await two.claim({ ...waiter, seq: 2 }, ignore));
      const pushed = pushes.find((push) => push.kind === "granted");
      if (pushed?.kind === "granted") {
        assert.equal(pushed.grant.token, grant.token);
        assert.equal(pushed.grant.seq, 1, "a handover rests on the ticket's last request");
        assert.equal(pushed.grant.handedOver, true);
      }
    },
  },
  {
    name: "an expired ticket is skipped",
    async run(bench) {
      const store = await bench.store();
      const held = bench.claim("name", { ttlMs: bench.ttlMs * 4 });
      grantOf(await store.claim(held, ignore));
      await store.claim(bench.claim("name", { queue: true }), ignore);
      const living = bench.claim("name", { queue: true, ttlMs: bench.ttlMs * 4 });
      await store.claim(living, ignore);
      await bench.pass(bench.ttlMs * 1.2);
      await store.release([{ name: "name", grantId: held.grantId }]);
      grantOf(await store.claim({ ...living, seq: 2 }, ignore));
    },
  },
  {
    name: "an expired ticket is gone, also behind a living one: a claim under its id goes to the end",
    needsQueue: true,
    async run(bench) {
      const store = await bench.store();
      const ttlMs = bench.ttlMs * 20;
      const [first, second] = [1, 2].map(() => bench.claim("name", { queue: true, ttlMs }));
      const gone = bench.claim("name", { queue: true });
      const alsoGone = bench.claim("name", { queue: true });
      grantOf(await store.claim(bench.claim("name", { ttlMs }), ignore));
      for (const one of [first!, gone, alsoGone, second!]) await store.claim(one, ignore);
      await bench.until(
        "the tickets in the middle have expired",
        async () => (await store.inspect("name"))?.waiters.length === 2,
      );
      const lost = { kind: "lost", reason: "superseded" };
      const request = { name: "name", grantId: gone.grantId };
      assert.deepEqual(await store.renew([{ ...request, seq: 2, ttlMs }]), [lost]);
      assert.deepEqual(await store.release([request]), [lost]);
      const again = await store.claim({ ...alsoGone, seq: 2, ttlMs }, ignore);
      if (store.traits.liveness === "session") return assert.equal(again.kind, "lost");
      assert.equal(again.kind, "queued");
      assert.deepEqual(
        (await store.inspect("name"))?.waiters.map((one) => one.holder),
        [first!.holder, second!.holder, alsoGone.holder],
      );
    },
  },
  {
    name: "a full queue refuses another claim, which leaves nothing behind",
    needsQueue: true,
    alone: true,
    async run(bench) {
      const store = await bench.store();
      const ttlMs = bench.ttlMs * 200;
      const held = bench.claim("name", { ttlMs });
      grantOf(await store.claim(held, ignore));
      const waiter = (): Claim => bench.claim("name", { ttlMs, queue: true });
      const first = waiter();
      assert.equal((await store.claim(first, ignore)).kind, "queued");
      const others = Array.from({ length: MOST_WAITERS - 1 }, waiter);
      for (let i = 0; i < others.length; i += CLAIMS_AT_ONCE) {
        const some = others.slice(i, i + CLAIMS_AT_ONCE);
        const answers = await Promise.all(some.map((one) => store.claim(one, ignore)));
        assert.deepEqual([...new Set(answers.map(({ kind }) => kind))], ["queued"]);
      }
      // A store that learns of tickets by messages may accept a few more while these are under way.
      let more = 0;
      let answer = await store.claim(waiter(), ignore);
      while (answer.kind === "queued" && store.traits.liveness === "session" && more < 100) {
        more++;
        await bench.pass(10);
        answer = await store.claim(waiter(), ignore);
      }
      const waiting = MOST_WAITERS + more;
      assert.deepEqual(answer, { kind: "full", name: "name", waiting });
      assert.equal(
        (await store.claim(bench.claim("name"), ignore)).kind,
        "busy",
        "a claim without queue",
      );
      assert.equal(
        (await store.claim({ ...first, seq: 2 }, ignore)).kind,
        "queued",
        "a claim in the queue keeps its place",
      );
      const info = await store.inspect("name");
      assert.equal(info?.waiting, waiting);
      assert.equal(info?.waiters.length, WAITERS_SHOWN, "the others are counted");
      assert.equal(info?.waiters[0]?.holder, first.holder, "from the front of the queue");
      const gone = others.slice(0, more + 1).map(({ grantId }) => ({ name: "name", grantId }));
      await store.release(gone);
      assert.equal((await store.claim(waiter(), ignore)).kind, "queued", "there is room again");
    },
  },
];
