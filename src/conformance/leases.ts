import assert from "node:assert/strict";
import { LeaseLostError } from "../core/errors.js";
import type { Lease } from "../core/lease.js";
import type { Bench, Case } from "./subject.js";

/** The usable part of a ttl after the default drift and `abortBefore`: the signal has to abort at its end. */
const usableMs = (ttlMs: number): number => ttlMs - (ttlMs * 0.01 + 2) - ttlMs / 10;

/** The moment on the core's clock when the signal aborted. */
function abortedAt(bench: Bench, lease: Lease): { ms: number | null; error: unknown } {
  const seen: { ms: number | null; error: unknown } = { ms: null, error: null };
  lease.signal.addEventListener("abort", () => {
    seen.ms = bench.nowMs;
    seen.error = lease.signal.reason;
  });
  return seen;
}

function assertLost(lease: Lease, reason: LeaseLostError["reason"]): void {
  assert.equal(lease.state, "lost");
  assert.equal(lease.remainingMs, 0);
  assert.equal(lease.signal.aborted, true);
  assert.throws(
    () => lease.assertHeld(),
    (error) => error instanceof LeaseLostError && error.reason === reason,
  );
}

/** Leases in the core: renewal, loss and notification. */
export const leaseCases: readonly Case[] = [
  {
    name: "the watchdog keeps a lease for many ttls",
    async run(bench) {
      const [one, two] = [await bench.locks(), await bench.locks()];
      const lease = await one.acquire("name");
      for (let i = 0; i < 10; i++) {
        await bench.pass(bench.ttlMs / 2);
        lease.assertHeld();
        assert.equal(await two.tryAcquire("name"), null);
      }
      assert.equal(lease.state, "held");
      assert.equal(await lease.release(), "released");
      assert.equal(lease.state, "released");
      assert.equal(await lease.release(), "released", "idempotent");
      assert.equal(lease.signal.aborted, false, "a release is not a loss");
    },
  },
  {
    name: "when the store hangs, a holder is notified of the loss before another client is granted the name",
    async run(bench) {
      const [cut, other] = [await bench.client(), await bench.locks()];
      const startedMs = bench.nowMs;
      const lease = await cut.locks.acquire("name");
      const seen = abortedAt(bench, lease);
      const takeover = bench.later(other.acquire("name"));
      await bench.waitersAre(other, "name", 1);
      cut.store.all = "hang";
      const lastProofMs = bench.nowMs;
      const next = await bench.settled(takeover, bench.ttlMs * 3);
      assert(seen.ms !== null, "the signal aborted before another was granted");
      assertLost(lease, "expired");
      if (bench.subject.virtual) {
        assert(
          seen.ms >= startedMs + usableMs(bench.ttlMs) - 0.01,
          "the signal does not abort earlier than needed",
        );
        assert(
          seen.ms <= lastProofMs + usableMs(bench.ttlMs) + 0.01,
          "the signal aborts by the lease's own deadline",
        );
      }
      assert(next.token > lease.token);
      await next.release();
    },
  },
  {
    name: "the deadline counts from the sending of the claim, not from the reply",
    async run(bench) {
      const [slow, other] = [await bench.client(), await bench.locks()];
      slow.store.all = "hang";
      slow.store.faults.claim = bench.ttlMs / 2;
      const sentMs = bench.nowMs;
      const lease = await bench.settled(slow.locks.acquire("name"));
      const seen = abortedAt(bench, lease);
      const next = await bench.settled(other.acquire("name"), bench.ttlMs * 2);
      assert(seen.ms !== null, "the signal aborted before another was granted");
      if (bench.subject.virtual) assert(Math.abs(seen.ms - sentMs - usableMs(bench.ttlMs)) < 0.01);
      await next.release();
    },
  },
  {
    name: "the deadline counts from the sending of a renewal, not from the reply",
    async run(bench) {
      const [slow, other] = [await bench.client(), await bench.locks()];
      const lease = await slow.locks.acquire("name");
      const seen = abortedAt(bench, lease);
      slow.store.faults.renew = bench.ttlMs / 3;
      await bench.until("a renewal is under way", () => slow.store.sent.renew === 1);
      const sentMs = bench.nowMs;
      slow.store.faults.renew = "hang";
      const next = await bench.settled(other.acquire("name"), bench.ttlMs * 3);
      assert(seen.ms !== null, "the signal aborted before another was granted");
      if (bench.subject.virtual) {
        assert(seen.ms > sentMs + bench.ttlMs / 2, "the late reply counts");
        assert(
          seen.ms <= sentMs + usableMs(bench.ttlMs) + 0.01,
          "the deadline counts from the send",
        );
      }
      await next.release();
    },
  },
  {
    name: "a reply that arrives after the ttl is no grant",
    async run(bench) {
      const { locks, store } = await bench.client();
      store.faults.claim = bench.ttlMs * 1.5;
      await assert.rejects(bench.settled(locks.acquire("name", { wait: 0 })), {
        code: "STORE_UNAVAILABLE",
      });
    },
  },
  {
    name: "a holder is notified of a revocation, with the reason",
    feature: "revoke",
    async run(bench) {
      const [one, operator] = [await bench.locks(), await bench.locks()];
      const lease = await one.acquire("name");
      const seen = abortedAt(bench, lease);
      const events: unknown[] = [];
      lease.on("lost", (error) => events.push(error));
      const revoked = await operator.forceRelease("name", { why: "stuck" });
      assert.deepEqual(
        revoked.map((holder) => holder.token),
        [lease.token],
      );
      await bench.until("the holder learns of it", () => seen.ms !== null, bench.ttlMs / 2);
      assertLost(lease, "revoked");
      assert.match((seen.error as Error).message, /by force by .*: stuck/);
      assert.deepEqual(events, [seen.error]);
      assert.equal(await lease.release(), "lost");
      const next = await operator.acquire("name");
      assert(next.token > lease.token);
      // A lease that ends before its next renewal learns of the revocation from its release.
      await one.forceRelease("name", { why: "again" });
      assert.equal(await next.release(), "lost");
      assertLost(next, "revoked");
      assert.match((next.signal.reason as Error).message, /again/);
    },
  },
  {
    name: "a holder is notified of jeopardy and of recovery",
    async run(bench) {
      const { locks, store } = await bench.client();
      const lease = await locks.acquire("name");
      const events: string[] = [];
      lease.on("jeopardy", () => events.push("jeopardy"));
      lease.on("recovered", () => events.push("recovered"));
      lease.on("lost", () => events.push("lost"));
      store.faults.renew = "refuse";
      await bench.until("jeopardy", () => lease.state === "jeopardy", bench.ttlMs / 2);
      lease.assertHeld();
      store.faults.renew = "none";
      await bench.until("recovered", () => lease.state === "held", bench.ttlMs / 3);
      await bench.pass(bench.ttlMs * 2);
      await bench.until("held", () => lease.state === "held", bench.ttlMs / 3);
      // On a busy machine in real time, replies may be late, and the lease in jeopardy, more than once.
      const pairs = bench.subject.virtual
        ? 1
        : events.filter((event) => event === "recovered").length;
      const expected = Array(pairs).fill(["jeopardy", "recovered"]).flat();
      assert.deepEqual(events, expected);
      store.faults.renew = "fail-reply";
      await bench.until(
        "the lease is lost, though the store extended it",
        () => lease.state === "lost",
        bench.ttlMs * 2,
      );
      assert.deepEqual(events, [...expected, "jeopardy", "lost"]);
      assert.equal(await lease.release(), "lost");
      // The release of a lost lease is sent in the background.
      await bench.until(
        "the release, not the expiry, has freed the name",
        async () => (await locks.inspect("name")) === null,
        bench.ttlMs / 3,
      );
    },
  },
  {
    name: "a wall clock that is set moves no deadline",
    virtualOnly: true,
    async run(bench) {
      for (const jumpMs of [-86_400_000, 86_400_000]) {
        const { locks, store } = await bench.client();
        const startedMs = bench.nowMs;
        const lease = await locks.acquire("name", { renew: false });
        const seen = abortedAt(bench, lease);
        bench.virtual.jumpWall(jumpMs);
        store.all = "hang";
        await bench.pass(usableMs(bench.ttlMs) - 2);
        assert.equal(seen.ms, null, "the lease is not lost early");
        await bench.pass(4);
        assert(seen.ms !== null && Math.abs(seen.ms - startedMs - usableMs(bench.ttlMs)) < 0.01);
        await bench.pass(bench.ttlMs);
      }
    },
  },
  {
    name: "a lease is lost when the event loop stalls past its deadline",
    virtualOnly: true,
    async run(bench) {
      const locks = await bench.locks();
      const lease = await locks.acquire("name");
      bench.virtual.stall(bench.ttlMs);
      assert.throws(() => lease.assertHeld(), LeaseLostError);
      assertLost(lease, "expired");
    },
  },
  {
    name: "when only the wall clock has jumped ahead, a lease counts again after the next renewal",
    virtualOnly: true,
    async run(bench) {
      const locks = await bench.locks();
      const lease = await locks.acquire("name");
      bench.virtual.jumpWall(60_000);
      assert.throws(() => lease.assertHeld(), /frozen/);
      assert.equal(lease.state, "jeopardy");
      await bench.pass(1);
      lease.assertHeld();
      assert.equal(lease.state, "held");
      await lease.release();
    },
  },
  {
    name: "maxHold ends the lease, and the name stays taken until the ttl is over",
    async run(bench) {
      const [one, other] = [await bench.client(), await bench.locks()];
      const lease = await one.locks.acquire("name", { maxHold: bench.ttlMs * 2 });
      const seen = abortedAt(bench, lease);
      await bench.pass(bench.ttlMs * 1.7);
      lease.assertHeld();
      await bench.until("the signal aborts", () => seen.ms !== null, bench.ttlMs);
      assertLost(lease, "max-hold");
      assert.equal(await other.tryAcquire("name"), null, "the grant stays until it expires");
      const sent = one.store.sent.renew;
      const next = await bench.settled(other.acquire("name"), bench.ttlMs * 2);
      assert.equal(one.store.sent.renew, sent, "no renewal after maxHold");
      await next.release();
    },
  },
  {
    name: "atLeast: release returns at once, and the name is free later",
    feature: "at-least",
    async run(bench) {
      const [one, other] = [await bench.locks(), await bench.locks()];
      const startedMs = bench.nowMs;
      const lease = await one.acquire("name", { atLeast: bench.ttlMs * 2 });
      assert.equal(await lease.release(), "released");
      assert.equal(await other.tryAcquire("name"), null);
      const next = await bench.settled(other.acquire("name"), bench.ttlMs * 3);
      assert(bench.nowMs - startedMs >= bench.ttlMs * 2);
      await next.release();
    },
  },
  {
    name: "renew sets the ttl from now, and never adds",
    feature: "own-ttl",
    async run(bench) {
      const { locks, store } = await bench.client();
      const lease = await locks.acquire("name");
      await bench.settled(lease.renew(bench.ttlMs * 10));
      assert(lease.remainingMs > usableMs(bench.ttlMs * 10) - bench.ttlMs);
      assert(lease.remainingMs <= usableMs(bench.ttlMs * 10));
      await bench.settled(lease.renew(bench.ttlMs * 10));
      assert(lease.remainingMs <= usableMs(bench.ttlMs * 10), "never adds");
      store.faults.renew = "lose-reply";
      lease.renew(bench.ttlMs).catch(() => {});
      assert(lease.remainingMs <= usableMs(bench.ttlMs), "the shorter ttl may have taken effect");
      await bench.pass(bench.ttlMs * 1.1);
      await assert.rejects(lease.renew(), LeaseLostError);
    },
  },
  {
    name: "renew: false lets the lease expire",
    async run(bench) {
      const { locks, store } = await bench.client();
      const lease = await locks.acquire("name", { renew: false });
      await bench.until("lost", () => lease.state === "lost", bench.ttlMs);
      assert.equal(store.sent.renew, 0);
      assertLost(lease, "expired");
    },
  },
  {
    name: "release returns lost after the end and unknown in an outage, and never rejects",
    async run(bench) {
      const [one, other] = [
        await bench.client({ commandTimeout: bench.ttlMs / 2 }),
        await bench.locks(),
      ];
      const gone = await one.locks.acquire("gone", { renew: false });
      await bench.pass(bench.ttlMs * 1.2);
      assert.equal(await gone.release(), "lost");
      const unknown = await one.locks.acquire("unknown");
      one.store.faults.release = "hang";
      assert.equal(await bench.settled(unknown.release()), "unknown");
      one.store.faults.release = "none";
      await bench.until(
        "the owed release is done",
        async () => (await other.inspect("unknown")) === null,
      );
    },
  },
  {
    name: "a reply to a renewal that arrives after the release revives nothing",
    async run(bench) {
      const { locks, store } = await bench.client();
      const lease = await locks.acquire("name");
      store.faults.renew = bench.ttlMs / 2;
      await bench.until("a renewal is under way", () => store.sent.renew === 1);
      assert.equal(await lease.release(), "released");
      await bench.pass(bench.ttlMs);
      assert.equal(lease.state, "released");
      assert.equal(store.sent.renew, 1);
      await bench.isEmpty(locks, "name");
    },
  },
  {
    name: "readers hold together, a writer alone",
    needsQueue: true,
    feature: "shared",
    async run(bench) {
      const [one, two] = [await bench.locks(), await bench.locks()];
      const readers = [
        await one.acquire("name", { mode: "shared" }),
        await two.acquire("name", { mode: "shared" }),
      ];
      assert.deepEqual(
        readers.map((lease) => lease.mode),
        ["shared", "shared"],
      );
      const writing = bench.later(two.acquire("name"));
      await bench.until(
        "the writer waits",
        async () => (await one.inspect("name"))!.waiters.length === 1,
      );
      assert.equal(
        await one.tryAcquire("name", { mode: "shared" }),
        null,
        "a reader does not pass the waiting writer",
      );
      await readers[0]!.release();
      await bench.pass(bench.ttlMs);
      await readers[1]!.release();
      const writer = await bench.settled(writing);
      assert.equal(await one.tryAcquire("name", { mode: "shared" }), null);
      assert(writer.floor === writer.token && writer.token > readers[1]!.token);
      await writer.release();
    },
  },
  {
    name: "withLock returns the result, or rejects with the function's own error or the loss",
    async run(bench) {
      const { locks, store } = await bench.client();
      assert.equal(await locks.withLock("name", async (lease) => `${lease.name}!`), "name!");
      const mine = new Error("mine");
      await assert.rejects(
        locks.withLock("name", { wait: 0 }, async () => Promise.reject(mine)),
        (error) => error === mine,
      );
      await bench.isEmpty(locks, "name");

      const untilLost = (onLost: "throw" | "return"): Promise<string> => {
        store.faults.renew = "hang";
        return locks.withLock("name", { onLost }, async (lease) => {
          await new Promise((resolve) => lease.signal.addEventListener("abort", resolve));
          return "done";
        });
      };
      await assert.rejects(
        bench.settled(untilLost("throw")),
        (error) => error instanceof LeaseLostError && error.value === "done",
      );
      assert.equal(await bench.settled(untilLost("return")), "done");
      await assert.rejects(
        bench.settled(
          locks.withLock("name", async ({ signal }) => {
            await new Promise((_, reject) =>
              signal.addEventListener("abort", () => reject(new DOMException("x", "AbortError"))),
            );
          }),
        ),
        (error) => error instanceof LeaseLostError && (error.cause as Error).name === "AbortError",
      );
    },
  },
];
