import { setImmediate } from "node:timers/promises";
import { describe, expect, type TestContext, test } from "vitest";
import { grantOf, ignore } from "../../../src/conformance/subject.js";
import type { Claim } from "../../../src/core/store.js";
import {
  type EtcdClient,
  type EtcdStore,
  etcdStore,
  openEtcdClient,
} from "../../../src/stores/etcd/index.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { Deferred } from "../../core/helpers.js";
import {
  endpointOf,
  GRACE_MS,
  Later,
  LONG_MS,
  OneEtcd,
  opsOf,
  revisionOf,
  type Wire,
  waitersAre,
} from "../../support/etcd.js";
import { describeWith } from "../../support/needs.js";
import { claimOf } from "../../support/redis.js";
import { until } from "../../support/worker.js";

describeWith(["etcd"], "waiting in etcd", () => {
  const etcd = OneEtcd.forAll();

  describe.concurrent("a grant counts only while the waiter's own key exists", () => {
    test("a waiter whose session was revoked claims again, and gets another token", async (context) => {
      const { locks, claims, another } = await etcd.fresh(context, { ttl: 5_000, wait: "20s" });
      const others = await another();
      const held = await locks.acquire("name");
      const later = new Later(others.wire);
      const waiting = others.locks.acquire("name");
      await waitersAre(locks, "name", 1);
      const ticket = (await claims("name")).at(-1)!;
      later.holdBack();
      await etcd.server.ctl("lease", "revoke", others.wire.session(5_000).toString(16));
      await held.release();
      await until("both are gone", async () => (await claims("name")).length === 0);
      // The end of its own key and of the holder's arrive in one message.
      await until("it has received both", () => later.held >= 2);
      later.letGo();
      const lease = await waiting;
      expect(lease.token).toBeGreaterThan(ticket.createRevision);
      expect((await claims("name")).map(({ createRevision }) => createRevision)).toEqual([
        lease.token,
      ]);
      lease.assertHeld();
    });

    test("a waiter whose ticket went in the same step as the holder claims again", async (context) => {
      const { locks, claims, another, keys } = await etcd.fresh(context, {
        ttl: 5_000,
        wait: "20s",
      });
      const others = await another();
      const held = await locks.acquire("name");
      const waiting = others.locks.acquire("name");
      await waitersAre(locks, "name", 1);
      const ticket = (await claims("name")).at(-1)!;
      await etcd.raw.txn({ success: [{ delete: keys.name("default:name") }] });
      const lease = await waiting;
      expect(lease.token).toBeGreaterThan(ticket.createRevision);
      expect(lease.token).toBeGreaterThan(held.token);
      expect((await claims("name")).map(({ createRevision }) => createRevision)).toEqual([
        lease.token,
      ]);
    });

    test("a waiter whose session is revoked while the name is held goes to the end of the queue", async (context) => {
      const { locks, another } = await etcd.fresh(context, { ttl: 5_000, wait: "20s" });
      const [others, more] = [
        await another({ holder: "second" }),
        await another({ holder: "third" }),
      ];
      const held = await locks.acquire("name");
      const waiting = others.locks.acquire("name");
      await waitersAre(locks, "name", 1);
      const third = more.locks.acquire("name");
      await waitersAre(locks, "name", 2);
      await etcd.raw.leaseRevoke(others.wire.session(5_000));
      await until("it waits again", async () => {
        const { waiters } = (await locks.inspect("name"))!;
        return waiters.map(({ holder }) => holder).join() === "third,second";
      });
      await held.release();
      await (await third).release();
      (await waiting).assertHeld();
    });
  });

  describe.concurrent("a snapshot of the queue that arrives late", () => {
    /** A name that is held, and two waiters for it in another store, on the same watch. */
    async function scene(
      context: Pick<TestContext, "onTestFinished">,
      through?: { address: string; port: number },
    ) {
      const { store: others, wire, prefix } = await etcd.fresh(context, {}, through);
      const client = await openEtcdClient({ endpoints: [endpointOf(etcd.server)] });
      const store = etcdStore(client, { prefix, closeClient: true });
      context.onTestFinished(() => store.close());
      const later = new Later(wire);
      const pushed: string[] = [];
      const held = claimOf("name");
      grantOf(await store.claim(held, ignore));
      const waits = async (who: string): Promise<Claim> => {
        const claim = claimOf("name", { queue: true, holder: who });
        const answer = await others.claim(claim, ({ kind }) => pushed.push(`${who} ${kind}`));
        expect(answer.kind).toBe("queued");
        return claim;
      };
      const giveUp = (by: EtcdStore, { grantId }: Claim) => by.release([{ name: "name", grantId }]);
      /** Makes the store read the name. */
      const readName = (): void => context.onTestFinished(others.observe("name", ignore));
      return { store, others, wire, later, pushed, held, waits, giveUp, readName };
    }

    test("does not bring back a holder that has gone: the next waiter gets its turn", async (context) => {
      const { store, others, wire, pushed, held, waits, giveUp, readName } = await scene(context);
      const first = await waits("first");
      await waits("second");
      const reads = new LateReads(wire);
      readName();
      await until("it is read", () => reads.held === 1);
      await giveUp(store, held);
      await until("the first is notified", () => pushed.length > 0);
      await reads.letGo();
      await giveUp(others, first);
      await until("the second is notified", () => pushed.length > 1, GRACE_MS);
      expect(pushed).toEqual(["first granted", "second granted"]);
    });

    test("grants nothing to a waiter that is gone", async (context) => {
      const { store, wire, later, pushed, held, waits, giveUp, readName } = await scene(context);
      await waits("first");
      await waits("second");
      later.holdBack();
      const reads = new LateReads(wire);
      await giveUp(store, held);
      readName();
      await until("it is read", () => reads.held === 1);
      // That the first came to hold the name arrives together with its end.
      expect(await store.revoke("name", OPERATOR)).toMatchObject([{ holder: "first" }]);
      await until("both are on the way", () => later.held === 2);
      later.letGo();
      await until("the second is notified", () => pushed.includes("second granted"));
      await reads.letGo();
      expect(pushed).not.toContain("first granted");
    });

    test("is ignored if it was read before a gap in the watch", async (context) => {
      const proxy = await TcpProxy.open(etcd.server);
      context.onTestFinished(() => proxy.close());
      const { store, wire, pushed, held, waits, giveUp, readName } = await scene(context, proxy);
      await waits("first");
      await waits("second");
      const cut = proxy.cut();
      await cut.inject();
      const reads = new LateReads(wire, (txn) => etcd.raw.txn(txn));
      await giveUp(store, held);
      readName();
      await until("it is read", () => reads.held === 1);
      expect(await store.revoke("name", OPERATOR)).toMatchObject([{ holder: "first" }]);
      await etcd.server.ctl("put", "noise", "");
      await etcd.server.ctl("compact", await revisionOf(etcd.server));
      await cut.heal();
      await until("it is read again, as the watch has a gap", () => reads.held === 2);
      await reads.letGo();
      expect(pushed).toEqual([]);
      await reads.letGo();
      await until("the second is notified", () => pushed.includes("second granted"));
      expect(pushed).not.toContain("first granted");
    });

    test("says nothing about tickets that are newer than it", async (context) => {
      const { store, others, wire, later, pushed, held, waits, giveUp, readName } =
        await scene(context);
      const first = await waits("first");
      later.holdBack();
      const reads = new LateReads(wire);
      readName();
      await until("it is read", () => reads.held === 1);
      await waits("second");
      await reads.letGo();
      expect(pushed).toEqual([]);
      later.letGo();
      await giveUp(store, held);
      await until("the first is notified", () => pushed.length > 0);
      await giveUp(others, first);
      await until("the second is notified", () => pushed.length > 1);
      expect(pushed).toEqual(["first granted", "second granted"]);
    });
  });

  test("a ticket that is released while it is found again is not watched", async (context) => {
    const { store, another } = await etcd.fresh(context);
    const { store: other, wire } = await another();
    const ticket = claimOf("name", { queue: true });
    grantOf(await store.claim(claimOf("name"), ignore));
    expect(await store.claim(ticket, ignore)).toMatchObject({ kind: "queued" });
    const answered = new Deferred<void>();
    wire.on.leaseKeepAlive = async (send) => {
      await answered.promise;
      return send();
    };
    const found = other.claim({ ...ticket, seq: 2 }, ignore);
    await until("its session is being proved", () => wire.count("leaseKeepAlive") > 0);
    await other.release([{ name: "name", grantId: ticket.grantId }]);
    answered.resolve();
    expect(await found).toEqual({ kind: "lost", reason: "expired" });
    expect(wire.count("watch")).toBe(0);
  });

  test("observe learns of each leader by a watch", async (context) => {
    const { locks, another } = await etcd.fresh(context, { ttl: LONG_MS });
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
});

const OPERATOR = { holder: "operator", why: "a test" };

/** Holds replies to read-only transactions back, each until it is let go. */
class LateReads {
  readonly #held: (() => void)[] = [];

  constructor(wire: Wire, by?: EtcdClient["txn"]) {
    wire.on.txn = async (send, txn) => {
      if (!opsOf(txn).every(({ range }) => range !== undefined)) return send();
      const answer = await (by?.(txn) ?? send());
      await new Promise<void>((go) => this.#held.push(go));
      return answer;
    };
  }

  get held(): number {
    return this.#held.length;
  }

  /** Lets the oldest reply go; resolves when everything that follows from it is done. */
  async letGo(): Promise<void> {
    this.#held.shift()!();
    await setImmediate();
  }
}
