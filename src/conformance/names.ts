import assert from "node:assert/strict";
import { checkSequencer } from "../fence/index.js";
import { slices } from "../stores/shared/slices.js";
import { type Case, grantOf, ignore } from "./subject.js";

const NAMES = [
  "a",
  " ",
  "with space ",
  "UPPER",
  "upper",
  "%25%_*?[]{}",
  "{tag}",
  "a:b:c",
  "a/b/../c",
  "'; DROP TABLE holdfast_claims; --",
  '"quoted"',
  "\\back\\slash",
  "$&`|<>",
  "ünïcödé",
  "e\u0301",
  "\u00e9",
  "日本語のロック",
  "🔒".repeat(63),
  "x".repeat(255),
  "__proto__",
  "constructor",
  "\u200b",
  "\ufeff",
  "\uffff",
  "\u{10ffff}",
];

/** Names that are another name and what a store writes before or behind it in a key, plain or encoded. */
const ALIKE = [
  "job",
  ...["", "none", "0", "wait", "last", "queue"].map((kind) => `job:${kind}`),
  ...["", "none", "0.1.e.id-0000000000", "barrier-0000000000"].map((kind) => `job/${kind}`),
  ...["job ", "job.", ".job", "job*", "job%00", "job%2Fnone", "%6Aob", "%2Ejob", "JOB"],
  ...["lock", "wait", "revoked", "last", "n", "q", "r", "m", "{0}n", "}n"].map((is) => `${is}:job`),
  ...["names", "revoked", "sessions", "n", "r", "s"].map((kind) => `${kind}/job`),
  ...["none", "marker", "last", "last:0", "sessions"],
];

/** All kinds of names that are allowed, many at once, and `inspect` and `list`. */
export const nameCases: readonly Case[] = [
  {
    name: "names of every kind are kept apart",
    async run(bench) {
      const [one, two] = [await bench.locks({ ttl: "1m" }), await bench.locks()];
      const leases = [];
      for (const name of NAMES) leases.push(await one.acquire(name));
      for (const name of NAMES) {
        assert.equal(await two.tryAcquire(name), null, JSON.stringify(name));
        assert.equal((await two.inspect(name))?.name, name);
      }
      const listed = (await two.list()).map((info) => info.name);
      const inOrder = [...NAMES].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
      assert.deepEqual(listed, inOrder);
      for (const lease of leases) assert.equal(await lease.release(), "released");
      assert.deepEqual(await two.list(), []);
    },
  },
  {
    name: "no request for a name touches a name that resembles its keys",
    async run(bench) {
      const store = await bench.store();
      const tokens = new Map<string, bigint>();
      const grant = async (name: string) => {
        const claim = bench.lastingClaim(name);
        tokens.set(name, grantOf(await store.claim(claim, ignore)).token);
        return { name, grantId: claim.grantId, seq: 2, ttlMs: claim.ttlMs };
      };
      const othersAreHeld = async (what: string) => {
        const holders = (await store.list("", 1_000)).flatMap(({ name, holders }) =>
          holders.map(({ token }) => [name, token] as const),
        );
        assert.deepEqual(new Map(holders), tokens, what);
      };
      const renewals = [];
      for (const name of ALIKE) renewals.push(await grant(name));
      // A renewal by a session waits for its interval: one has to do.
      assert.equal((await store.renew([renewals[0]!]))[0]?.kind, "granted");
      await othersAreHeld("after job was renewed");
      for (const [i, name] of ALIKE.entries()) {
        await store.release([renewals[i]!]);
        renewals[i] = await grant(name);
        await othersAreHeld(`after ${name} was released`);
      }
      const waiting = bench.lastingClaim("job", { queue: true });
      assert.notEqual((await store.claim(waiting, ignore)).kind, "granted");
      await store.release([{ name: "job", grantId: waiting.grantId }]);
      await othersAreHeld("after a waiter for job");
      if (store.traits.cannot.revoke === undefined) {
        await store.revoke("job", { holder: "operator", why: "stuck" });
        renewals[0] = await grant("job");
        await othersAreHeld("after job was revoked");
      }
      if (store.records !== undefined && store.traits.cannot.records === undefined) {
        const numbers = { units: 1, limit: 1, perUs: 3.6e9, burst: 1 };
        const record = { value: "", keepMs: 3_600_000, condition: { kind: "absent" } } as const;
        for (const key of ALIKE) {
          const write = { ...record, key, version: key };
          assert.deepEqual(await store.records.write(write), { kind: "written" }, key);
          assert((await store.records.take({ ...numbers, key })).allowed, key);
        }
        await othersAreHeld("after records and meters of the same names");
      }
      const answers = await store.renew(renewals);
      assert(answers.every(({ kind }) => kind === "granted"));
    },
  },
  {
    name: "1,000 names at once",
    async run(bench) {
      const [one, two] = [await bench.locks({ ttl: bench.ttlMs * 4 }), await bench.locks()];
      const names = Array.from({ length: 1_000 }, (_, i) => `job:${i}`);
      const leases = await bench.settled(
        Promise.all(names.map((name) => one.acquire(name))),
        bench.ttlMs * 10,
      );
      // Longer than the leases last without renewals.
      await bench.pass(bench.ttlMs * 5);
      for (const lease of leases) lease.assertHeld();
      assert.equal(await two.tryAcquire("job:999"), null);
      assert.equal((await two.list({ limit: 100_000 })).length, 1_000);
      assert.equal((await two.list({ prefix: "job:99" })).length, 11);
      assert.equal((await two.list({ limit: 7 })).length, 7);
      // A part at a time: on a busy machine, a release must not wait for all others until its timeout.
      for (const some of slices(leases, 100)) {
        const released = await bench.settled(
          Promise.all(some.map((lease) => lease.release())),
          bench.ttlMs * 10,
        );
        assert(released.every((result) => result === "released"));
      }
      assert.deepEqual(await two.list(), []);
    },
  },
  {
    name: "inspect and list show holders, waiters and times",
    needsQueue: true,
    async run(bench) {
      const [one, two] = [
        await bench.locks({ holder: "worker-1", ttl: bench.ttlMs * 10 }),
        await bench.locks({ holder: "worker-2", ttl: bench.ttlMs * 10 }),
      ];
      assert.equal(await one.inspect("name"), null);
      const lease = await one.acquire("name", { note: "nightly" });
      const waiting = bench.later(two.acquire("name"));
      await bench.until("it waits", async () => (await one.inspect("name"))!.waiters.length === 1);
      await bench.pass(bench.ttlMs);
      const info = (await two.inspect("name"))!;
      const [holder] = info.holders;
      assert.equal(holder?.holder, "worker-1 (nightly)");
      assert.equal(holder.token, lease.token);
      assert(holder.heldMs >= bench.ttlMs * 0.9 && holder.expiresInMs > bench.ttlMs);
      assert.equal(holder.closed, false);
      assert.equal(info.waiters[0]?.holder, "worker-2");
      assert(info.waiters[0].waitingMs >= bench.ttlMs * 0.9);
      assert.deepEqual(
        (await one.list({ prefix: "na" })).map((each) => each.name),
        ["name"],
      );
      assert.deepEqual(await one.list({ prefix: "nb" }), []);
      await lease.release();
      await (await bench.settled(waiting)).release();
      assert.deepEqual(await one.list(), []);
    },
  },
  {
    name: "namespaces are kept apart, and tokenOffset is added everywhere",
    async run(bench) {
      const [one, two] = [
        await bench.locks({ namespace: "a" }),
        await bench.locks({ namespace: "b", tokenOffset: 10n ** 17n }),
      ];
      const [first, second] = [await one.acquire("name"), await two.acquire("name")];
      assert(second.token > 10n ** 17n && second.floor === second.token);
      assert.equal((await two.inspect("name"))?.holders[0]?.token, second.token);
      assert.deepEqual(
        (await one.list()).map((info) => info.holders[0]?.token),
        [first.token],
      );
      await first.release();
      assert.equal((await two.list()).length, 1);
      await second.release();
    },
  },
  {
    name: "a sequencer is current while its lease holds the name, whichever client asks",
    async run(bench) {
      const [one, two] = [await bench.locks(), await bench.locks()];
      const lease = await one.acquire("name");
      const text = lease.sequencer();
      assert.equal((await checkSequencer(two, text))?.token, lease.token);
      await lease.release();
      assert.equal(await checkSequencer(two, text), null);
      const next = await two.acquire("name");
      assert.equal(await checkSequencer(one, text), null);
      assert.equal((await checkSequencer(one, next.sequencer()))?.token, next.token);
      await next.release();
    },
  },
  {
    name: "leases and tickets that have ended leave nothing in the store",
    async run(bench) {
      const store = await bench.store();
      for (let i = 0; i < 20; i++) grantOf(await store.claim(bench.claim(`name ${i}`), ignore));
      await bench.pass(bench.ttlMs * 1.2);
      assert.deepEqual(await store.list("", 1_000), []);
    },
  },
];
