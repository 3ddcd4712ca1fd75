import { expect, onTestFinished, test } from "vitest";
import { connect, createLocks, StoreUnavailableError } from "../../../src/index.js";
import { zookeeperStore } from "../../../src/stores/zookeeper/index.js";
import { Layout } from "../../../src/stores/zookeeper/layout.js";
import { TurnRequests } from "../../../src/stores/zookeeper/turn-requests.js";
import { CREATOR_ACL, type ZooKeeperClient } from "../../../src/zookeeper/index.js";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";
import { openClient } from "../../support/zookeeper.js";
import { OneZooKeeper, TTL_MS } from "../../support/zookeeper-store.js";

/** "name" in the store. */
const NAME = "default:name";

describeWith(["zookeeper"], "the ZooKeeper store's requests", () => {
  const zookeeper = OneZooKeeper.forAll();

  async function requests(names: readonly string[]) {
    const client = await openClient({ servers: [zookeeper.address] });
    const layout = new Layout(zookeeper.root());
    await client.create(layout.root);
    await client.create(layout.names);
    for (const name of names) await client.create(layout.name(name), { mode: "container" });
    let sent = 0;
    const counted = new Proxy(client, {
      get(target, key) {
        const value: unknown = Reflect.get(target, key);
        if (typeof value !== "function") return value;
        return (...args: unknown[]) => {
          sent++;
          return value.apply(target, args);
        };
      },
    }) as ZooKeeperClient;
    const turn = new TurnRequests(counted, layout);
    const create = (name: string, id: string) =>
      turn.create(name, [
        {
          op: "create",
          path: layout.claim(name, { permits: 1, limit: 1, grantId: id }, "permits"),
          mode: "ephemeral-sequential",
        },
      ]);
    return { turn, create, sent: () => sent };
  }

  test("of one turn: one for the writes, and one for the reads, which include these writes", async () => {
    const names = ["a", "b", "c"];
    const { turn, create, sent } = await requests(names);
    const writes = names.map((name) => create(name, "id"));
    const reads = await Promise.all(names.map((name) => turn.readName(name)));
    expect(sent()).toBe(2);
    const written = await Promise.all(writes);
    expect(new Set(written.map(({ zxid }) => zxid)).size).toBe(1);
    expect(reads.map(({ children }) => children.length)).toEqual([1, 1, 1]);
  });

  test("two claims on one name have tokens of their own, in their order", async () => {
    const { create } = await requests(["a", "b"]);
    const [first, other, second] = await Promise.all([
      create("a", "first"),
      create("b", "other"),
      create("a", "second"),
    ]);
    expect(first.zxid).toBe(other.zxid);
    expect(second.zxid).toBeGreaterThan(first.zxid);
  });

  test("a write that is refused does not fail the others of its turn", async () => {
    const { turn, create } = await requests(["a", "b"]);
    const outcomes = await Promise.allSettled([
      create("a", "id"),
      create("without a container", "id"),
      create("b", "id"),
    ]);
    expect(outcomes.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
    expect((await turn.readName("a")).children).toHaveLength(1);
  });

  test("a client with a password makes nodes that are its user's alone, and others are refused with the reason", async () => {
    const root = zookeeper.root();
    const servers = [zookeeper.address];
    const auth = { user: "app", password: "secret" };
    const own = createLocks(zookeeperStore({ servers, root, auth }), { ttl: TTL_MS });
    const others = createLocks(zookeeperStore({ servers, root }), { ttl: TTL_MS });
    onTestFinished(async () => {
      await own.close();
      await others.close();
    });
    await own.acquire("name");
    const admin = await openClient({ servers, auth });
    const layout = new Layout(root);
    for (const path of [root, layout.names, layout.name(NAME)]) {
      const { acl } = await admin.getAcl(path);
      expect(acl.map(({ scheme }) => scheme)).toEqual(["digest"]);
      expect(acl[0]!.permissions).toEqual(CREATOR_ACL[0]!.permissions);
    }
    const refused = await others.tryAcquire("name").catch((error: unknown) => error);
    expect(refused).toBeInstanceOf(StoreUnavailableError);
    expect(refused).toMatchObject({ retryable: false });
    expect(String(refused)).toContain("all clients need the same user");
  });

  test("an attempt that is about to be withdrawn does not make the next one fail", async () => {
    const root = zookeeper.root();
    const [holder, first, second] = [1, 2, 3].map(() => zookeeper.open(root).locks);
    for (const locks of [first!, second!]) await (await locks.acquire("before")).release();
    let [busy, granted] = [0, 0];
    for (let round = 0; round < 60; round++) {
      const lease = await holder!.acquire("name");
      const trying = first!.tryAcquire("name");
      await lease.release();
      const leases = await Promise.all([trying, second!.tryAcquire("name")]);
      for (const one of leases) {
        if (one === null) busy++;
        else granted++;
        await one?.release();
      }
      expect(leases, `round ${round}`).not.toEqual([null, null]);
    }
    // Both outcomes were tried.
    expect(busy * granted).toBeGreaterThan(0);
  });

  test("a session whose node somebody deleted ends, and leaves no name held", async () => {
    const root = zookeeper.root();
    const { locks } = zookeeper.open(root);
    const lease = await locks.acquire("name");
    const admin = await openClient({ servers: [zookeeper.address] });
    const { sessions } = new Layout(root);
    for (const child of (await admin.getChildren(sessions)).children) {
      await admin.delete(`${sessions}/${child}`);
    }
    await until("it is lost", () => lease.state === "lost");
    await until("its node is gone", async () => (await zookeeper.nodesOf(root, NAME)).length === 0);
    await (await locks.acquire("name")).release();
  });

  test("a root that is made by a URL with a user is that user's alone", async () => {
    const root = zookeeper.root();
    const locks = await connect(`zookeeper://user:password@${zookeeper.address}${root}`);
    onTestFinished(() => locks.close());
    await (await locks.acquire("name")).release();
    const auth = { user: "user", password: "password" };
    const own = await openClient({ servers: [zookeeper.address], auth });
    const { names, sessions, revoked } = new Layout(root);
    for (const path of [root, names, sessions, revoked]) {
      const { acl } = await own.getAcl(path);
      expect(acl.map(({ scheme }) => scheme)).toEqual(["digest"]);
    }
  });
});
