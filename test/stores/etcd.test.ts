import { symlinkSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, type TestContext, test } from "vitest";
import { grantOf, ignore } from "../../src/conformance/subject.js";
import { HeldLease } from "../../src/core/held-lease.js";
import type { Claim, Renewal } from "../../src/core/store.js";
import { createLocks, type Lease, type Locks, type LocksOptions } from "../../src/index.js";
import {
  type EtcdClient,
  type EtcdStore,
  etcdStore,
  guardTxn,
  openEtcdClient,
} from "../../src/stores/etcd/index.js";
import { Keys } from "../../src/stores/etcd/keys.js";
import type { Claimed } from "../../src/stores/etcd/queue.js";
import { Code, EtcdError } from "../../src/stores/etcd/rpc/errors.js";
import type { KeyValue, Txn } from "../../src/stores/etcd/rpc/messages.js";
import { memoryStore } from "../../src/stores/memory.js";
import type { EtcdServer } from "../../src/verify/lab/etcd.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { Worker } from "../../src/verify/traffic/worker.js";
import { build, refusal, rejection, runNode } from "../core/helpers.js";
import { leases } from "../support/etcd.js";
import { describeWith } from "../support/needs.js";
import { claimOf } from "../support/redis.js";
import { until } from "../support/worker.js";

/** Whole seconds, as etcd has them. */
const TTL_MS = 1_000;
/** On a busy machine. */
const GRACE_MS = 2_000;
/** Nothing of it is renewed or looked after within a test. */
const LONG_MS = 60_000;

type Method = Exclude<keyof EtcdClient, "status" | "memberList" | "close">;
type Instead<M extends Method> = (
  send: () => ReturnType<EtcdClient[M]>,
  ...args: Parameters<EtcdClient[M]>
) => ReturnType<EtcdClient[M]>;

/** A client whose calls are written down, and done as the test says. */
class Wire {
  readonly client: EtcdClient;
  readonly inner: EtcdClient;
  /** Each as it was called. */
  calls: Method[] = [];
  on: { [M in Method]?: Instead<M> } = {};
  /** By the seconds that were asked for. */
  readonly granted: { ttlS: number; lease: bigint }[] = [];

  constructor(inner: EtcdClient) {
    this.inner = inner;
    this.client = new Proxy(inner, {
      get: (_, method: keyof EtcdClient) => {
        const own = inner[method].bind(inner) as (...args: unknown[]) => unknown;
        if (method === "status" || method === "memberList" || method === "close") return own;
        return (...args: unknown[]) => {
          this.calls.push(method);
          const send = (): unknown => own(...args);
          const instead = this.on[method] as ((...all: unknown[]) => unknown) | undefined;
          const answer = instead === undefined ? send() : instead(send, ...args);
          if (method === "leaseGrant") this.#note(args[0] as number, answer as never);
          return answer;
        };
      },
    });
  }

  count(method: Method): number {
    return this.calls.filter((one) => one === method).length;
  }

  /** The session for a ttl. */
  session(ttlMs: number): bigint {
    return this.granted.findLast(({ ttlS }) => ttlS * 1_000 === ttlMs)!.lease;
  }

  #note(ttlS: number, answer: Promise<{ id: bigint }>): void {
    answer.then(({ id }) => this.granted.push({ ttlS, lease: id })).catch(ignore);
  }
}

interface Fresh {
  readonly prefix: string;
  readonly keys: Keys;
  readonly store: EtcdStore;
  readonly wire: Wire;
  readonly locks: Locks;
  /** Another process, as it were. */
  another(options?: LocksOptions): Promise<{ store: EtcdStore; wire: Wire; locks: Locks }>;
  /** Of a name of `locks`. */
  claims(name: string): Promise<KeyValue[]>;
}

const noAnswer = (): EtcdError =>
  new EtcdError("no answer", { grpcCode: Code.UNAVAILABLE, executed: "unknown", endpoint: null });

describeWith(["etcd"], "etcd", () => {
  let lab: Lab;
  let server: EtcdServer;
  /** For looking behind the store. */
  let raw: EtcdClient;
  // Each test has a prefix of its own.
  let prefixes = 0;

  const endpointOf = ({ address, port }: EtcdServer): string => `${address}:${port}`;

  beforeAll(async () => {
    lab = await Lab.open();
    [server] = (await lab.etcd({ timing: "fast" })).servers as [EtcdServer];
    raw = await openEtcdClient({ endpoints: [endpointOf(server)] });
  });
  afterAll(async () => {
    await raw?.close();
    await lab.close();
  });

  async function fresh(
    { onTestFinished }: Pick<TestContext, "onTestFinished">,
    options: LocksOptions = {},
    on = server,
  ): Promise<Fresh> {
    const prefix = `test-${++prefixes}/`;
    const keys = new Keys(prefix);
    const another = async (more: LocksOptions = {}) => {
      const wire = new Wire(await openEtcdClient({ endpoints: [endpointOf(on)] }));
      const store = etcdStore(wire.client, { prefix, closeClient: true });
      const locks = createLocks(store, { ttl: TTL_MS, ...options, ...more });
      onTestFinished(() => locks.close().catch(ignore));
      return { store, wire, locks };
    };
    const claims = async (name: string): Promise<KeyValue[]> =>
      (await raw.range(keys.name(`default:${name}`))).kvs;
    return { prefix, keys, another, claims, ...(await another()) };
  }

  const everything = async (prefix: string): Promise<KeyValue[]> =>
    (await raw.range({ key: prefix, rangeEnd: `${prefix.slice(0, -1)}0` })).kvs;

  const isThere = async (key: string): Promise<boolean> =>
    (await raw.range({ key })).kvs.length > 0;

  const waitersAre = (locks: Locks, name: string, count: number): Promise<void> =>
    until(
      `${count} wait for ${name}`,
      async () => ((await locks.inspect(name))?.waiters.length ?? 0) === count,
    );

  describe("what it costs", () => {
    test("an acquire that nobody disputes is one transaction, and a release another", async (context) => {
      const { locks, wire } = await fresh(context, { ttl: LONG_MS });
      await (await locks.acquire("first")).release();
      wire.calls = [];
      const before = await server.commands();
      for (let i = 0; i < 20; i++) {
        const lease = await locks.acquire("name");
        expect(wire.calls.splice(0)).toEqual(["txn"]);
        expect(await lease.release()).toBe("released");
        expect(wire.calls.splice(0)).toEqual(["txn"]);
      }
      expect((await server.commands()) - before).toBe(40);
      const many = await locks.acquireAll(["a", "b", "c"]);
      expect(wire.calls.splice(0)).toEqual(["txn"]);
      await many.release();
    });

    test("there is a session for each ttl in seconds, and no more, however many ask at once", async (context) => {
      const { locks, wire } = await fresh(context);
      await Promise.all(
        ["5s", "4500ms", "7s", "5s", "6001ms"].flatMap((ttl, i) =>
          [1, 2, 3].map((j) => locks.acquire(`${i} ${j}`, { ttl })),
        ),
      );
      expect(wire.granted.map(({ ttlS }) => ttlS).sort()).toEqual([5, 7]);
      await locks.acquire("more", { ttl: "5s" });
      expect(wire.count("leaseGrant")).toBe(2);
    });

    test("1,000 locks stand under one lease, and keeping them costs as much as keeping a few", async (context) => {
      const { locks, wire, prefix } = await fresh(context, { ttl: 6_000 });
      const costOf = async (): Promise<number> => {
        wire.calls = [];
        await pause(2_500);
        // Nothing else is sent for them.
        const keeping: Method[] = ["leaseKeepAlive", "range", "leaseTimeToLive"];
        expect(wire.calls.filter((one) => !keeping.includes(one))).toEqual([]);
        expect(wire.count("leaseTimeToLive")).toBeLessThanOrEqual(2);
        return wire.count("leaseKeepAlive");
      };
      const few = await Promise.all([1, 2, 3].map((i) => locks.acquire(`few ${i}`)));
      const some: Lease[] = [];
      // Not all at once: on a busy machine, that would take longer than the ttl.
      while (some.length < 997) {
        const names = Array.from({ length: Math.min(100, 997 - some.length) }, (_, i) => i);
        const from = some.length;
        some.push(...(await Promise.all(names.map((i) => locks.acquire(`many ${from + i}`)))));
      }
      expect(wire.granted).toHaveLength(1);
      const session = wire.session(6_000);
      const claimed = (await everything(`${prefix}n/`)).map(({ lease }) => lease);
      expect(claimed).toEqual(Array(1_000).fill(session));
      // Eight times in a third of the ttl, and whoever comes while one is under way shares the next.
      expect(await costOf()).toBeLessThanOrEqual(2 * 8 * 2 + 4);
      for (const lease of [...few, ...some]) lease.assertHeld();
    });

    test("who waits for a name that is waited for opens no second watch, and a handover costs nothing but the release", async (context) => {
      const { locks, another } = await fresh(context, { ttl: LONG_MS });
      const others = await another();
      const held = await locks.acquire("name");
      const first = others.locks.acquire("name");
      await waitersAre(locks, "name", 1);
      expect(others.wire.count("watch")).toBe(1);
      others.wire.calls = [];
      const second = others.locks.acquire("name");
      await waitersAre(locks, "name", 2);
      // The watch tells what would have to be read.
      expect(others.wire.calls).toEqual(["txn"]);
      const third = others.locks.acquire("name");
      await waitersAre(locks, "name", 3);
      others.wire.calls = [];
      const before = await server.commands();
      await held.release();
      const one = await first;
      expect(others.wire.calls).toEqual([]);
      await one.release();
      const two = await second;
      await two.release();
      const three = await third;
      expect(others.wire.calls).toEqual(["txn", "txn"]);
      expect((await server.commands()) - before).toBe(3);
      expect([one.token, two.token, three.token]).toEqual(
        [one.token, two.token, three.token].toSorted((a, b) => (a < b ? -1 : 1)),
      );
      // Nobody else has it in between, and for a while it is watched still.
      const fourth = others.locks.acquire("name");
      await waitersAre(locks, "name", 1);
      expect(others.wire.count("watch")).toBe(0);
      await three.release();
      await fourth;
    });
  });

  describe.concurrent("time", () => {
    test("what the server gave counts, not what was asked for", async (context) => {
      const slow = (await lab.etcd({ timing: "default" })).servers[0] as EtcdServer;
      const { locks } = await fresh(context, {}, slow);
      const lease = await locks.acquire("name", { ttl: "1s" });
      expect(lease.remainingMs).toBeGreaterThan(1_300);
      expect(lease.remainingMs).toBeLessThan(2_000);
      await lease.renew();
      expect(lease.remainingMs).toBeGreaterThan(1_300);
    });

    test.for<[string, object, string]>([
      ["renew: false", { renew: false }, "expired"],
      ["maxHold", { maxHold: 500 }, "max-hold"],
    ])(
      "what is not renewed goes though the session lives on: %s",
      async ([, options, reason], context) => {
        const { locks, claims } = await fresh(context);
        const kept = await locks.acquire("kept");
        const fromMs = performance.now();
        const lease = await locks.acquire("name", options);
        let toldAtMs = Number.POSITIVE_INFINITY;
        let standsWhenTold: Promise<KeyValue[]> | undefined;
        lease.on("lost", (error) => {
          toldAtMs = performance.now();
          standsWhenTold = claims("name");
          expect(error.reason).toBe(reason);
        });
        await until(
          "it is gone",
          async () => (await claims("name")).length === 0,
          TTL_MS * 2 + GRACE_MS,
        );
        const goneAtMs = performance.now();
        expect(goneAtMs - fromMs).toBeGreaterThanOrEqual(TTL_MS);
        expect(toldAtMs).toBeLessThan(goneAtMs);
        expect(await standsWhenTold).toHaveLength(1);
        kept.assertHeld();
        expect(await claims("kept")).toHaveLength(1);
        expect(await locks.tryAcquire("name")).not.toBeNull();
      },
    );

    test("renewed to two ttls at once, it stands under the session of which it is told", async (context) => {
      const { locks, wire, claims } = await fresh(context, { ttl: 20_000 });
      const lease = await locks.acquire("name");
      const shorter = lease.renew("2s").catch(ignore);
      // Its move has begun.
      await until("the session for it is asked for", () => wire.count("leaseGrant") === 2);
      await lease.renew("20s");
      await shorter;
      expect(lease.remainingMs).toBeGreaterThan(15_000);
      expect((await claims("name"))[0]!.lease).toBe(wire.session(20_000));
    });

    test("a move that was done, and whose answer is lost, is undone by the next renewal", async (context) => {
      const { locks, wire, claims } = await fresh(context, { ttl: 20_000 });
      const lease = await locks.acquire("name");
      wire.on.txn = async (send, { success }) => {
        const answer = await send();
        if (!success?.[0]?.put?.ignoreValue) return answer;
        delete wire.on.txn;
        throw new Error("lost");
      };
      await expect(lease.renew("3s")).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
      expect((await claims("name"))[0]!.lease).toBe(wire.session(3_000));
      await lease.renew("20s");
      expect(lease.remainingMs).toBeGreaterThan(15_000);
      expect((await claims("name"))[0]!.lease).toBe(wire.session(20_000));
    });

    test("renewed to a ttl whose session has died unnoticed, it gets another, and nothing is lost", async (context) => {
      const { locks, wire, claims } = await fresh(context, { ttl: 20_000 });
      const [lease, beside] = [await locks.acquire("name"), await locks.acquire("beside")];
      await (await locks.acquire("other", { ttl: 5_000 })).release();
      const died = wire.session(5_000);
      await raw.leaseRevoke(died);
      await lease.renew("5s");
      expect(wire.session(5_000)).not.toBe(died);
      expect((await claims("name"))[0]!.lease).toBe(wire.session(5_000));
      await beside.renew();
      expect([lease.state, beside.state]).toEqual(["held", "held"]);
    });

    test("renewed to another ttl, it stands under the other session, and outlives the first", async (context) => {
      const { locks, wire, claims } = await fresh(context, { ttl: 2_000 });
      const [lease, other] = [await locks.acquire("name"), await locks.acquire("other")];
      const [before] = await claims("name");
      expect(before!.lease).toBe(wire.session(2_000));
      const fromMs = performance.now();
      await lease.renew("5s");
      const leftMs = lease.remainingMs + performance.now() - fromMs;
      expect(leftMs).toBeGreaterThan(4_000);
      expect(leftMs).toBeLessThan(5_000);
      const [moved] = await claims("name");
      expect(moved!.lease).toBe(wire.session(5_000));
      expect(moved!.createRevision).toBe(before!.createRevision);
      expect(lease.token).toBe(before!.createRevision);
      await raw.leaseRevoke(wire.session(2_000));
      await until("the other is lost", () => other.state === "lost", 2_000 + GRACE_MS);
      await lease.renew();
      expect(lease.remainingMs).toBeGreaterThan(4_000);
      expect(await claims("name")).toHaveLength(1);
      // And back to one that is made anew.
      await lease.renew("2s");
      expect(lease.remainingMs).toBeLessThan(2_000);
      expect((await claims("name"))[0]!.lease).toBe(wire.session(2_000));
      expect(wire.granted.map(({ ttlS }) => ttlS)).toEqual([2, 5, 2]);
    });

    test("a grant is good only for what is left of its session's proof", async (context) => {
      const { store, wire } = await fresh(context);
      const ttlMs = 3_000;
      grantOf(await store.claim(claimOf("first", { ttlMs }), ignore));
      wire.on.leaseKeepAlive = () => Promise.reject(noAnswer());
      await pause(500);
      const { ttlMs: goodForMs } = grantOf(await store.claim(claimOf("second", { ttlMs }), ignore));
      expect(goodForMs).toBeLessThanOrEqual(2_500);
      expect(goodForMs).toBeGreaterThan(1_500);
      // With less than half of it, it is proved first, and that can't be.
      await pause(1_100);
      await rejection(store.claim(claimOf("third", { ttlMs }), ignore));
    });
  });

  describe.concurrent("deletions", () => {
    test("one that is lost is owed, and made", async (context) => {
      const { locks, wire, claims } = await fresh(context, { ttl: LONG_MS, retry: { pause: 50 } });
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

    test("one that was made, though nobody heard of it, does no harm", async (context) => {
      const { locks, wire, claims } = await fresh(context, { ttl: LONG_MS, retry: { pause: 50 } });
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

    test("a stranger under a session of ours is deleted within about a ttl, and nothing else is", async (context) => {
      const { locks, wire, keys, claims } = await fresh(context);
      const lease = await locks.acquire("name");
      const session = wire.session(TTL_MS);
      const stranger = keys.claim("default:other", "stranger");
      const elsewhere = `elsewhere-${keys.claim("default:other", "stranger")}`;
      const value = (await claims("name"))[0]!.value;
      await raw.txn({
        success: [stranger, elsewhere].map((key) => ({ put: { key, value, lease: session } })),
      });
      expect((await locks.inspect("other"))!.holders).toHaveLength(1);
      await until("it is gone", async () => !(await isThere(stranger)), TTL_MS * 1.5 + GRACE_MS);
      expect(await isThere(elsewhere)).toBe(true);
      expect(await isThere(keys.session(session))).toBe(true);
      lease.assertHeld();
      expect(await claims("name")).toHaveLength(1);
    });

    test.for<[string, boolean]>([
      ["with others under the session", true],
      ["alone", false],
    ])(
      "a claim that arrives after it was given up is deleted within about a ttl: %s",
      async ([, others], context) => {
        const { locks, wire, claims } = await fresh(context, { wait: 0 });
        const first = await locks.acquire("first");
        if (!others) await first.release();
        let arrived: Promise<unknown> | undefined;
        wire.on.txn = (send, txn) => {
          if (isRelease(txn)) return send();
          delete wire.on.txn;
          // After the release of what was given up.
          arrived = pause(300).then(send);
          return Promise.reject(noAnswer());
        };
        expect(await rejection(locks.acquire("name"))).toMatchObject({ code: "STORE_UNAVAILABLE" });
        await arrived;
        expect(await claims("name")).toHaveLength(1);
        await until(
          "it is gone",
          async () => (await claims("name")).length === 0,
          TTL_MS * 1.5 + GRACE_MS,
        );
      },
    );

    test("a claim that is answered after it was given up is given back", async (context) => {
      const { locks, wire, claims } = await fresh(context, { wait: 0, commandTimeout: 200 });
      await (await locks.acquire("first")).release();
      wire.on.txn = async (send, txn) => {
        if (isRelease(txn)) return send();
        delete wire.on.txn;
        await pause(500);
        return send();
      };
      const asked = locks.acquire("name");
      expect(await rejection(asked)).toMatchObject({ code: "STORE_UNAVAILABLE" });
      await pause(350);
      await until("it is gone", async () => (await claims("name")).length === 0);
      expect(await locks.tryAcquire("name")).not.toBeNull();
    });

    test("who holds a key that somebody has deleted is told within about a ttl", async (context) => {
      const { locks, claims } = await fresh(context);
      const [lease, other] = [await locks.acquire("name"), await locks.acquire("other")];
      const [{ key }] = (await claims("name")) as [KeyValue];
      await server.ctl("del", key.slice(0, key.indexOf("\0")), "--prefix");
      await until("it is told", () => lease.state === "lost", TTL_MS * 1.5 + GRACE_MS);
      expect(lease.signal.reason).toMatchObject({ code: "LEASE_LOST", reason: "expired" });
      other.assertHeld();
    });
  });

  describe.concurrent("atLeast", () => {
    const AT_LEAST_MS = 2_000;

    /** From when on it could be had. */
    async function openedAt(locks: Locks, name: string): Promise<number> {
      let openedAtMs = 0;
      await until(
        `${name} is open`,
        async () => {
          openedAtMs = performance.now();
          return (await locks.tryAcquire(name)) !== null;
        },
        AT_LEAST_MS + 5_000,
      );
      return openedAtMs;
    }

    test("outlives a process that is killed, whether it had to wait or not", async (context) => {
      // By the URL, so under the usual prefix.
      const store = etcdStore(await openEtcdClient({ endpoints: [endpointOf(server)] }), {
        closeClient: true,
      });
      const locks = createLocks(store, { ttl: TTL_MS, namespace: "at-least" });
      context.onTestFinished(() => locks.close());
      const worker = await Worker.start({
        client: "w1",
        url: server.url,
        locks: { ttl: TTL_MS, namespace: "at-least" },
      });
      context.onTestFinished(() => worker.kill());
      const blocking = await locks.acquire("waited");
      const options = { atLeast: AT_LEAST_MS };
      const waiting = worker.acquire("waited", options);
      await waitersAre(locks, "waited", 1);
      const askedAtMs = performance.now();
      await worker.acquire("asked", options);
      const grantedAtMs = performance.now();
      await pause(500);
      const releasedAtMs = performance.now();
      await blocking.release();
      await waiting;
      const handedOverAtMs = performance.now();
      await worker.kill();
      const [asked, waited] = await Promise.all([
        openedAt(locks, "asked"),
        openedAt(locks, "waited"),
      ]);
      expect(asked).toBeGreaterThanOrEqual(askedAtMs + AT_LEAST_MS);
      expect(asked).toBeLessThan(grantedAtMs + AT_LEAST_MS + 3_000);
      expect(waited).toBeGreaterThanOrEqual(releasedAtMs + AT_LEAST_MS);
      expect(waited).toBeLessThan(handedOverAtMs + AT_LEAST_MS + 3_000);
    });

    test("ends on time where its process lives, and its keys with it", async (context) => {
      const { locks, another, prefix } = await fresh(context);
      const others = await another();
      const fromMs = performance.now();
      const lease = await locks.acquire("name", { atLeast: 700 });
      const grantedAtMs = performance.now();
      expect(await lease.release()).toBe("released");
      expect(await others.locks.tryAcquire("name")).toBeNull();
      expect((await others.locks.inspect("name"))!.holders).toMatchObject([
        { closed: true, token: lease.token },
      ]);
      const next = await others.locks.acquire("name");
      expect(performance.now()).toBeGreaterThanOrEqual(fromMs + 700);
      expect(performance.now()).toBeLessThan(grantedAtMs + 700 + 1_000);
      await next.release();
      expect(await everything(`${prefix}n/`)).toEqual([]);
    });

    test("who waits for a name that is only closed has a ticket, in order, and is told", async (context) => {
      const { store, another } = await fresh(context);
      const others = await another();
      const held = claimOf("name", { atLeastMs: 1_000 });
      grantOf(await store.claim(held, ignore));
      await store.release([{ name: "name", grantId: held.grantId }]);
      const told: string[] = [];
      for (const [client, holder] of [
        [store, "first"],
        [others.store, "second"],
      ] as const) {
        const claim = claimOf("name", { queue: true, holder });
        const answer = await client.claim(claim, ({ kind }) => told.push(`${holder} ${kind}`));
        expect(answer.kind).toBe("queued");
      }
      expect(await store.inspect("name")).toMatchObject({
        holders: [{ closed: true }],
        waiters: [{ holder: "first" }, { holder: "second" }],
      });
      await until("it is told", () => told.length > 0, 1_000 + GRACE_MS);
      expect(told).toEqual(["first granted"]);
    });

    test("of one who waited counts from its grant", async (context) => {
      const { locks, another } = await fresh(context);
      const others = await another();
      const held = await others.locks.acquire("name");
      const waiting = locks.acquire("name", { atLeast: 800 });
      await waitersAre(locks, "name", 1);
      await pause(900);
      const fromMs = performance.now();
      await held.release();
      expect(await (await waiting).release()).toBe("released");
      expect(await others.locks.tryAcquire("name")).toBeNull();
      await others.locks.acquire("name");
      expect(performance.now()).toBeGreaterThanOrEqual(fromMs + 800);
    });
  });

  describe.concurrent("revoked", () => {
    test("a notice that can't be read is one all the same, and not for the others of the session", async (context) => {
      const { locks, wire, keys } = await fresh(context, { ttl: 3_000 });
      const [lease, other] = [await locks.acquire("name"), await locks.acquire("other")];
      const [session, grantId] = [
        wire.session(3_000),
        HeldLease.claimOf(lease as HeldLease).grantId,
      ];
      const key = keys.notice(session, "default:name", grantId);
      await raw.txn({ success: [{ put: { key, value: '{"format":99}', lease: session } }] });
      await until("it is told", () => lease.state === "lost", 1_000 + GRACE_MS);
      expect(lease.signal.reason).toMatchObject({ reason: "revoked" });
      await other.renew();
      other.assertHeld();
    });

    test("by a notice the holder learns of it at its next renewal, and why", async (context) => {
      const { locks, another, prefix } = await fresh(context, { ttl: 3_000 });
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
      // Long before it would have run out.
      await until("it is told", () => lease.state === "lost", 1_000 + 500);
      expect(lease.signal.reason).toMatchObject({
        reason: "revoked",
        message: expect.stringContaining("it is stuck"),
      });
      await until("so is the other", () => closing.state === "lost");
      other.assertHeld();
      expect((await locks.inspect("name"))!.revoked).toMatchObject([
        { by: "operator", why: "it is stuck", token: lease.token },
      ]);
      for (const { key, lease } of await everything(prefix)) expect(lease, key).not.toBe(0n);
    });

    test("at most 16 are kept of a name, the latest", async (context) => {
      const { locks, keys, prefix } = await fresh(context);
      const tokens: bigint[] = [];
      for (let i = 0; i < 18; i++) {
        tokens.push((await locks.acquire("name")).token);
        await locks.forceRelease("name", { why: String(i) });
      }
      const { revoked } = (await locks.inspect("name"))!;
      expect(revoked.map(({ token }) => token)).toEqual(tokens.slice(2));
      expect(revoked.map(({ why }) => why)).toEqual(tokens.map((_, i) => String(i)).slice(2));
      expect((await raw.range(keys.revoked("default:name"))).kvs).toHaveLength(16);
      for (const { key, lease } of await everything(prefix)) expect(lease, key).not.toBe(0n);
    });

    test("many holders at once", async (context) => {
      const { locks } = await fresh(context, { ttl: LONG_MS });
      const held = await Promise.all(
        Array.from({ length: 40 }, () => locks.acquire("name", { mode: "shared" })),
      );
      const taken = await locks.forceRelease("name", { why: "a test" });
      expect(taken).toHaveLength(40);
      for (const lease of held)
        expect(await rejection(lease.renew())).toMatchObject({ reason: "revoked" });
      expect(await locks.tryAcquire("name")).not.toBeNull();
    });
  });

  describe.concurrent("the proof", () => {
    const BROKEN: Record<string, (wire: Wire) => void> = {
      "another term": ({ on }) => {
        on.leaseKeepAlive = async (send) => {
          const answer = await send();
          return { ...answer, term: answer.term + 1n };
        };
      },
      "another member": ({ on }) => {
        on.leaseKeepAlive = async (send) => {
          const answer = await send();
          return { ...answer, member: answer.member + 1n };
        };
      },
      "a read in another term": ({ on }) => {
        on.range = async (send) => {
          const answer = await send();
          return { ...answer, term: answer.term + 1n };
        };
      },
      "a lease that has gone, but its key has not": ({ on }) => {
        on.leaseKeepAlive = async (send) => ({ ...(await send()), ttlS: 0 });
      },
      "no answer to the keepalive": ({ on }) => {
        on.leaseKeepAlive = () => Promise.reject(noAnswer());
      },
      "no answer to the read": ({ on }) => {
        on.range = () => Promise.reject(noAnswer());
      },
    };

    test.for(Object.entries(BROKEN))(
      "%s: unknown, and the deadline stays",
      async ([, breaks], context) => {
        const { locks, store, wire } = await fresh(context);
        const claim = claimOf("name", { ttlMs: TTL_MS });
        grantOf(await store.claim(claim, ignore));
        const lease = await locks.acquire("lease");
        breaks(wire);
        const renewal = { name: "name", grantId: claim.grantId, seq: 2, ttlMs: TTL_MS };
        expect(await store.renew([renewal])).toMatchObject([{ kind: "unknown" }]);
        const fromMs = performance.now();
        const beforeMs = lease.remainingMs;
        await rejection(lease.renew());
        expect(lease.remainingMs).toBeLessThanOrEqual(beforeMs);
        expect(lease.state).toBe("jeopardy");
        await until("it is told", () => lease.state === "lost", beforeMs + GRACE_MS);
        expect(performance.now() - fromMs).toBeLessThan(TTL_MS + 500);
        expect(lease.signal.reason).toMatchObject({ reason: "expired" });
      },
    );

    test("one such answer: in jeopardy, and recovered by the next", async (context) => {
      const { locks, wire } = await fresh(context, { ttl: 3_000 });
      const lease = await locks.acquire("name");
      wire.on.leaseKeepAlive = async (send) => {
        delete wire.on.leaseKeepAlive;
        return { ...(await send()), term: 0n };
      };
      const told: string[] = [];
      for (const event of ["jeopardy", "recovered", "lost"] as const) {
        lease.on(event, () => told.push(event));
      }
      await rejection(lease.renew());
      await until("it is proved again", () => lease.remainingMs > 2_000 && told.length > 1);
      expect(told).toEqual(["jeopardy", "recovered"]);
    });

    test("the session's key is gone: that is a loss, and the next has another session", async (context) => {
      const { locks, wire, keys } = await fresh(context, { ttl: LONG_MS });
      const lease = await locks.acquire("name");
      const session = wire.session(LONG_MS);
      await raw.txn({ success: [{ delete: { key: keys.session(session) } }] });
      expect(await rejection(lease.renew())).toMatchObject({ code: "LEASE_LOST" });
      await raw.leaseRevoke(session);
      const next = await locks.acquire("name");
      expect(wire.session(LONG_MS)).not.toBe(session);
      expect(next.token).toBeGreaterThan(lease.token);
    });
  });

  describe.concurrent("a grant counts only while one's own key stands", () => {
    test("a waiter whose session was revoked asks anew, and gets another token", async (context) => {
      const { locks, claims, another } = await fresh(context, { ttl: 5_000, wait: "20s" });
      const others = await another();
      const held = await locks.acquire("name");
      const later = new Later(others.wire);
      const waiting = others.locks.acquire("name");
      await waitersAre(locks, "name", 1);
      const ticket = (await claims("name")).at(-1)!;
      later.holdBack();
      await server.ctl("lease", "revoke", others.wire.session(5_000).toString(16));
      await held.release();
      await until("both are gone", async () => (await claims("name")).length === 0);
      // Its own end and the holder's are told in one go.
      await until("it hears of both", () => later.held >= 2);
      later.letGo();
      const lease = await waiting;
      expect(lease.token).toBeGreaterThan(ticket.createRevision);
      expect((await claims("name")).map(({ createRevision }) => createRevision)).toEqual([
        lease.token,
      ]);
      lease.assertHeld();
    });

    test("so does one whose ticket went in the same step as the holder", async (context) => {
      const { locks, claims, another, keys } = await fresh(context, { ttl: 5_000, wait: "20s" });
      const others = await another();
      const held = await locks.acquire("name");
      const waiting = others.locks.acquire("name");
      await waitersAre(locks, "name", 1);
      const ticket = (await claims("name")).at(-1)!;
      await raw.txn({ success: [{ delete: keys.name("default:name") }] });
      const lease = await waiting;
      expect(lease.token).toBeGreaterThan(ticket.createRevision);
      expect(lease.token).toBeGreaterThan(held.token);
      expect((await claims("name")).map(({ createRevision }) => createRevision)).toEqual([
        lease.token,
      ]);
    });

    test("one whose session is revoked while the holder stays keeps waiting, at the end of the queue", async (context) => {
      const { locks, another } = await fresh(context, { ttl: 5_000, wait: "20s" });
      const [others, more] = [
        await another({ holder: "second" }),
        await another({ holder: "third" }),
      ];
      const held = await locks.acquire("name");
      const waiting = others.locks.acquire("name");
      await waitersAre(locks, "name", 1);
      const third = more.locks.acquire("name");
      await waitersAre(locks, "name", 2);
      await raw.leaseRevoke(others.wire.session(5_000));
      await until("it waits again", async () => {
        const { waiters } = (await locks.inspect("name"))!;
        return waiters.map(({ holder }) => holder).join() === "third,second";
      });
      await held.release();
      await (await third).release();
      (await waiting).assertHeld();
    });
  });

  describe.concurrent("guardTxn", () => {
    let data = 0;
    /** Whether it was written. */
    async function write(lease: Lease, prefix: string): Promise<boolean> {
      const put = { key: `data-${++data}`, value: "" };
      const { succeeded } = await raw.txn({
        compare: [guardTxn(lease, { prefix })],
        success: [{ put }],
      });
      expect(await isThere(put.key)).toBe(succeeded);
      return succeeded;
    }

    test("succeeds while the lease is held, and not after its release", async (context) => {
      const { locks, prefix } = await fresh(context, { ttl: LONG_MS });
      const lease = await locks.acquire("name");
      expect(await write(lease, prefix)).toBe(true);
      await lease.renew("2m");
      expect(await write(lease, prefix)).toBe(true);
      await lease.release();
      expect(await write(lease, prefix)).toBe(false);
      const next = await locks.acquire("name");
      expect([await write(lease, prefix), await write(next, prefix)]).toEqual([false, true]);
    });

    test("nor after its end, nor after it was revoked", async (context) => {
      const { locks, prefix, claims } = await fresh(context);
      const lease = await locks.acquire("name", { renew: false });
      const revoked = await locks.acquire("revoked");
      expect([await write(lease, prefix), await write(revoked, prefix)]).toEqual([true, true]);
      await locks.forceRelease("revoked", { why: "a test" });
      expect(await write(revoked, prefix)).toBe(false);
      await until("it has ended", async () => (await claims("name")).length === 0);
      expect(await write(lease, prefix)).toBe(false);
    });

    test("with a namespace and an offset of the tokens; of shared leases and permits each", async (context) => {
      const { locks, prefix } = await fresh(context, {
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

    test("of one who waited", async (context) => {
      const { locks, prefix } = await fresh(context, { ttl: LONG_MS });
      const held = await locks.acquire("name");
      const waiting = locks.acquire("name");
      await waitersAre(locks, "name", 1);
      await held.release();
      expect(await write(await waiting, prefix)).toBe(true);
      expect(await write(held, prefix)).toBe(false);
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

  test("observe tells of each leader by a watch", async (context) => {
    const { locks, another } = await fresh(context, { ttl: LONG_MS });
    const others = await another({ holder: "other" });
    const observed = others.locks.election("scheduler").observe({ every: "1h" });
    const next = async () => {
      const fromMs = performance.now();
      const { value } = await observed.next();
      expect(performance.now() - fromMs).toBeLessThan(GRACE_MS);
      return value;
    };
    expect(await next()).toBeNull();
    const election = locks.election("scheduler");
    const first = await election.campaign();
    expect(await next()).toMatchObject({ token: first.token });
    await election.resign();
    expect(await next()).toBeNull();
    const second = await election.campaign();
    expect(await next()).toMatchObject({ token: second.token });
    await locks.forceRelease("scheduler", { why: "a test" });
    expect(await next()).toBeNull();
    await observed.return!();
  });

  describe("what is not ours", () => {
    const FOREIGN: Record<string, { value: string; says: string }> = {
      "a later format": { value: '{"format":99,"permits":1}', says: "format 99" },
      "a text": { value: "hello", says: "not Holdfast's" },
      nothing: { value: "", says: "not Holdfast's" },
      null: { value: "null", says: "not Holdfast's" },
      "a list": { value: "[1,2]", says: "not Holdfast's" },
      "an object without a format": { value: '{"permits":1,"limit":1}', says: "not Holdfast's" },
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
      "%s: an error, and not for other names",
      async ([, foreign], context) => {
        const { store, keys } = await fresh(context);
        const error = errorOf(foreign);
        const [held, one] = [claimOf("foreign"), claimOf("one")];
        for (const claim of [held, one]) grantOf(await store.claim(claim, ignore));
        const key = keys.claim("foreign", "x");
        await raw.txn({ success: [{ put: { key, value: foreign.value } }] });
        const refused = [
          () => store.claim(claimOf("foreign"), ignore),
          () => store.claim(claimOf("foreign", { queue: true }), ignore),
          () => store.claim(claimOf("a", { names: ["a", "foreign"] }), ignore),
          () => store.release([{ name: "foreign", grantId: "unknown" }]),
          () => store.inspect("foreign"),
          () => store.revoke("foreign", { holder: "h", why: "w" }),
          () => store.resize("foreign", 3),
        ];
        for (const ask of refused) expect(await rejection(ask())).toMatchObject(error);
        expect(await store.renew([renewalOf(one), renewalOf(claimOf("foreign"))])).toMatchObject([
          { kind: "granted" },
          { kind: "unknown", cause: error },
        ]);
        // Who holds it may go, and others come and go elsewhere.
        const releases = [held, one].map(({ names, grantId }) => ({ name: names[0]!, grantId }));
        expect(await store.release(releases)).toEqual(["released", "released"]);
        grantOf(await store.claim(claimOf("one"), ignore));
        // What is not ours stays as it is.
        expect((await raw.range({ key })).kvs[0]!.value).toBe(foreign.value);
      },
    );

    test.for(["a later format", "a text"])(
      "%s that comes while the name is waited for: who waits for others does not notice, and all goes on when it is gone",
      async (kind, context) => {
        const { store, keys, another } = await fresh(context);
        const others = await another();
        const [held, elsewhere] = [claimOf("foreign"), claimOf("one")];
        for (const claim of [held, elsewhere]) grantOf(await store.claim(claim, ignore));
        const told: string[] = [];
        const [foreign, one] = [
          claimOf("foreign", { queue: true }),
          claimOf("one", { queue: true }),
        ];
        for (const claim of [foreign, one]) {
          const answer = await others.store.claim(claim, (push) =>
            told.push(`${claim.names[0]} ${push.kind}`),
          );
          expect(answer.kind).toBe("queued");
        }
        const key = keys.claim("foreign", "x");
        const { value } = FOREIGN[kind]!;
        await raw.txn({ success: [{ put: { key, value } }] });
        expect(await others.store.renew([renewalOf(one), renewalOf(foreign)])).toMatchObject([
          { kind: "queued" },
          { kind: "unknown", cause: errorOf(FOREIGN[kind]!) },
        ]);
        await store.release([{ name: "one", grantId: elsewhere.grantId }]);
        await until("the other is told", () => told.includes("one granted"));
        await raw.txn({ success: [{ delete: { key } }] });
        await store.release([{ name: "foreign", grantId: held.grantId }]);
        expect(await others.store.renew([{ ...renewalOf(foreign), seq: 3 }])).toMatchObject([
          { kind: "granted" },
        ]);
      },
    );
  });

  describe.concurrent("semaphores", () => {
    const claimedIn = ({ value }: KeyValue): Claimed => JSON.parse(value) as Claimed;

    test("made smaller: holders stay, marked as such, and nobody comes until there is room", async (context) => {
      const { locks, another, claims } = await fresh(context, { ttl: LONG_MS });
      const others = await another();
      const pool = locks.semaphore("pool", { permits: 3 });
      const [one, two] = [await pool.acquire({ permits: 2 }), await pool.acquire()];
      const waiting = others.locks.semaphore("pool", { permits: 3 }).acquire();
      const tooMuch = rejection(
        others.locks.semaphore("pool", { permits: 3 }).acquire({ permits: 3 }),
      );
      await waitersAre(locks, "pool", 2);
      await pool.resize(1);
      expect((await claims("pool")).map(claimedIn)).toEqual(
        expect.arrayContaining([
          expect.objectContaining({ permits: 2, limit: 1, held: true }),
          expect.objectContaining({ permits: 1, limit: 1, held: true }),
        ]),
      );
      expect(await tooMuch).toMatchObject({ code: "INVALID_ARGUMENT" });
      expect(await locks.inspect("pool")).toMatchObject({
        limit: 1,
        holders: [{ token: one.token }, { token: two.token }],
        waiters: [{ permits: 1 }],
      });
      await one.release();
      expect((await locks.inspect("pool"))!.waiters).toHaveLength(1);
      await two.release();
      const lease = await waiting;
      expect(lease.token).toBeGreaterThan(two.token);
      const asBefore = locks.semaphore("pool", { permits: 3 });
      expect(await rejection(asBefore.tryAcquire())).toMatchObject({ code: "INVALID_ARGUMENT" });
      expect(await pool.tryAcquire()).toBeNull();
    });

    test("made larger: who waits comes in at once", async (context) => {
      const { locks, another } = await fresh(context, { ttl: LONG_MS });
      const others = await another();
      const held = await locks.semaphore("pool", { permits: 1 }).acquire();
      const waiting: Promise<Lease>[] = [];
      for (let i = 1; i <= 3; i++) {
        waiting.push(others.locks.semaphore("pool", { permits: 1 }).acquire());
        await waitersAre(locks, "pool", i);
      }
      await locks.semaphore("pool", { permits: 1 }).resize(3);
      const came = await Promise.all(waiting.slice(0, 2));
      expect(new Set(came.map(({ floor }) => floor))).toEqual(new Set([held.token]));
      await waitersAre(locks, "pool", 1);
      await held.release();
      await waiting[2];
      expect((await locks.inspect("pool"))!.holders).toHaveLength(3);
    });

    test("a lease that is renewed to another ttl after a change keeps the new limit, and its place", async (context) => {
      const { locks, another, claims } = await fresh(context, { ttl: LONG_MS });
      const others = await another();
      const pool = locks.semaphore("pool", { permits: 3 });
      const [one, two] = [await pool.acquire(), await pool.acquire({ permits: 2 })];
      await others.locks.semaphore("pool", { permits: 3 }).resize(1);
      await one.renew("2m");
      await two.renew("2m");
      expect((await claims("pool")).map((kv) => claimedIn(kv).limit)).toEqual([1, 1]);
      expect(await locks.inspect("pool")).toMatchObject({
        limit: 1,
        holders: [{ token: one.token }, { token: two.token }],
        waiters: [],
      });
      await two.renew();
    });

    test("closed by atLeast: permits stay taken, and follow a change of the limit", async (context) => {
      const { locks, another } = await fresh(context, { ttl: LONG_MS });
      const others = await another();
      const pool = locks.semaphore("pool", { permits: 2 });
      const closing = await pool.acquire({ atLeast: "1m" });
      await closing.release();
      const beside = await pool.acquire();
      const waiting = others.locks.semaphore("pool", { permits: 2 }).acquire({ atLeast: "1m" });
      await waitersAre(locks, "pool", 1);
      await pool.resize(3);
      const came = await waiting;
      expect(await locks.inspect("pool")).toMatchObject({
        limit: 3,
        holders: [
          { token: closing.token, closed: true },
          { token: beside.token, closed: false },
          { token: came.token, closed: false },
        ],
      });
      await beside.release();
      await came.release();
      expect(await locks.inspect("pool")).toMatchObject({
        limit: 3,
        holders: [
          { token: closing.token, closed: true },
          { token: came.token, closed: true },
        ],
      });
      await pool.resize(1);
      expect(await pool.tryAcquire()).toBeNull();
      await pool.resize(3);
      expect(await pool.tryAcquire({ permits: 2 })).toBeNull();
      expect(await pool.tryAcquire()).not.toBeNull();
    });

    test("closed by one who came in by a change of the limit: the new one stays", async (context) => {
      const { locks, another } = await fresh(context, { ttl: LONG_MS });
      const others = await another();
      const held = await locks.semaphore("pool", { permits: 1 }).acquire();
      const waiting = others.locks.semaphore("pool", { permits: 1 }).acquire({ atLeast: "1m" });
      await waitersAre(locks, "pool", 1);
      await locks.semaphore("pool", { permits: 1 }).resize(2);
      const came = await waiting;
      await held.release();
      await came.release();
      expect(await locks.inspect("pool")).toMatchObject({
        limit: 2,
        holders: [{ token: came.token, closed: true }],
      });
      expect(await locks.semaphore("pool", { permits: 2 }).tryAcquire()).not.toBeNull();
    });
  });

  describe("close", () => {
    test("ends all sessions, and what stood under them goes", async (context) => {
      const { locks, wire, prefix } = await fresh(context, { ttl: LONG_MS });
      await locks.acquire("name");
      await locks.acquire("other", { ttl: "2m" });
      const waiting = rejection(locks.acquire("name"));
      await waitersAre(locks, "name", 1);
      await locks.close();
      expect(await waiting).toMatchObject({ code: "CLOSED" });
      const there = await leases(server);
      const ours = wire.granted.map(({ lease }) => lease.toString(16));
      expect(ours).toHaveLength(2);
      expect(there.filter((one) => ours.includes(one))).toEqual([]);
      expect(await everything(prefix)).toEqual([]);
    });

    test("of one of two on a store leaves the other's, and a client that is the caller's", async (context) => {
      const wire = new Wire(await openEtcdClient({ endpoints: [endpointOf(server)] }));
      context.onTestFinished(() => wire.client.close());
      const store = etcdStore(wire.client, { prefix: `test-${++prefixes}/` });
      const [one, two] = [1, 2].map(() => createLocks(store, { ttl: TTL_MS })) as [Locks, Locks];
      await one.acquire("one");
      const lease = await two.acquire("two");
      await one.close();
      await lease.renew();
      expect(await two.tryAcquire("one")).not.toBeNull();
      await two.close();
      const there = await leases(server);
      const ours = wire.granted.map(({ lease }) => lease.toString(16));
      expect(there.filter((one) => ours.includes(one))).toEqual([]);
      await wire.client.range({ key: "a" });
    });

    describe("in a process of its own", () => {
      let built: ReturnType<typeof build>;
      beforeAll(() => {
        built = build();
        const modules = fileURLToPath(new URL("../../node_modules", import.meta.url));
        symlinkSync(modules, built.file("node_modules"));
      });
      afterAll(() => built?.remove());

      test.each([
        ["ends after close", "await locks.close();"],
        ["ends by itself when all is released", ""],
      ])("%s", async (_, end) => {
        const { code, out, err, killed } = await runNode(`
          import { connect } from ${JSON.stringify(built.file("index.js"))};
          const locks = await connect(${JSON.stringify(server.url)}, { namespace: "process" });
          const lease = await locks.acquire("name", { ttl: "1s", atLeast: 100 });
          const waiting = locks.acquire("name");
          await locks.inspect("name");
          await lease.renew("2s");
          await lease.release();
          await (await waiting).release();
          const { value } = await locks.election("leader").observe({ every: "1h" }).next();
          ${end}
          console.log(value);
        `);
        expect({ code, out, err, killed }).toEqual({
          code: 0,
          out: "null",
          err: "",
          killed: false,
        });
      });
    });
  });
});

/** Holds back what watches tell. */
class Later {
  /** How many events it has heard of since. */
  held = 0;
  #events: (() => void)[] | null = null;

  constructor(wire: Wire) {
    wire.on.watch = (_, range, hear) => {
      const events: typeof hear.events = (some, revision) => {
        this.held += some.length;
        const tell = (): void => hear.events(some, revision);
        if (this.#events === null) tell();
        else this.#events.push(tell);
      };
      return wire.inner.watch(range, { ...hear, events });
    };
  }

  holdBack(): void {
    this.held = 0;
    this.#events = [];
  }

  letGo(): void {
    const events = this.#events ?? [];
    this.#events = null;
    for (const tell of events) tell();
  }
}

const isRelease = ({ success = [] }: Txn): boolean => success.some((op) => op.delete !== undefined);
