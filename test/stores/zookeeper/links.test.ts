import { expect, onTestFinished, test, vi } from "vitest";
import { systemRuntime } from "../../../src/core/runtime.js";
import { ClosedError, createLocks, type Locks } from "../../../src/index.js";
import { ZooKeeperError } from "../../../src/stores/zookeeper/client/errors.js";
import { ZooKeeperContext } from "../../../src/stores/zookeeper/context.js";
import type { ZooKeeperStore } from "../../../src/stores/zookeeper/index.js";
import { Layout, readClaim } from "../../../src/stores/zookeeper/layout.js";
import type { OpenClient, SessionOptions } from "../../../src/stores/zookeeper/link.js";
import { Operations } from "../../../src/stores/zookeeper/operations.js";
import { release } from "../../../src/stores/zookeeper/releases.js";
import { ZooKeeperClient } from "../../../src/zookeeper/index.js";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";
import { deaf, FakeServer, openClient } from "../../support/zookeeper.js";
import { OneZooKeeper, TTL_MS } from "../../support/zookeeper-store.js";

/** "name" in the store. */
const NAME = "default:name";
/** Its session counts as connected for 30 s after its connection has died without a sign. */
const LONG_MS = 90_000;

describeWith(["zookeeper"], "the sessions of a store on ZooKeeper", () => {
  const zookeeper = OneZooKeeper.forAll();

  /** Closed with the test, also if the store can't be reached then. */
  function locksOn(store: ZooKeeperStore, ttl: number): Locks {
    const locks = createLocks(store, { ttl, wait: 20_000 });
    onTestFinished(() => locks.close().catch(() => {}));
    return locks;
  }

  function contextOn(root: string, open?: OpenClient): ZooKeeperContext {
    const byDefault: OpenClient = (session) => openTo(session);
    const context = new ZooKeeperContext(
      open ?? byDefault,
      systemRuntime().clock,
      new Layout(root),
    );
    onTestFinished(() => context.links.close());
    return context;
  }

  const openTo = (session: SessionOptions) =>
    openClient({ servers: [zookeeper.address], ...session });

  test("a session whose connection is dead holds up no request that another can send", async () => {
    const root = zookeeper.root();
    const through = await zookeeper.proxy();
    const { store } = zookeeper.open(root, through);
    const [dead, alive] = [locksOn(store, LONG_MS), locksOn(store, TTL_MS)];
    await dead.acquire("dead");
    const halfOpen = through.leaveHalfOpen();
    await halfOpen.inject();
    const lease = await alive.acquire("name");
    const [info, listed] = await Promise.all([alive.inspect("name"), alive.list()]);
    expect(info?.holders).toMatchObject([{ token: lease.token }]);
    expect(listed.map(({ name }) => name)).toEqual(["dead", "name"]);
    // The rest of these: whether the id of a lost claim was revoked, and a claim that this store did not make.
    const stranger = { name: NAME, grantId: "stranger-0123456789" };
    expect(await store.release([stranger])).toEqual([{ kind: "lost", reason: "superseded" }]);
    let changes = 0;
    onTestFinished(store.observe(NAME, () => changes++));
    await until("it observes", () => changes > 0);
    const resized = await alive.semaphore("permits", { permits: 2 }).acquire();
    await alive.semaphore("permits", { permits: 2 }).resize(3);
    await resized.release();
    expect(await alive.forceRelease("name", { why: "a test" })).toMatchObject([
      { token: lease.token },
    ]);
    await halfOpen.heal();
  }, 20_000);

  test("a request whose session ends or loses its connection is sent once more under another", async () => {
    const context = contextOn(zookeeper.root());
    const { links, layout } = context;
    const { locks } = zookeeper.open(layout.root);
    const lease = await locks.acquire("name");
    const operations = new Operations(links, layout);
    const endAfterRead = async (end: (link: Awaited<ReturnType<typeof links.any>>) => unknown) => {
      const link = await links.any();
      const read = link.requests.readData.bind(link.requests);
      const ended = vi.spyOn(link.requests, "readData").mockImplementationOnce(async (path) => {
        await end(link);
        return read(path);
      });
      return { link, ended };
    };
    const { link, ended } = await endAfterRead((one) => links.end(one));
    const info = await operations.inspect(NAME);
    expect(ended).toHaveBeenCalled();
    expect(info?.holders).toMatchObject([{ token: lease.token }]);
    expect(await links.any()).not.toBe(link);
    await endAfterRead((one) => links.end(one));
    const by = { holder: "operator", why: "a test" };
    expect(await operations.revoke(NAME, by)).toMatchObject([{ token: lease.token }]);
  });

  test.each(["CONNECTION_LOSS", "OPERATION_TIMEOUT", "SESSION_MOVED", "SESSION_EXPIRED"] as const)(
    "a release of a claim that this store did not make is sent once more after %s",
    async (code) => {
      const context = contextOn(zookeeper.root());
      const { locks } = zookeeper.open(context.layout.root);
      await locks.acquire("name");
      const [node] = await zookeeper.nodesOf(context.layout.root, NAME);
      const { grantId } = readClaim(node!)!;
      const { requests } = await context.links.any();
      const failed = vi.spyOn(requests, "delete");
      failed.mockRejectedValueOnce(new ZooKeeperError(code, { executed: "unknown" }));
      expect(await release(context, [{ name: NAME, grantId }])).toEqual(["released"]);
      expect(failed).toHaveBeenCalledTimes(2);
      expect(await zookeeper.nodesOf(context.layout.root, NAME)).toEqual([]);
    },
  );

  test("one session more is opened at most, however often the connection is lost", async () => {
    const through = await zookeeper.proxy();
    let opened = 0;
    const { links, layout } = contextOn(zookeeper.root(), (session) => {
      opened++;
      return openClient({ servers: [`${through.address}:${through.port}`], ...session });
    });
    const operations = new Operations(links, layout);
    const { client } = await links.any();
    for (let cut = 1; cut <= 3; cut++) {
      const lost = through.cut();
      await lost.inject();
      await until("it is noticed", () => client.state === "suspended");
      const inspected = operations.inspect(NAME);
      await lost.heal();
      expect(await inspected).toBeNull();
      expect((await links.any()).client).toBe(client);
    }
    expect(opened).toBe(1);
  }, 30_000);

  test("a session that was opened for a request ends as soon as one with claims answers", async () => {
    const context = contextOn(zookeeper.root());
    const { links } = context;
    const spare = await links.any();
    const session = await links.begin(TTL_MS);
    await session.client.sync("/");
    await until("it is closed", () => spare.client.state === "closed");
    expect(session.client.state).toBe("connected");
    expect(await links.any()).toBe(session);
  });

  test("its requests are not disturbed by that", async () => {
    const { links } = contextOn(zookeeper.root());
    await links.use(async (spare) => {
      const session = await links.begin(TTL_MS);
      await session.client.sync("/");
      expect(await links.any()).toBe(session);
      await spare.client.sync("/");
      expect(spare.client.state).toBe("connected");
    });
  });

  test("its observers go on under the session with claims", async () => {
    const root = zookeeper.root();
    const through = await zookeeper.proxy();
    const { store, locks } = zookeeper.open(root, through);
    let changes = 0;
    onTestFinished(store.observe(NAME, () => changes++));
    await until("it observes", () => changes > 0);
    await locks.acquire("other");
    await until("one session is left", () => through.openConnections === 1);
    // Called once when the observation has begun again.
    await until("it observes again", () => changes > 1);
    const before = changes;
    await zookeeper.open(root).locks.acquire("name");
    await until("the change is observed", () => changes > before);
  });

  test("a session of a resize, which is about to end, serves nothing else", async () => {
    const { links } = contextOn(zookeeper.root());
    const own = await links.open();
    const other = await links.any();
    expect(other).not.toBe(own);
    expect(await links.any(), "one is enough").toBe(other);
  });

  test("Locks that open the store while it closes can use it, also if the server is silent", async () => {
    const through = await zookeeper.proxy();
    const { store, locks } = zookeeper.open(zookeeper.root(), through);
    await (await locks.acquire("name")).release();
    const silence = through.swallow("to-client");
    await silence.inject();
    const close = store.close.bind(store);
    let again: Locks | undefined;
    vi.spyOn(store, "close").mockImplementationOnce(() => {
      const closing = close();
      again = locksOn(store, TTL_MS);
      return closing;
    });
    await locks.close();
    await silence.heal();
    const lease = await again!.acquire("name");
    expect(await lease.release()).toBe("released");
  });

  test("transactions of other sessions while one begins are not taken for a loss of data", async () => {
    let meanwhile = async (): Promise<void> => {};
    const context = contextOn(zookeeper.root(), async (session) => {
      const client = await openTo(session);
      const create = client.create.bind(client);
      client.create = async (path, options) => {
        const created = await create(path, options);
        if (options?.mode === "ephemeral") await meanwhile();
        return created;
      };
      return client;
    });
    const { links, layout } = context;
    const first = await links.begin(TTL_MS);
    meanwhile = async () => {
      await first.client.create(`${layout.root}/later`);
      await links.end(first);
    };
    const second = await links.begin(LONG_MS);
    expect(second.client.lastZxid).toBeLessThan(first.client.lastZxid);
  });
});

test.each([
  { server: "accepts connections and says nothing", handler: () => {} },
  { server: "grants sessions and says nothing more", handler: deaf },
])(
  "close() ends the sessions that are being opened on a server that $server",
  async ({ handler }) => {
    const server = await FakeServer.open(handler);
    const open: OpenClient = (session) =>
      ZooKeeperClient.open({ servers: [server.name], ...session });
    const { links } = new ZooKeeperContext(open, systemRuntime().clock, new Layout("/root"));
    const opening = Promise.allSettled([links.any(), links.begin(TTL_MS)]);
    await until("both connect", () => server.requests(null).length === 2);
    const startMs = performance.now();
    await links.close();
    for (const one of await opening) {
      expect(one).toMatchObject({ status: "rejected", reason: expect.any(ClosedError) });
    }
    await until("both are closed", () =>
      server.connections.every(({ socket }) => socket.destroyed),
    );
    // An attempt to open a session, and a request, would take 10 s.
    expect(performance.now() - startMs).toBeLessThan(8_000);
  },
);
