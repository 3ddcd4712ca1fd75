import {
  afterAll,
  beforeAll,
  describe,
  expect,
  onTestFinished,
  type TestContext,
  test,
} from "vitest";
import { fenceCases } from "../../src/conformance/fences.js";
import { StaleTokenError, StoreUnavailableError } from "../../src/core/errors.js";
import {
  type ZooKeeperFence,
  type ZooKeeperTx,
  zookeeperFence,
} from "../../src/fence/zookeeper.js";
import { listFences } from "../../src/fences.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { runCase } from "../../src/testing.js";
import { TcpProxy } from "../../src/verify/faults/proxy.js";
import { Lab } from "../../src/verify/lab/lab.js";
import type { ZooKeeperServer } from "../../src/verify/lab/zookeeper.js";
import {
  digestAcl,
  type MultiPart,
  ZooKeeperClient,
  ZooKeeperError,
} from "../../src/zookeeper/index.js";
import { realSubject } from "../conformance/subjects.js";
import { rejection } from "../core/helpers.js";
import { describeWith } from "../support/needs.js";
import {
  type Backend,
  cellOf,
  closedAfterTest,
  committedTests,
  exclusive,
  interleaved,
  subjectOf,
} from "./committed.js";
import { suiteOf } from "./suite.js";

const setTo = (path: string, data: string): MultiPart => ({ op: "setData", path, data });

describeWith(["zookeeper"], "the fence in ZooKeeper", () => {
  let lab: Lab;
  let server: ZooKeeperServer;
  let client: ZooKeeperClient;
  let names = 0;

  beforeAll(async () => {
    lab = await Lab.open();
    server = (await lab.zookeeper()).servers[0]!;
    client = await ZooKeeperClient.open({ servers: servers() });
  });
  afterAll(async () => {
    await client?.close();
    await lab?.close();
  });

  const servers = (): string[] => [`${server.address}:${server.port}`];
  const isRefused = (error: unknown): false => {
    expect(error).toMatchObject({ code: "BAD_VERSION" });
    return false;
  };

  /** The data and the version of a node; null if there is none. */
  const get = async (path: string): Promise<[data: string, version: number] | null> => {
    const { stat } = await client.exists(path);
    if (stat === null) return null;
    const found = await client.getData(path);
    return [found.data.toString(), found.stat.version];
  };

  /** A resource, the node of its fence, and a node of the user's with the data "0". */
  async function fresh(): Promise<{
    fence: ZooKeeperFence;
    resource: string;
    node: string;
    data: string;
  }> {
    const resource = `resource-${++names}`;
    const data = `/data-${names}`;
    await client.create(data, { data: "0" });
    return { fence: zookeeperFence(client), resource, node: `/holdfast-fence/${resource}`, data };
  }

  async function proxied({
    onTestFinished,
  }: TestContext): Promise<{ proxy: TcpProxy; through: ZooKeeperClient }> {
    const proxy = await TcpProxy.open(server);
    onTestFinished(() => proxy.close());
    const through = await ZooKeeperClient.open({
      servers: [`${proxy.address}:${proxy.port}`],
      requestTimeoutMs: 2_000,
    });
    onTestFinished(() => through.close());
    return { proxy, through };
  }

  const backend: Backend<ZooKeeperClient, ZooKeeperTx> = {
    fence: (by, place) => zookeeperFence(by, place === undefined ? {} : { root: `/at/${place}` }),
    client: () => client,
    connect: async () => closedAfterTest(await ZooKeeperClient.open({ servers: servers() })),
    // The reply to `sync` says nothing that a single server does not know.
    interleave: (scheduler) => interleaved(client, scheduler, ["sync"]),
    create: async (key) => void (await client.create(`/${key}`, { data: "0" })),
    read: async (by, key) => (await by.getData(`/${key}`)).data.toString(),
    remove: async (key) => void (await client.delete(`/${key}`)),
    newTx: () => [],
    put: (tx, key, text) => void tx.push(setTo(`/${key}`, text)),
    clear: (tx) => void tx.splice(0),
    send: (tx) => client.multi(tx).then(() => true, isRefused),
    orderOf: (result) => (result as { reply: { zxid: bigint } }).reply.zxid,
    keyOf: (resource, place) =>
      `${place === undefined ? "holdfast-fence" : `at/${place}`}/${resource}`,
    strange: {
      later: ["2:1", "2:x", "10:1", "0:"],
      foreign: ["", "hello", "1:", "1:5x", "1:-5", "00000000000000000001"],
    },
    tellsTime: true,
    names: ['"', "ä", "."],
  };

  describe("as every fence", () => suiteOf(async () => subjectOf(backend)));
  committedTests(backend);

  for (const one of fenceCases) {
    test.concurrent(`conformance: ${one.name}`, async () => {
      const store = memoryStore();
      const subject = { ...realSubject(async () => store), fence: () => cellOf(backend) };
      expect(await runCase(one, subject)).toBe("passed");
    });
  }

  test("is listed by the URL of the servers", async () => {
    const resource = `listed-${++names}`;
    await zookeeperFence(client).enter(undefined, resource, exclusive(7n));
    const listed = await listFences(`zookeeper://${servers()[0]}`, { prefix: resource });
    expect(listed).toMatchObject([{ resource, highest: 7n, enteredAtMs: expect.any(Number) }]);
  });

  test("keeps one persistent node for a resource", async () => {
    const { fence, resource, node } = await fresh();
    await fence.enter(undefined, resource, exclusive(42n));
    expect(await get(node)).toEqual(["1:42", 0]);
    expect((await client.exists(node)).stat).toMatchObject({ ephemeralOwner: 0n });
    const most = 2n ** 63n - 1n;
    await fence.enter(undefined, resource, exclusive(most));
    expect(await get(node)).toEqual([`1:${most}`, 1]);
    const tx: ZooKeeperTx = [];
    await fence.guard(tx, resource, exclusive(most), { strict: true });
    expect((await fence.commit(tx)).results).toEqual([{}]);
  });

  test("a part of the user's own that fails is the user's error, unless the fence refuses too", async () => {
    const { fence, resource, data } = await fresh();
    const tx: ZooKeeperTx = [{ op: "setData", path: data, data: "mine", version: 7 }];
    await fence.guard(tx, resource, exclusive(5n));
    const own = await rejection(fence.commit(tx));
    expect(own).toBeInstanceOf(ZooKeeperError);
    expect(own).toMatchObject({ code: "BAD_VERSION", part: 0, path: data });
    await fence.enter(undefined, resource, exclusive(6n));
    expect(await rejection(fence.commit(tx))).toBeInstanceOf(StaleTokenError);
    tx.splice(0, tx.length, setTo(data, "mine"));
    const next: ZooKeeperTx = [setTo(data, "next")];
    await fence.guard(next, resource, exclusive(6n), { strict: true });
    const { results, reply } = await fence.commit(next);
    expect(results).toMatchObject([{ stat: { version: 1 } }, {}]);
    expect(reply.isWrite).toBe(true);
  });

  test("a transaction of a shared holder passes although another one has raised the floor meanwhile", async () => {
    const { fence, resource, data } = await fresh();
    const tx = [setTo(data, "shared")];
    await fence.guard(tx, resource, { token: 9n, floor: 5n });
    await fence.enter(undefined, resource, { token: 10n, floor: 7n });
    expect(await rejection(client.multi(tx))).toMatchObject({ code: "BAD_VERSION" });
    await fence.commit(tx);
    expect(await get(data)).toEqual(["shared", 1]);
    await fence.enter(undefined, resource, { token: 11n, floor: 10n });
    expect(await rejection(fence.commit(tx))).toBeInstanceOf(StaleTokenError);
  });

  test("a guard without a transaction, and an entry that is there already, are confirmed by a write", async () => {
    const { resource } = await fresh();
    const sent: string[] = [];
    const fence = zookeeperFence({
      create: (...args) => client.create(...args),
      getChildren: (...args) => client.getChildren(...args),
      sync: (...args) => client.sync(...args),
      getData: (...args) => {
        sent.push("read");
        return client.getData(...args);
      },
      multi: (parts) => {
        sent.push(...parts.map(({ op }) => op));
        return client.multi(parts);
      },
    });
    const requestsOf = async (step: () => Promise<unknown>): Promise<string> => {
      sent.length = 0;
      await step();
      return sent.join(" ");
    };
    const lease = exclusive(5n);
    expect(await requestsOf(() => fence.enter(undefined, resource, lease))).toBe("read create");
    expect(await requestsOf(() => fence.enter(undefined, resource, lease))).toBe("read check");
    expect(await requestsOf(() => fence.guard(undefined, resource, lease))).toBe("read check");
    const later = exclusive(6n);
    expect(await requestsOf(() => fence.enter(undefined, resource, later))).toBe("read setData");
    const tx: ZooKeeperTx = [];
    expect(await requestsOf(() => fence.guard(tx, resource, later))).toBe("read");
    expect(await requestsOf(() => fence.commit(tx))).toBe("check");
  });

  test.concurrent("says unavailable when ZooKeeper can't be reached, and never stale", async (context) => {
    const { resource } = await fresh();
    const { proxy, through } = await proxied(context);
    const fence = zookeeperFence(through);
    await proxy.cut().inject();
    const down = await rejection(fence.enter(undefined, resource, exclusive(1n)));
    expect(down).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: true });
    await through.close();
    const closed = await rejection(fence.highest(undefined, resource));
    expect(closed).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
    expect(closed.message).toMatch(/^the fence can't read: .*the client is closed/);
  });

  test("refuses a node whose version has wrapped around: ZooKeeper takes -1 for any version", async () => {
    const { resource } = await fresh();
    await zookeeperFence(client).enter(undefined, resource, exclusive(1n));
    const wrapped = zookeeperFence({
      create: (...args) => client.create(...args),
      getChildren: (...args) => client.getChildren(...args),
      sync: (...args) => client.sync(...args),
      multi: (parts) => client.multi(parts),
      getData: async (path) => {
        const { stat, ...rest } = await client.getData(path);
        return { ...rest, stat: { ...stat, version: -1 } };
      },
    });
    const tx: ZooKeeperTx = [];
    expect(await rejection(wrapped.guard(tx, resource, exclusive(1n)))).toMatchObject({
      code: "UNSUPPORTED",
    });
    expect(tx).toEqual([]);
  });

  test("enters once, even if a reply is lost", async (context) => {
    const { node, resource } = await fresh();
    const { proxy, through } = await proxied(context);
    const fence = zookeeperFence(through);
    for (const [i, token] of [500n, 501n].entries()) {
      const lose = proxy.loseReply({ when: `1:${token}` });
      await lose.inject();
      await fence.enter(undefined, resource, exclusive(token));
      expect(lose.struck).toBe(1);
      await lose.heal();
      expect(await get(node)).toEqual([`1:${token}`, i]);
    }
    expect(await rejection(fence.enter(undefined, resource, exclusive(500n)))).toBeInstanceOf(
      StaleTokenError,
    );
  });

  test("reports a lost reply to commit or reset as such, and sends nothing again", async (context) => {
    const { fence, node, resource, data } = await fresh();
    await fence.enter(undefined, resource, exclusive(500n));
    const { proxy, through } = await proxied(context);
    const losing = zookeeperFence(through);
    const tx: ZooKeeperTx = [setTo(data, "once, or not at all")];
    await losing.guard(tx, resource, exclusive(500n));
    const lost = async (when: string, step: () => Promise<unknown>): Promise<Error> => {
      const lose = proxy.loseReply({ when });
      await lose.inject();
      const error = await rejection(step());
      expect(lose.struck).toBe(1);
      await lose.heal();
      return error;
    };
    const error = await lost("once, or", () => losing.commit(tx));
    expect(error).toBeInstanceOf(StoreUnavailableError);
    expect(error).toMatchObject({ retryable: false, cause: { executed: "unknown" } });
    expect(error.message).toMatch(/^the fence can't commit: .*may have been executed/);
    expect(await get(data)).toEqual(["once, or not at all", 1]);
    const reset = await lost("1:222", () => losing.reset(undefined, resource, 222n));
    expect(reset.message).toMatch(/can't reset: .*may have been executed/);
    expect(await get(node)).toEqual(["1:222", 1]);
  });

  test("resets by itself over any value, and in a transaction only if nobody enters meanwhile", async () => {
    const { fence, resource, data } = await fresh();
    await fence.reset(undefined, resource, 50n);
    await fence.reset(undefined, resource, 40n);
    expect(await fence.highest(undefined, resource)).toBe(40n);
    const step = async (): Promise<ZooKeeperTx> => {
      const tx = [setTo(data, "moved")];
      await fence.reset(tx, resource, 3n);
      return tx;
    };
    const late = await step();
    await fence.enter(undefined, resource, exclusive(60n));
    expect(await rejection(fence.commit(late))).toMatchObject({ code: "BAD_VERSION", part: 1 });
    expect(await fence.highest(undefined, resource)).toBe(60n);
    const tx = await step();
    const after = await rejection(fence.guard(tx, resource, exclusive(60n)));
    expect(after.message).toMatch(/call guard before reset/);
    await fence.commit(tx);
    expect(await fence.highest(undefined, resource)).toBe(3n);
    expect(await get(data)).toEqual(["moved", 1]);
    const unknown = await fresh();
    const first: ZooKeeperTx = [];
    await unknown.fence.reset(first, unknown.resource, 9n);
    await unknown.fence.commit(first);
    expect(await get(unknown.node)).toEqual(["1:9", 0]);
  });

  test("its nodes have the rights that it is given, and a user without them is refused for good", async () => {
    const auth = { user: "app", password: "secret" };
    const app = await ZooKeeperClient.open({ servers: servers(), auth });
    onTestFinished(() => app.close());
    const options = { root: "/guarded/fence", acl: [digestAcl(auth)] };
    await zookeeperFence(app, options).enter(undefined, "r", exclusive(1n));
    const stranger = zookeeperFence(client, options);
    for (const step of [
      () => stranger.enter(undefined, "r", exclusive(2n)),
      () => stranger.enter(undefined, "another", exclusive(2n)),
    ]) {
      const error = await rejection(step());
      expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
      expect(error.message).toMatch(/ACL/);
    }
    expect(await zookeeperFence(app, options).highest(undefined, "r")).toBe(1n);
  });

  test("makes its root again if somebody deleted it", async () => {
    const fence = zookeeperFence(client, { root: "/deleted" });
    await fence.enter(undefined, "a", exclusive(1n));
    await client.delete("/deleted/a");
    await client.delete("/deleted");
    await fence.enter(undefined, "b", exclusive(2n));
    expect(await get("/deleted/b")).toEqual(["1:2", 0]);
  });

  test("keeps its numbers below the root that it is given", async () => {
    const atTop = zookeeperFence(client, { root: "/" });
    await atTop.enter(undefined, "at the top", exclusive(3n));
    expect(await get("/at%20the%20top")).toEqual(["1:3", 0]);
  });

  test("refuses bad parts, clients and options", async () => {
    const { fence, resource } = await fresh();
    const tx: ZooKeeperTx = [];
    await fence.guard(tx, resource, exclusive(1n));
    const error = await rejection(fence.commit(Object.assign(tx, { 1: { op: "fly" } })));
    expect(error.message).toMatch(/op of a part/);
    expect(() => zookeeperFence(client, { root: "fence" })).toThrow(/root/);
    expect(() => zookeeperFence(client, { roots: "/x" } as never)).toThrow(/no option "roots"/);
    expect(() => zookeeperFence({} as never)).toThrow(/ZooKeeperClient\.open/);
  });
});
