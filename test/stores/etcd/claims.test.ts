import { setTimeout as pause } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import { grantOf, ignore } from "../../../src/conformance/subject.js";
import { claimOf as claimBehind } from "../../../src/core/proved-grant.js";
import type { Claim, Renewal } from "../../../src/core/store.js";
import { connect, createLocks, type Lease } from "../../../src/index.js";
import { guardTxn } from "../../../src/stores/etcd/index.js";
import type { KeyValue } from "../../../src/stores/etcd/rpc/messages.js";
import { memoryStore } from "../../../src/stores/memory/index.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { Deferred, refusal, rejection } from "../../core/helpers.js";
import {
  GRACE_MS,
  isRelease,
  LONG_MS,
  noAnswer,
  OneEtcd,
  SHORT_MS,
  type Wire,
  waitersAre,
} from "../../support/etcd.js";
import { describeWith } from "../../support/needs.js";
import { claimOf } from "../../support/redis.js";
import { until } from "../../support/worker.js";

describeWith(["etcd"], "claims in etcd", () => {
  const etcd = OneEtcd.forAll();

  describe.concurrent("releases and deletions", () => {
    test("a release that fails is retried until the key is deleted", async (context) => {
      const { locks, wire, claims } = await etcd.fresh(context, {
        ttl: LONG_MS,
        retry: { pause: 50 },
      });
      const lease = await locks.acquire("name");
      let refused = 0;
      wire.on.txn = (send, txn) => {
        if (!isRelease(txn)) return send();
        refused++;
        return Promise.reject(noAnswer());
      };
      expect(await lease.release()).toBe("unknown");
      await until("it is tried again", () => refused > 2);
      expect(await claims("name")).toHaveLength(1);
      delete wire.on.txn;
      await until("it is gone", async () => (await claims("name")).length === 0);
    });

    test("a release whose reply is lost does no harm to the next holder", async (context) => {
      const { locks, wire, claims } = await etcd.fresh(context, {
        ttl: LONG_MS,
        retry: { pause: 50 },
      });
      const lease = await locks.acquire("name");
      wire.on.txn = async (send, txn) => {
        const answer = await send();
        if (!isRelease(txn)) return answer;
        delete wire.on.txn;
        throw noAnswer();
      };
      expect(await lease.release()).toBe("unknown");
      const next = (await locks.tryAcquire("name"))!;
      await pause(200);
      next.assertHeld();
      await next.renew();
      expect(await claims("name")).toHaveLength(1);
    });

    test("a release whose reply is lost is sent again, and the lease is not reported as lost", async (context) => {
      const proxy = await TcpProxy.open(etcd.server);
      context.onTestFinished(() => proxy.close());
      const { locks, claims } = await etcd.fresh(context, { ttl: LONG_MS }, proxy);
      const lost: unknown[] = [];
      const done = locks.withLock("name", async (lease) => {
        lease.on("lost", (error) => lost.push(error));
        await proxy.loseReply({ when: "default:name" }).inject();
        return "done";
      });
      expect(await done).toBe("done");
      expect(lost).toEqual([]);
      expect(await claims("name")).toEqual([]);
    });

    test("a release that is sent again still reports a revocation", async (context) => {
      const proxy = await TcpProxy.open(etcd.server);
      context.onTestFinished(() => proxy.close());
      const { locks } = await etcd.fresh(context, { ttl: LONG_MS }, proxy);
      const lease = await locks.acquire("name");
      await locks.forceRelease("name", { why: "it hangs" });
      await proxy.loseReply({ when: "default:name" }).inject();
      expect(await lease.release()).toBe("lost");
      expect(lease.signal.reason).toMatchObject({ reason: "revoked" });
    });

    test("a late deletion deletes no new claim: a claim that was given up can't be claimed again under its id", async (context) => {
      const { store, wire, keys } = await etcd.fresh(context);
      const claim = claimOf("name", { ttlMs: SHORT_MS });
      grantOf(await store.claim(claim, ignore));
      const late = new LateRelease(wire);
      // The claim is not renewed.
      await until("it is given up", () => late.isUnderWay, SHORT_MS + GRACE_MS);
      const again = await store.claim({ ...claim, seq: 2 }, ignore);
      await late.arrives();
      const granted = again.kind === "granted";
      const stands = await etcd.isThere(keys.claim("name", claim.grantId));
      expect({ granted, stands }).toEqual({ granted: false, stands: false });
      expect(again).toEqual({ kind: "lost", reason: "expired" });
      grantOf(await store.claim(claimOf("name"), ignore));
    });

    test("a claim that is given up while a repeated request extends it is not granted again", async (context) => {
      const { store, wire, keys } = await etcd.fresh(context);
      const claim = claimOf("name", { ttlMs: SHORT_MS });
      grantOf(await store.claim(claim, ignore));
      wire.on.leaseKeepAlive = async (send) => {
        const reply = await send();
        await pause(SHORT_MS + 200);
        return reply;
      };
      const again = await store.claim({ ...claim, seq: 2 }, ignore);
      const key = keys.claim("name", claim.grantId);
      await until("its key is deleted", async () => !(await etcd.isThere(key)), GRACE_MS);
      expect(again).toEqual({ kind: "lost", reason: "expired" });
    });

    test("a waiter that claims again while a deletion is late uses another id, and keeps what it is granted", async (context) => {
      const TTL_MS = 2_000;
      const { locks, wire, claims } = await etcd.fresh(context, {
        ttl: TTL_MS,
        retry: { pause: TTL_MS + 500, jitter: 0 },
      });
      await (await locks.acquire("first")).release();
      let sent = false;
      wire.on.txn = async (send) => {
        await send();
        sent = true;
        throw noAnswer();
      };
      const acquiring = locks.acquire("name");
      await until("the claim was sent", () => sent);
      const late = new LateRelease(wire);
      await until("it is given up", () => late.isUnderWay, TTL_MS + GRACE_MS);
      // Either the waiter is granted the key that is about to go, or it waits for it.
      await Promise.race([acquiring, waitersAre(locks, "name", 1)]);
      await late.arrives();
      const lease = await acquiring;
      expect((await claims("name")).map(({ createRevision }) => createRevision)).toEqual([
        lease.token,
      ]);
    });

    test("an unknown key under our session is deleted within about a ttl, and nothing else is", async (context) => {
      const { locks, wire, keys, claims } = await etcd.fresh(context);
      const lease = await locks.acquire("name");
      const session = wire.session(SHORT_MS);
      const stranger = keys.claim("default:other", "stranger");
      const elsewhere = `elsewhere-${keys.claim("default:other", "stranger")}`;
      const value = (await claims("name"))[0]!.value;
      await etcd.raw.txn({
        success: [stranger, elsewhere].map((key) => ({ put: { key, value, lease: session } })),
      });
      expect((await locks.inspect("other"))!.holders).toHaveLength(1);
      await until(
        "it is gone",
        async () => !(await etcd.isThere(stranger)),
        SHORT_MS * 1.5 + GRACE_MS,
      );
      expect(await etcd.isThere(elsewhere)).toBe(true);
      expect(await etcd.isThere(keys.session(session))).toBe(true);
      lease.assertHeld();
      expect(await claims("name")).toHaveLength(1);
    });

    test.for<[string, boolean]>([
      ["with others under the session", true],
      ["alone", false],
    ])(
      "a claim that reaches etcd after it was given up is deleted within about a ttl: %s",
      async ([, others], context) => {
        const { locks, wire, claims } = await etcd.fresh(context, { wait: 0 });
        const first = await locks.acquire("first");
        if (!others) await first.release();
        let arrived: Promise<unknown> | undefined;
        wire.on.txn = (send, txn) => {
          if (isRelease(txn)) return send();
          delete wire.on.txn;
          // After the release of the claim that was given up.
          arrived = pause(300).then(send);
          return Promise.reject(noAnswer());
        };
        expect(await rejection(locks.acquire("name"))).toMatchObject({ code: "STORE_UNAVAILABLE" });
        await arrived;
        expect(await claims("name")).toHaveLength(1);
        await until(
          "it is gone",
          async () => (await claims("name")).length === 0,
          SHORT_MS * 1.5 + GRACE_MS,
        );
      },
    );

    test("a claim that gets its reply after it was given up is released", async (context) => {
      const { locks, wire, claims } = await etcd.fresh(context, { wait: 0, commandTimeout: 1_500 });
      await (await locks.acquire("first")).release();
      const late = new Deferred<void>();
      let arrived: Promise<unknown> | undefined;
      wire.on.txn = async (send, txn) => {
        if (isRelease(txn)) return send();
        delete wire.on.txn;
        await late.promise;
        const answered = send();
        arrived = answered;
        return answered;
      };
      const acquiring = locks.acquire("name");
      expect(await rejection(acquiring)).toMatchObject({ code: "STORE_UNAVAILABLE" });
      late.resolve();
      await until("it has been sent", () => arrived !== undefined);
      await arrived;
      await until("it is gone", async () => (await claims("name")).length === 0);
      expect(await locks.tryAcquire("name")).not.toBeNull();
    });

    test("a holder whose key somebody deleted is notified within about a ttl", async (context) => {
      const { locks, claims } = await etcd.fresh(context);
      const [lease, other] = [await locks.acquire("name"), await locks.acquire("other")];
      const [{ key }] = (await claims("name")) as [KeyValue];
      await etcd.server.ctl("del", key.slice(0, key.indexOf("\0")), "--prefix");
      await until("the loss is reported", () => lease.state === "lost", SHORT_MS * 1.5 + GRACE_MS);
      expect(lease.signal.reason).toMatchObject({ code: "LEASE_LOST", reason: "expired" });
      other.assertHeld();
    });
  });

  describe.concurrent("a release by force", () => {
    test("counts even if its record can't be read, and only for this lease of the session", async (context) => {
      const { locks, wire, keys } = await etcd.fresh(context, { ttl: 3_000 });
      const [lease, other] = [await locks.acquire("name"), await locks.acquire("other")];
      const { grantId } = claimBehind(lease);
      const session = wire.session(3_000);
      const key = keys.notice(session, "default:name", grantId);
      await etcd.raw.txn({ success: [{ put: { key, value: '{"format":99}', lease: session } }] });
      await until("the loss is reported", () => lease.state === "lost", 1_000 + GRACE_MS);
      expect(lease.signal.reason).toMatchObject({ reason: "revoked" });
      await other.renew();
      other.assertHeld();
    });

    test("is reported to the holder at its next renewal, with the reason", async (context) => {
      const { locks, another, prefix } = await etcd.fresh(context, { ttl: 3_000 });
      const others = await another({ holder: "operator" });
      const [lease, other] = [await locks.acquire("name"), await locks.acquire("other")];
      const waiting = others.locks.acquire("name");
      await waitersAre(locks, "name", 1);
      const closing = await locks.acquire("closing", { atLeast: "1m" });
      await others.locks.forceRelease("closing", { why: "a test" });
      expect(await others.locks.tryAcquire("closing")).not.toBeNull();
      await others.locks.forceRelease("name", { why: "it is stuck" });
      const next = await waiting;
      expect(next.token).toBeGreaterThan(lease.token);
      // Long before the lease would have expired.
      await until("the loss is reported", () => lease.state === "lost", 1_000 + 500);
      expect(lease.signal.reason).toMatchObject({
        reason: "revoked",
        message: expect.stringContaining("it is stuck"),
      });
      await until("so is the other", () => closing.state === "lost");
      other.assertHeld();
      expect((await locks.inspect("name"))!.revoked).toMatchObject([
        { by: "operator", why: "it is stuck", token: lease.token },
      ]);
      for (const { key, lease } of await etcd.everything(prefix)) expect(lease, key).not.toBe(0n);
    });

    test("is recorded for the latest 16 of a name, no more", async (context) => {
      const { locks, keys, prefix } = await etcd.fresh(context);
      const tokens: bigint[] = [];
      for (let i = 0; i < 18; i++) {
        tokens.push((await locks.acquire("name")).token);
        await locks.forceRelease("name", { why: String(i) });
      }
      const { revoked } = (await locks.inspect("name"))!;
      expect(revoked.map(({ token }) => token)).toEqual(tokens.slice(2));
      expect(revoked.map(({ why }) => why)).toEqual(tokens.map((_, i) => String(i)).slice(2));
      expect((await etcd.raw.range(keys.revoked("default:name"))).kvs).toHaveLength(16);
      for (const { key, lease } of await etcd.everything(prefix)) expect(lease, key).not.toBe(0n);
    });
  });

  describe.concurrent("a value that Holdfast has not written", () => {
    const FOREIGN: Record<string, { value: string; says: string }> = {
      "a later format": { value: '{"format":99,"permits":1}', says: "format 99" },
      "a text": { value: "hello", says: "not Holdfast's" },
      nothing: { value: "", says: "not Holdfast's" },
      null: { value: "null", says: "not Holdfast's" },
      "a list": { value: "[1,2]", says: "not Holdfast's" },
      "an object without a format": { value: '{"permits":1,"limit":1}', says: "not Holdfast's" },
      // Unchecked, these values would reach the terminal of a user who inspects the name.
      "a text for a number": { value: claimWith({ limit: "\u001b[2J" }), says: "not Holdfast's" },
      "no text for the holder": { value: claimWith({ holder: [] }), says: "not Holdfast's" },
    };

    const errorOf = ({ says }: { says: string }) => ({
      code: "UNSUPPORTED",
      retryable: false,
      message: expect.stringContaining(says),
    });
    const renewalOf = ({ names, grantId }: Claim): Renewal => ({
      name: names[0]!,
      grantId,
      seq: 2,
      ttlMs: LONG_MS,
    });

    test.for(Object.entries(FOREIGN))(
      "%s is an error for its name, and not for other names",
      async ([, foreign], context) => {
        const { store, keys } = await etcd.fresh(context);
        const error = errorOf(foreign);
        const [held, one] = [claimOf("foreign"), claimOf("one")];
        for (const claim of [held, one]) grantOf(await store.claim(claim, ignore));
        const key = keys.claim("foreign", "x");
        await etcd.raw.txn({ success: [{ put: { key, value: foreign.value } }] });
        const refused = [
          () => store.claim(claimOf("foreign"), ignore),
          () => store.claim(claimOf("foreign", { queue: true }), ignore),
          () => store.claim(claimOf("a", { names: ["a", "foreign"] }), ignore),
          () => store.release([{ name: "foreign", grantId: "unknown" }]),
          () => store.inspect("foreign"),
          () => store.revoke("foreign", { holder: "h", why: "w" }),
          () => store.resize("foreign", 3),
        ];
        for (const request of refused) expect(await rejection(request())).toMatchObject(error);
        expect(await store.renew([renewalOf(one), renewalOf(claimOf("foreign"))])).toMatchObject([
          { kind: "granted" },
          { kind: "unknown", cause: error },
        ]);
        // The holder may release, and other names can be locked.
        const releases = [held, one].map(({ names, grantId }) => ({ name: names[0]!, grantId }));
        expect(await store.release(releases)).toEqual(["released", "released"]);
        grantOf(await store.claim(claimOf("one"), ignore));
        // The foreign value stays as it is.
        expect((await etcd.raw.range({ key })).kvs[0]!.value).toBe(foreign.value);
      },
    );

    test.for(["a later format", "a text"])(
      "%s that appears while clients wait affects only its own name, and waiting goes on when it is gone",
      async (kind, context) => {
        const { store, keys, another } = await etcd.fresh(context);
        const others = await another();
        const [held, elsewhere] = [claimOf("foreign"), claimOf("one")];
        for (const claim of [held, elsewhere]) grantOf(await store.claim(claim, ignore));
        const pushed: string[] = [];
        const [foreign, one] = [
          claimOf("foreign", { queue: true }),
          claimOf("one", { queue: true }),
        ];
        for (const claim of [foreign, one]) {
          const answer = await others.store.claim(claim, (push) =>
            pushed.push(`${claim.names[0]} ${push.kind}`),
          );
          expect(answer.kind).toBe("queued");
        }
        const key = keys.claim("foreign", "x");
        const { value } = FOREIGN[kind]!;
        await etcd.raw.txn({ success: [{ put: { key, value } }] });
        expect(await others.store.renew([renewalOf(one), renewalOf(foreign)])).toMatchObject([
          { kind: "queued" },
          { kind: "unknown", cause: errorOf(FOREIGN[kind]!) },
        ]);
        await store.release([{ name: "one", grantId: elsewhere.grantId }]);
        await until("the other is notified", () => pushed.includes("one granted"));
        await etcd.raw.txn({ success: [{ delete: { key } }] });
        await store.release([{ name: "foreign", grantId: held.grantId }]);
        expect(await others.store.renew([{ ...renewalOf(foreign), seq: 3 }])).toMatchObject([
          { kind: "granted" },
        ]);
      },
    );
  });

  describe.concurrent("guardTxn", () => {
    let data = 0;
    /** True if the write was carried out. */
    async function write(lease: Lease, prefix: string): Promise<boolean> {
      const put = { key: `data-${++data}`, value: "" };
      const { succeeded } = await etcd.raw.txn({
        compare: [guardTxn(lease, { prefix })],
        success: [{ put }],
      });
      expect(await etcd.isThere(put.key)).toBe(succeeded);
      return succeeded;
    }

    test("lets a write through while the lease is held, and not after its release", async (context) => {
      const { locks, prefix } = await etcd.fresh(context, { ttl: LONG_MS });
      const lease = await locks.acquire("name");
      expect(await write(lease, prefix)).toBe(true);
      await lease.renew("2m");
      expect(await write(lease, prefix)).toBe(true);
      await lease.release();
      expect(await write(lease, prefix)).toBe(false);
      const next = await locks.acquire("name");
      expect([await write(lease, prefix), await write(next, prefix)]).toEqual([false, true]);
    });

    test("takes one of several names that are held as one", async (context) => {
      const { locks, prefix } = await etcd.fresh(context, { ttl: LONG_MS });
      const all = await locks.acquireAll(["x", "y"]);
      const write = async (name: string): Promise<boolean | undefined> => {
        const compare = [guardTxn(all.of(name), { prefix })];
        return (await etcd.raw.txn({ compare })).succeeded;
      };
      expect([await write("x"), await write("y")]).toEqual([true, true]);
      await locks.forceRelease("y", { why: "a test" });
      expect([await write("x"), await write("y")]).toEqual([true, false]);
      await all.release();
      expect(await write("x")).toBe(false);
    });

    test("refuses a write after the lease has expired or was revoked", async (context) => {
      const { locks, prefix, claims } = await etcd.fresh(context);
      const lease = await locks.acquire("name", { renew: false });
      const revoked = await locks.acquire("revoked");
      expect([await write(lease, prefix), await write(revoked, prefix)]).toEqual([true, true]);
      await locks.forceRelease("revoked", { why: "a test" });
      expect(await write(revoked, prefix)).toBe(false);
      await until("it has ended", async () => (await claims("name")).length === 0);
      expect(await write(lease, prefix)).toBe(false);
    });

    test("works with a namespace, an offset of the tokens, shared leases and permits", async (context) => {
      const { locks, prefix } = await etcd.fresh(context, {
        ttl: LONG_MS,
        namespace: "elsewhere",
        tokenOffset: 10n ** 15n,
      });
      const held = [
        await locks.acquire("name"),
        await locks.acquire("shared", { mode: "shared" }),
        await locks.acquire("shared", { mode: "shared" }),
        await locks.semaphore("permits", { permits: 3 }).acquire({ permits: 2 }),
      ];
      for (const lease of held) {
        expect(lease.token).toBeGreaterThan(10n ** 15n);
        expect(await write(lease, prefix)).toBe(true);
      }
      await held[1]!.release();
      expect([await write(held[1]!, prefix), await write(held[2]!, prefix)]).toEqual([false, true]);
    });

    test("works for a lease that was handed over", async (context) => {
      const { locks, prefix } = await etcd.fresh(context, { ttl: LONG_MS });
      const held = await locks.acquire("name");
      const waiting = locks.acquire("name");
      await waitersAre(locks, "name", 1);
      await held.release();
      expect(await write(await waiting, prefix)).toBe(true);
      expect(await write(held, prefix)).toBe(false);
    });

    test("works for an inner lease of a re-entrant lock, until that lease has ended", async (context) => {
      const { locks, prefix } = await etcd.fresh(context, { ttl: LONG_MS });
      const reentrant = { reentrant: true };
      let outlived: Lease | undefined;
      await locks.withLock("name", reentrant, async (outer) => {
        await locks.withLock("name", reentrant, async (inner) => {
          expect(inner).not.toBe(outer);
          expect(await write(inner, prefix)).toBe(true);
        });
        const released = await locks.acquire("name", reentrant);
        await released.release();
        expect(refusal(() => guardTxn(released, { prefix }))).toMatchObject({
          code: "LEASE_LOST",
          reason: "released",
        });
        expect(await write(outer, prefix)).toBe(true);
        outlived = await locks.acquire("name", reentrant);
      });
      expect(refusal(() => guardTxn(outlived!, { prefix }))).toMatchObject({ code: "LEASE_LOST" });
    });

    test("is refused for a lease of work that runs without the lock, and for what is no lease", async (context) => {
      const locks = await connect("redis://127.0.0.1:1", { lazy: true, onUnavailable: "run" });
      context.onTestFinished(() => locks.close());
      const unprotected = await locks.withLock("name", { wait: 0 }, async (lease) => lease);
      const { token, floor } = unprotected;
      for (const wrong of [undefined, null, 5, {}, { token, floor }, unprotected] as never[]) {
        expect(refusal(() => guardTxn(wrong))).toMatchObject({
          code: "INVALID_ARGUMENT",
          message: expect.stringContaining("no grant of a store"),
        });
      }
    });

    test("is refused for a lease of another store", async (context) => {
      const locks = createLocks(memoryStore());
      context.onTestFinished(() => locks.close());
      const lease = await locks.acquire("name");
      expect(refusal(() => guardTxn(lease))).toMatchObject({
        code: "INVALID_ARGUMENT",
        message: expect.stringContaining("memory"),
      });
    });
  });

  // Not concurrent: these holders would slow down the other tests.
  describe("a release by force at scale", () => {
    test("ends many holders at once", async (context) => {
      const { locks } = await etcd.fresh(context, { ttl: LONG_MS });
      const held = await Promise.all(
        Array.from({ length: 40 }, () => locks.acquire("name", { mode: "shared" })),
      );
      const taken = await locks.forceRelease("name", { why: "a test" });
      expect(taken).toHaveLength(40);
      // One proof serves all of them.
      for (const error of await Promise.all(held.map((lease) => rejection(lease.renew())))) {
        expect(error).toMatchObject({ reason: "revoked" });
      }
      expect(await locks.tryAcquire("name")).not.toBeNull();
    });
  });
});

/** Holds the next deletion back until the test lets it go. */
class LateRelease {
  #go: (() => Promise<unknown>) | undefined;

  constructor(wire: Wire) {
    wire.on.txn = (send, txn) => {
      if (!isRelease(txn)) return send();
      delete wire.on.txn;
      return new Promise((resolve, reject) => {
        this.#go = () => send().then(resolve, reject);
      });
    };
  }

  get isUnderWay(): boolean {
    return this.#go !== undefined;
  }

  async arrives(): Promise<void> {
    await this.#go!();
  }
}

function claimWith(fields: object): string {
  const numbers = { permits: 1, limit: 1, ttlMs: 1_000, atLeastMs: 0, atMs: 0 };
  return JSON.stringify({ format: 1, holder: "somebody", ...numbers, ...fields });
}
