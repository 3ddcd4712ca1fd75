import assert from "node:assert/strict";
import { type Case, grantOf, ignore } from "./subject.js";

/** Fencing tokens: when they are drawn, and their order. */
export const tokenCases: readonly Case[] = [
  {
    name: "a token is drawn with the grant: the earlier grant has the lower token",
    async run(bench) {
      const [one, two] = [await bench.store(), await bench.store()];
      // The earlier grant has the lower token, even if its reply arrives later.
      const slow = Promise.resolve(one.claim(bench.claim("name"), ignore));
      await bench.pass(bench.ttlMs * 1.2);
      const later = grantOf(
        await bench.settled(Promise.resolve(two.claim(bench.claim("name"), ignore))),
      );
      const earlier = grantOf(await bench.settled(slow));
      assert(earlier.token < later.token, "the earlier grant's token is lower");
    },
  },
  {
    name: "tokens rise for every new client, and never repeat",
    async run(bench) {
      let last = 0n;
      for (let i = 0; i < 20; i++) {
        const store = await bench.store();
        const claim = bench.lastingClaim("name");
        const { token, floor } = grantOf(await store.claim(claim, ignore));
        assert(token > last, `token ${token} follows ${last}`);
        assert.equal(floor, token, "an exclusive grant's floor is its own token");
        last = token;
        await store.release([{ name: "name", grantId: claim.grantId }]);
      }
    },
  },
  {
    name: "tokens rise though the store's wall clock is set back",
    virtualOnly: true,
    async run(bench) {
      const store = await bench.store();
      let last = 0n;
      for (const jumpMs of [0, -3_600_000, 5, -1]) {
        bench.virtual.jumpWall(jumpMs);
        const claim = bench.claim("name");
        const { token } = grantOf(await store.claim(claim, ignore));
        assert(token > last);
        last = token;
        await store.release([{ name: "name", grantId: claim.grantId }]);
      }
    },
  },
  {
    name: "shared grants have rising tokens, and the lowest token that still holds as their floor",
    feature: "shared",
    async run(bench) {
      const store = await bench.store();
      const [a, b, c] = [1, 2, 3].map(() => bench.lastingClaim("name", { permits: 1 }));
      const grantA = grantOf(await store.claim(a!, ignore));
      const grantB = grantOf(await store.claim(b!, ignore));
      assert(grantB.token > grantA.token);
      assert.equal(grantB.floor, grantA.token);
      await store.release([{ name: "name", grantId: a!.grantId }]);
      const grantC = grantOf(await store.claim(c!, ignore));
      assert.equal(grantC.floor, grantB.token);
    },
  },
];
