import { setTimeout as sleep, setImmediate as turn } from "node:timers/promises";
import { expect, onTestFinished, test, vi } from "vitest";
import { systemRuntime } from "../../../src/core/runtime.js";
import { REVOKED_KEPT } from "../../../src/core/store.js";
import { connect, createLocks, type LeaseLostError, type Locks } from "../../../src/index.js";
import { ClaimAttempt } from "../../../src/stores/zookeeper/claim-attempt.js";
import { ZooKeeperContext } from "../../../src/stores/zookeeper/context.js";
import { zookeeperStore } from "../../../src/stores/zookeeper/index.js";
import { Layout } from "../../../src/stores/zookeeper/layout.js";
import { type SessionOptions, TIMEOUT_PER_TTL } from "../../../src/stores/zookeeper/link.js";
import { ZooKeeperError } from "../../../src/zookeeper/index.js";
import { holdfast, makeFolder } from "../../cli/helpers.js";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";
import { openClient } from "../../support/zookeeper.js";
import { OneZooKeeper, TTL_MS } from "../../support/zookeeper-store.js";

/** "name" in the store. */
const NAME = "default:name";
const CLAIM = {
  names: [NAME],
  grantId: "claim-0123456789",
  seq: 1,
  permits: 1,
  limit: 1,
  ttlMs: TTL_MS,
  atLeastMs: 0,
  holder: "holder",
  queue: true,
};

describeWith(["zookeeper"], "the ZooKeeper store on a real server", () => {
  const zookeeper = OneZooKeeper.forAll();

  test("a claim whose reply is lost is found again, and made once", async () => {
    const root = zookeeper.root();
    const through = await zookeeper.proxy();
    const { locks } = zookeeper.open(root, through);
    await (await locks.acquire("name")).release();
    const silence = through.swallow("to-client");
    await silence.inject();
    const acquired = locks.acquire("name");
    await until(
      "the node is there",
      async () => (await zookeeper.nodesOf(root, NAME)).length === 1,
    );
    const cut = through.cut();
    await cut.inject();
    await silence.heal();
    await cut.heal();
    const lease = await acquired;
    expect(lease.state).toBe("held");
    expect(await zookeeper.nodesOf(root, NAME)).toHaveLength(1);
    await lease.release();
    expect(await zookeeper.nodesOf(root, NAME)).toEqual([]);
  });

  test("a ttl that is longer than any session gets the longest one", async () => {
    const { store } = zookeeper.open(zookeeper.root());
    const locks = createLocks(store, { ttl: "24h" });
    onTestFinished(() => locks.close());
    const lease = await locks.acquire("name");
    // The server permits sessions of an hour.
    expect(lease.remainingMs).toBeGreaterThan(1_200_000);
    expect(await lease.release()).toBe("released");
  });

  test("a claim whose reply is lost is looked for behind a proof, so that it can't appear later", async () => {
    const layout = new Layout(zookeeper.root());
    const { clock } = systemRuntime();
    const log: string[] = [];
    const context = new ZooKeeperContext(
      async (session) => {
        const client = await openClient({ servers: [zookeeper.address], ...session });
        const [multi, multiRead] = [client.multi.bind(client), client.multiRead.bind(client)];
        client.multi = async (parts) => {
          const replied = await multi(parts);
          const { op } = parts.at(-1)!;
          log.push(op);
          if (op === "create") throw new ZooKeeperError("CONNECTION_LOSS");
          return replied;
        };
        client.multiRead = (parts) => {
          log.push("read");
          return multiRead(parts);
        };
        return client;
      },
      clock,
      layout,
    );
    onTestFinished(() => context.sessions.close(true));
    // So long that its session is proved by the claim alone.
    const claim = { ...CLAIM, ttlMs: 60_000 };
    const { ttlMs, grantId } = claim;
    const request = { seq: 1, requestedAtMs: clock.elapsedMs(), push() {} };
    const own = context.claims.add(NAME, grantId, await context.sessions.use(ttlMs), request);
    const attempt = new ClaimAttempt(context, { claim, request, earlier: null }, own);
    expect(await attempt.run()).toMatchObject({ kind: "granted" });
    expect(log.slice(log.indexOf("create"))).toEqual(["create", "check", "read", "read"]);
  });

  test("the store refuses what it can't do with the reason, also if its caller did not ask its traits", async () => {
    const { store, locks } = zookeeper.open(zookeeper.root());
    const refusals = [
      [{ names: [NAME, "default:other"] }, /can't check that a name is free/],
      [{ atLeastMs: 1 }, /no clock that all its servers share/],
    ] as const;
    for (const [what, reason] of refusals) {
      const refused = store.claim({ ...CLAIM, ...what }, () => {});
      await expect(refused).rejects.toThrow(reason);
      await expect(refused).rejects.toMatchObject({ code: "UNSUPPORTED" });
    }
    const lease = await locks.acquire("name");
    await expect(lease.renew(TTL_MS + 1)).rejects.toThrow(/pass the ttl to connect or createLocks/);
    expect([lease.state, await lease.release()]).toEqual(["held", "released"]);
  });

  test("an election's observer learns of each leader by a watch", async () => {
    const root = zookeeper.root();
    const [locks, others] = [zookeeper.open(root).locks, zookeeper.open(root).locks];
    const observed = others.election("leader").observe({ every: "1h" });
    const next = async () => (await observed.next()).value;
    expect(await next()).toBeNull();
    const election = locks.election("leader");
    const first = await election.campaign();
    expect(await next()).toMatchObject({ token: first.token });
    await election.resign();
    expect(await next()).toBeNull();
    const second = await election.campaign();
    expect(await next()).toMatchObject({ token: second.token });
    await locks.forceRelease("leader", { why: "a test" });
    expect(await next()).toBeNull();
    await observed.return!();
  });

  test("the command line gives its ttl to the session, and a call with another one is told where it belongs", async () => {
    const env = { HOLDFAST_STORE: `zookeeper://${zookeeper.address}${zookeeper.root()}` };
    const command = ["name", "--ttl", "2s", "--", "true"];
    for (const of of ["run", "elect"]) {
      expect(await holdfast(makeFolder(), [of, ...command], env), of).toMatchObject({ code: 0 });
    }
    const { locks } = zookeeper.open(zookeeper.root());
    await expect(locks.acquire("name", { ttl: TTL_MS + 1 })).rejects.toThrow(
      /can't do a ttl per lease: .*pass the ttl to connect or createLocks/,
    );
  });

  test("the root may be below a node in which nothing may be created", async () => {
    const { admin } = zookeeper;
    const closed = zookeeper.root();
    await admin.create(closed);
    await admin.create(`${closed}/app`);
    await admin.setAcl(closed, [{ permissions: ["read"], scheme: "world", id: "anyone" }]);
    const { locks } = zookeeper.open(`${closed}/app/team/locks`);
    await (await locks.acquire("name")).release();
  });

  test("a root that is no path is refused before anything is sent, and a missing chroot with the reason", async () => {
    const servers = [zookeeper.address];
    for (const root of ["name", "/name/", "/a//b", "/a/../b"]) {
      expect(() => zookeeperStore({ servers, root }), root).toThrow(`root is "${root}"`);
    }
    // Nobody listens at this port.
    const connected = connect("zookeeper://127.0.0.1:1/a//b");
    await expect(connected).rejects.toMatchObject({ code: "INVALID_ARGUMENT" });
    await expect(connected).rejects.toThrow('the path of the zookeeper: URL is "/a//b"');
    const locks = createLocks(zookeeperStore({ servers, chroot: "/missing" }), { ttl: TTL_MS });
    onTestFinished(() => locks.close().catch(() => {}));
    await expect(locks.acquire("name")).rejects.toThrow(
      /can't create "\/holdfast" in ZooKeeper: the chroot .* does not exist\. Create the chroot's node/,
    );
  });

  test("parents that somebody has deleted are made again", async () => {
    const root = zookeeper.root();
    const { admin } = zookeeper;
    const { names, revoked } = new Layout(root);
    const { locks } = zookeeper.open(root);
    await (await locks.acquire("name")).release();
    await admin.delete(new Layout(root).name(NAME));
    for (const parent of [names, revoked]) await admin.delete(parent);
    expect(await locks.list()).toEqual([]);
    const lease = await locks.acquire("name");
    expect(await locks.forceRelease("name", { why: "stuck" })).toMatchObject([
      { token: lease.token },
    ]);
  });

  test("a waiter whose connection was cut when the name became free gets it after reconnecting", async () => {
    const root = zookeeper.root();
    const through = await zookeeper.proxy();
    const [holder, waiter] = [zookeeper.open(root).locks, zookeeper.open(root, through).locks];
    const lease = await holder.acquire("name");
    const waiting = waiter.acquire("name");
    await until("it waits", async () => (await holder.inspect("name"))?.waiting === 1);
    const cut = through.cut();
    await cut.inject();
    await lease.release();
    await cut.heal();
    const next = await waiting;
    expect(next.token).toBeGreaterThan(lease.token);
    await next.release();
  });

  test("a holder whose node went while it was disconnected is notified as soon as it is back", async () => {
    const through = await zookeeper.proxy();
    const root = zookeeper.root();
    const { store } = zookeeper.open(root, through);
    // So long that neither a renewal nor the regular comparison of nodes and claims comes first.
    const locks = createLocks(store, { ttl: 60_000 });
    onTestFinished(() => locks.close());
    const [gone, kept] = [await locks.acquire("name"), await locks.acquire("kept")];
    const cut = through.cut();
    await cut.inject();
    const [node] = await zookeeper.nodesOf(root, NAME);
    await zookeeper.admin.delete(`${new Layout(root).name(NAME)}/${node}`);
    await cut.heal();
    await until("it is notified", () => gone.signal.aborted);
    await kept.renew();
    expect([gone.state, kept.state]).toEqual(["lost", "held"]);
  });

  test("a revoked lease is lost with the reason, and others of its session stay", async () => {
    const root = zookeeper.root();
    const [holder, operator] = [zookeeper.open(root).locks, zookeeper.open(root).locks];
    const [taken, kept] = [await holder.acquire("taken"), await holder.acquire("kept")];
    const lost = new Promise<LeaseLostError>((resolve) => taken.on("lost", resolve));
    await operator.forceRelease("taken", { why: "stuck" });
    expect(await lost).toMatchObject({ reason: "revoked" });
    await sleep(TTL_MS * 1.2);
    expect(kept.state).toBe("held");
    expect(await kept.release()).toBe("released");
  });

  test("a forced release whose reply is lost still says from whom it took the name", async () => {
    const root = zookeeper.root();
    const through = await zookeeper.proxy();
    const [holder, operator] = [zookeeper.open(root).locks, zookeeper.open(root, through).locks];
    const lease = await holder.acquire("name");
    await operator.inspect("name");
    const lost = through.loseReply({ when: "stuck-0123456789" });
    await lost.inject();
    const released = await operator.forceRelease("name", { why: "stuck-0123456789" });
    expect(lost.struck).toBe(1);
    expect(released).toMatchObject([{ token: lease.token }]);
  });

  test("a node of the session that belongs to no claim is deleted within about a ttl", async () => {
    const root = zookeeper.root();
    const layout = new Layout(root);
    const servers = [zookeeper.address];
    const { clock } = systemRuntime();
    const context = new ZooKeeperContext(
      (session) => openClient({ servers, ...session }),
      clock,
      layout,
    );
    onTestFinished(() => context.sessions.close(true));
    const { client } = (await context.sessions.use(TTL_MS)).id;
    await client.create(layout.name("name"), { mode: "container" });
    // As after a claim that was given up while its request was on the way.
    const claim = { permits: 1, limit: 4, grantId: "given-up-0123456789" };
    const path = layout.claim("name", claim, "permits");
    await client.create(path, { mode: "ephemeral-sequential", data: "{}" });
    await until(
      "it is gone",
      async () => (await zookeeper.nodesOf(root, "name")).length === 0,
      10_000,
    );
    expect(client.state).toBe("connected");
  });

  test("a session that counts as over for a moment is ended: its pings would keep its nodes for ever", async () => {
    const timeoutMs = 2_000;
    const context = new ZooKeeperContext(
      (session) =>
        openClient({ servers: [zookeeper.address], ...session, pingIntervalMs: timeoutMs }),
      systemRuntime().clock,
      new Layout(zookeeper.root()),
    );
    onTestFinished(() => context.sessions.close(true));
    const session = await context.sessions.use(timeoutMs / TIMEOUT_PER_TTL);
    const { client, node } = session.id;
    await client.sync("/");
    await sleep(client.sessionTimeoutMs / 4);
    const answered = client.sync("/");
    await turn();
    // The process stands still, and the reply that would extend the session is in the socket.
    const still = new Int32Array(new SharedArrayBuffer(4));
    while (client.state === "connected") Atomics.wait(still, 0, 0, 10);
    await Promise.allSettled([session.prove(), answered]);
    expect(session.isDead).toBe(true);
    const isGone = async () => (await zookeeper.admin.exists(node)).stat === null;
    await until("its node is gone", isGone, 4 * timeoutMs);
  });

  test("a session whose node is deleted by hand is given up: no other client gets a name before its holder is told", async () => {
    const layout = new Layout(zookeeper.root());
    const { locks } = zookeeper.open(layout.root);
    const { locks: others } = zookeeper.open(layout.root);
    const [one, two] = [await locks.acquire("one"), await locks.acquire("two")];
    for (const child of (await zookeeper.admin.getChildren(layout.sessions)).children) {
      await zookeeper.admin.delete(`${layout.sessions}/${child}`);
    }
    const next = others.acquire("two").then((lease) => ({ lease, wasLost: two.state === "lost" }));
    await expect(one.renew()).rejects.toMatchObject({ code: "LEASE_LOST" });
    const { lease, wasLost } = await next;
    expect(wasLost).toBe(true);
    await lease.release();
  });

  test("old records of forced releases are deleted, in few requests however many there are", async () => {
    const layout = new Layout(zookeeper.root());
    const { admin } = zookeeper;
    const open = (session: SessionOptions) =>
      openClient({ servers: [zookeeper.address], ...session });
    const context = new ZooKeeperContext(open, systemRuntime().clock, layout);
    onTestFinished(() => context.sessions.close(true));
    // Behind its own read of the records.
    await (await context.sessions.use(TTL_MS)).id.client.sync("/");
    const paths = Array.from({ length: 300 }, (_, i) => `${layout.revoked}/name-${i}`);
    await admin.multi(paths.map((path) => ({ op: "create", path, data: "[]" })));
    vi.spyOn(Date, "now").mockReturnValue(Date.now() + 2 * REVOKED_KEPT.ms);
    onTestFinished(() => void vi.restoreAllMocks());
    const count = async () => (await admin.getChildren(layout.revoked)).children.length;
    const before = await zookeeper.server.packets();
    await context.sessions.use(2 * TTL_MS);
    await until("a part is gone", async () => (await count()) <= 300 - 256);
    // A deletion and its reply for each that is gone.
    expect((await zookeeper.server.packets()) - before).toBeLessThan(2 * 256 + 200);
    await context.sessions.use(3 * TTL_MS);
    await until("all are gone", async () => (await count()) === 0);
  });

  test("resizes while many use a semaphore: never more than the highest limit, and the last one holds", async () => {
    const root = zookeeper.root();
    const [one, two] = [zookeeper.open(root).locks, zookeeper.open(root).locks];
    const keeper = await one.semaphore("name", { permits: 4 }).acquire();
    let inUse = 0;
    let most = 0;
    let limit = 4;
    let isOver = false;
    // After a failure, too: closed locks refuse at once, and the users would try again without end.
    onTestFinished(() => {
      isOver = true;
    });
    const use = async (locks: Locks): Promise<void> => {
      while (!isOver) {
        const lease = await locks
          .semaphore("name", { permits: limit })
          .acquire({ wait: 5_000 })
          .catch(() => null);
        if (lease === null) continue;
        most = Math.max(most, ++inUse);
        await sleep(2);
        inUse--;
        await lease.release();
      }
    };
    const users = [one, two, one, two, one, two].map((locks) => use(locks));
    for (const next of [2, 3, 1, 4, 2]) {
      await sleep(100);
      await one.semaphore("name", { permits: limit }).resize(next);
      limit = next;
    }
    expect(most, "the keeper has one of four").toBeLessThanOrEqual(3);
    await sleep(200);
    most = 0;
    await sleep(300);
    await until("others use what is left", () => most > 0, 20_000);
    expect(most, "the keeper has one of two").toBe(1);
    isOver = true;
    await Promise.all(users);
    expect((await one.inspect("name"))?.holders).toHaveLength(1);
    await keeper.release();
  });

  test("close() while a session is being opened leaves none, and the store can be used again", async () => {
    const root = zookeeper.root();
    const through = await zookeeper.proxy();
    const { store, locks } = zookeeper.open(root, through);
    const stall = through.stall("to-client");
    await stall.inject();
    const acquired = locks.acquire("name");
    await until("it connects", () => through.openConnections === 1);
    const closed = locks.close();
    await expect(acquired).rejects.toMatchObject({ code: "CLOSED" });
    await stall.heal();
    await closed;
    await until("no connection is left", () => through.openConnections === 0, 5_000);
    // A claim that was in flight must not open another.
    await sleep(200);
    expect(through.openConnections).toBe(0);
    const again = createLocks(store, { ttl: TTL_MS });
    await (await again.acquire("name")).release();
    await again.close();
    await until("no connection is left", () => through.openConnections === 0, 5_000);
  });

  test("a claim that is refused for its limit does not make claims behind it fail", async () => {
    const root = zookeeper.root();
    const { locks } = zookeeper.open(root);
    const semaphore = locks.semaphore("name", { permits: 4 });
    const holder = await semaphore.acquire();
    // Its client has seen the limit of the holder, and is about to delete it.
    const refused = await openClient({ servers: [zookeeper.address] });
    const claim = { permits: 1, limit: 5, grantId: "refused-0123456789" };
    const path = new Layout(root).claim(NAME, claim, "permits");
    const data = JSON.stringify({ holder: "refused", ttlMs: TTL_MS, atMs: Date.now() });
    await refused.create(path, { mode: "ephemeral-sequential", data });
    const acquired = semaphore.tryAcquire();
    await until("the claim is made", async () => {
      return (await zookeeper.nodesOf(root, NAME)).length === 3;
    });
    await refused.close();
    const lease = await acquired;
    expect(lease?.state).toBe("held");
    await Promise.all([holder.release(), lease?.release()]);
  });

  test("a claim behind a barrier waits for the end of the resize, also if it is the only claim", async () => {
    const root = zookeeper.root();
    const { locks } = zookeeper.open(root);
    await (await locks.acquire("name")).release();
    const resizing = await openClient({ servers: [zookeeper.address] });
    const barrier = await resizing.create(new Layout(root).barrier(NAME), {
      mode: "ephemeral-sequential",
    });
    let isGranted = false;
    const acquired = locks.acquire("name").then((lease) => {
      isGranted = true;
      return lease;
    });
    // Long enough for a claim that does not wait.
    await sleep(300);
    expect(isGranted).toBe(false);
    await resizing.delete(barrier.path);
    await (await acquired).release();
  });

  test("a list has locks, resized semaphores and waiters, and leaves out what is not Holdfast's", async () => {
    const root = zookeeper.root();
    const [one, two] = [zookeeper.open(root).locks, zookeeper.open(root).locks];
    const lock = await one.acquire("lock");
    await (await one.acquire("left")).release();
    const semaphore = one.semaphore("semaphore", { permits: 2 });
    await Promise.all([semaphore.acquire(), semaphore.acquire()]);
    await semaphore.resize(3);
    const waiting = two.acquire("lock");
    await until("it waits", async () => (await one.inspect("lock"))?.waiting === 1);
    const client = await openClient({ servers: [zookeeper.address] });
    const layout = new Layout(root);
    for (const [name, node, data] of [
      ["nodes", "stranger", ""],
      ["data", "1.1.p.id-0000000000", "stranger"],
    ] as const) {
      await client.create(layout.name(`default:${name}`), { mode: "container" });
      await client.create(`${layout.name(`default:${name}`)}/${node}`, { data });
    }
    const all = await two.list();
    expect(all.map(({ name }) => name)).toEqual(["lock", "semaphore"]);
    expect(all[0]).toMatchObject({ waiting: 1, holders: [{ token: lock.token }] });
    expect(all[0]!.waiters).toHaveLength(1);
    expect(all[1]).toMatchObject({ limit: 3, waiting: 0 });
    expect(all[1]!.holders).toHaveLength(2);
    await expect(one.inspect("nodes")).rejects.toThrow(/name "default:nodes" .* "stranger", which/);
    await expect(one.inspect("data")).rejects.toThrow(/node ".*data\/1\.1\.p\.id-0+" in ZooKeeper/);
    expect((await two.list({ limit: 1 })).map(({ name }) => name)).toEqual(["lock"]);
    await lock.release();
    await (await waiting).release();
  });
});
