import assert from "node:assert/strict";
import { type Case, grantOf, ignore } from "./subject.js";

/** Names that stay closed after the lease: `atLeast` and `once`. */
export const atLeastCases: readonly Case[] = [
  {
    name: "atLeast keeps the name closed after release, and after expiry",
    feature: "at-least",
    async run(bench) {
      const store = await bench.store();
      const atLeastMs = bench.ttlMs * 4;
      const released = bench.claim("released", { atLeastMs });
      grantOf(await store.claim(released, ignore));
      grantOf(await store.claim(bench.claim("expired", { atLeastMs }), ignore));
      const release = { name: "released", grantId: released.grantId };
      assert.deepEqual(await store.release([release]), ["released"]);
      const [late] = await store.renew([{ ...release, seq: 2, ttlMs: bench.ttlMs }]);
      assert.equal(late?.kind, "lost", "a renewal after the release revives nothing");
      await bench.pass(bench.ttlMs * 1.4);
      for (const name of ["released", "expired"]) {
        assert.equal((await store.claim(bench.claim(name), ignore)).kind, "busy", name);
        assert.equal((await store.inspect(name))?.holders[0]?.closed, true);
      }
      await bench.pass(bench.ttlMs * 2.8);
      for (const name of ["released", "expired"]) {
        grantOf(await store.claim(bench.claim(name), ignore));
      }
    },
  },
  {
    name: "an expired grant is not revived while atLeast keeps the name closed",
    feature: ["at-least", "permits"],
    async run(bench) {
      const store = await bench.store();
      const claim = bench.claim("name", { permits: 1, limit: 2, atLeastMs: bench.ttlMs * 20 });
      grantOf(await store.claim(claim, ignore));
      await bench.pass(bench.ttlMs * 1.1);
      const other = bench.claim("name", { permits: 1, limit: 2 });
      const { floor, token } = grantOf(await store.claim(other, ignore));
      assert.equal(floor, token, "the ended lease no longer counts as a holder");
      assert.equal((await store.claim({ ...claim, seq: 2 }, ignore)).kind, "lost");
      const unused = { name: "name", grantId: claim.grantId, unused: true };
      assert.deepEqual(await store.release([unused]), ["released"]);
      assert.equal(
        (await store.inspect("name"))?.holders.length,
        1,
        "the released claim no longer keeps the name closed",
      );
    },
  },
  {
    name: "atLeast does not close the name after a grant that was released unused",
    feature: "at-least",
    async run(bench) {
      const { locks, store } = await bench.client();
      store.faults.claim = "fail-reply";
      await assert.rejects(locks.acquire("name", { wait: 0, atLeast: "1h" }));
      store.faults.claim = "none";
      await bench.until(
        "the name is open again",
        async () => (await locks.inspect("name")) === null,
      );
      const used = await locks.acquire("name", { atLeast: bench.ttlMs * 3 });
      await used.release();
      assert.equal(
        await locks.tryAcquire("name"),
        null,
        "a grant that was used keeps the name closed",
      );
    },
  },
  {
    name: "once runs a function once per period, whichever client calls it",
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
];
