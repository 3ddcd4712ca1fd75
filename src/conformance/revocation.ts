import assert from "node:assert/strict";
import type { LeaseLostError } from "../core/errors.js";
import type { Push } from "../core/store.js";
import { type Case, grantOf, ignore } from "./subject.js";

/** Leases that are taken from their holders by force. */
export const revocationCases: readonly Case[] = [
  {
    name: "revoke takes the name from its holders, and their renewals say why",
    feature: "revoke",
    async run(bench) {
      const store = await bench.store();
      const canClose = store.traits.cannot["at-least"] === undefined;
      const held = bench.lastingClaim("name", { atLeastMs: canClose ? bench.ttlMs * 9 : 0 });
      const { token } = grantOf(await store.claim(held, ignore));
      const revoked = await store.revoke("name", { holder: "operator", why: "stuck" });
      assert.deepEqual(
        revoked.map((one) => one.token),
        [token],
      );
      const renewal = { name: "name", grantId: held.grantId, seq: 2, ttlMs: held.ttlMs };
      const lost = { kind: "lost", reason: "revoked", why: "by operator: stuck" };
      assert.deepEqual(await store.renew([renewal]), [lost]);
      assert.deepEqual(await store.release([renewal]), [lost]);
      assert(grantOf(await store.claim(bench.lastingClaim("name"), ignore)).token > token);
      assert.deepEqual(await store.renew([renewal]), [lost]);
      assert.deepEqual(await store.revoke("nobody's", { holder: "operator", why: "-" }), []);
    },
  },
  {
    name: "revoke leaves waiters in their places",
    feature: "revoke",
    needsQueue: true,
    async run(bench) {
      const store = await bench.store();
      const held = bench.lastingClaim("name");
      grantOf(await store.claim(held, ignore));
      const waiting = ["first", "second", "third"].map((holder) =>
        bench.lastingClaim("name", { holder, queue: true }),
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
    name: "a claim that arrives after its revocation gets no grant",
    feature: "revoke",
    async run(bench) {
      const store = await bench.store();
      const claim = bench.lastingClaim("name", { seq: 2, queue: true });
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
    name: "revoke does not take the name from the next holder",
    feature: "revoke",
    async run(bench) {
      const [one, two] = [await bench.store(), await bench.store()];
      const pushes: Push[] = [];
      grantOf(await one.claim(bench.claim("name", { ttlMs: bench.ttlMs }), ignore));
      const next = bench.claim("name", { ttlMs: bench.ttlMs * 4, queue: true });
      const asked = await two.claim(next, (push) => pushes.push(push));
      assert.equal(asked.kind, "queued");
      // A store with sessions notices the end of a session itself, so the next waiter already holds
      // the name.
      if (one.traits.liveness === "session") return;
      // The holder's lease expires, and no request has noticed it yet.
      await bench.pass(bench.ttlMs * 1.1);
      assert.deepEqual(await one.revoke("name", { holder: "x", why: "y" }), []);
      if (one.traits.waiting === "pushed") {
        await bench.until("the waiter is notified", () => pushes.length > 0);
        const [push] = pushes;
        if (push?.kind === "granted") assert.equal(push.grant.ttlMs, bench.ttlMs * 4);
      }
      // The first renewal may set off the claim of the waiter, whose grant the next one finds.
      let seq = 1;
      await bench.until("the waiter holds the name", async () => {
        const renewal = { name: "name", grantId: next.grantId, seq: ++seq, ttlMs: bench.ttlMs };
        return (await two.renew([renewal]))[0]?.kind === "granted";
      });
    },
  },
  {
    name: "forceRelease records who and why, notifies the holder, and the next token is higher",
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
      assert.deepEqual(await one.list(), [], "the name is not in use");
    },
  },
];
