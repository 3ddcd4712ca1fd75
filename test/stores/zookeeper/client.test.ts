import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Connection } from "../../../src/stores/zookeeper/client/connection.js";
import { CLOSE } from "../../../src/stores/zookeeper/client/operations.js";
import { Request } from "../../../src/stores/zookeeper/client/request.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { ZooKeeperServer } from "../../../src/verify/lab/zookeeper.js";
import {
  CREATOR_ACL,
  digestAcl,
  OPEN_ACL,
  type WatchEvent,
  type ZooKeeperClient,
  type ZooKeeperClientOptions,
} from "../../../src/zookeeper/index.js";
import { runNode } from "../../core/helpers.js";
import { describeWith } from "../../support/needs.js";
import { EventLog, expectCode, openClient, openSession, present } from "../../support/zookeeper.js";

const DIST = fileURLToPath(new URL("../../../dist/zookeeper/index.js", import.meta.url));

describeWith(["zookeeper"], "the ZooKeeper client on a real server", () => {
  let lab: Lab;
  let server: ZooKeeperServer;
  let folders = 0;
  beforeAll(async () => {
    lab = await Lab.open();
    server = (await lab.zookeeper()).servers[0]!;
  });
  afterAll(() => lab?.close());

  const addressOf = ({ address, port }: { address: string; port: number }): string =>
    `${address}:${port}`;

  const open = (options: Partial<ZooKeeperClientOptions> = {}): Promise<ZooKeeperClient> =>
    openClient({ servers: [addressOf(server)], ...options });

  /** A client, and a folder of its own. */
  async function inFolder(
    options: Partial<ZooKeeperClientOptions> = {},
  ): Promise<{ client: ZooKeeperClient; folder: string }> {
    const client = await open(options);
    const folder = `/test-${++folders}`;
    await client.create(folder);
    return { client, folder };
  }

  test("a session has the timeout that the server grants", async () => {
    const log = new EventLog();
    const client = await open({ sessionTimeoutMs: 1, on: log.on });
    expect(client.sessionTimeoutMs).toBe(400);
    expect(client.sessionId).not.toBe(0n);
    expect(client.connection).toMatchObject({ server: addressOf(server) });
    await client.close();
    await client.close();
    expect(log.names).toEqual(["connected", "closed"]);
    await expectCode(client.exists("/"), "CLOSED");
  });

  test("an idle session lives on pings alone", async () => {
    const log = new EventLog();
    const { client, folder } = await inFolder({ sessionTimeoutMs: 600, on: log.on });
    await client.create(`${folder}/own`, { mode: "ephemeral" });
    const other = await open();
    const gone: WatchEvent[] = [];
    await other.exists(`${folder}/own`, { watch: (event) => gone.push(event) });
    await new Promise((resolve) => setTimeout(resolve, 1_500));
    expect([gone, log.names]).toEqual([[], ["connected"]]);
  });

  test("create, read, change, delete, with versions", async () => {
    const { client, folder } = await inFolder();
    const path = `${folder}/node`;
    const { stat: made, reply } = await client.create(path, { data: "ä" });
    expect(made).toMatchObject({ czxid: reply.zxid, version: 0, dataLength: 2 });
    expect((await client.getData(path)).data.toString()).toBe("ä");
    expect((await client.setData(path, Buffer.from([1, 2]), { version: 0 })).stat.version).toBe(1);
    expect([...(await client.getData(path)).data]).toEqual([1, 2]);
    await expectCode(client.setData(path, "", { version: 0 }), "BAD_VERSION");
    await expectCode(client.create(path), "NODE_EXISTS");
    await expectCode(client.create(`${path}/no/parent`), "NO_NODE");
    await client.create(`${path}/child`);
    await expectCode(client.delete(path), "NOT_EMPTY");
    const { children, stat } = await client.getChildren(path);
    expect([children, stat.numChildren, stat.czxid]).toEqual([["child"], 1, made.czxid]);
    expect((await client.exists(`${path}/child`)).stat?.numChildren).toBe(0);
    await client.delete(`${path}/child`);
    await client.sync(path);
    await client.delete(path, { version: 1 });
    expect((await client.exists(path)).stat).toBe(null);
    await expectCode(client.getData(path), "NO_NODE");
  });

  test("nodes of every kind; ephemeral ones end with the session", async () => {
    const { client, folder } = await inFolder();
    const owner = await open();
    const first = await owner.create(`${folder}/a-`, { mode: "ephemeral-sequential" });
    const second = await owner.create(`${folder}/`, { mode: "persistent-sequential" });
    expect(first.path).toBe(`${folder}/a-0000000000`);
    expect(second.path).toBe(`${folder}/0000000001`);
    expect(first.stat.ephemeralOwner).toBe(owner.sessionId);
    await owner.create(`${folder}/e`, { mode: "ephemeral" });
    await owner.create(`${folder}/c`, { mode: "container" });
    await expectCode(owner.create(`${folder}/e/x`), "NO_CHILDREN_FOR_EPHEMERALS");
    const { paths } = await owner.getEphemerals();
    expect(paths.sort()).toEqual([first.path, `${folder}/e`].sort());
    expect((await owner.getEphemerals(`${folder}/a-`)).paths).toEqual([first.path]);
    await owner.close();
    expect((await client.getChildren(folder)).children.sort()).toEqual(["0000000001", "c"]);
  });

  test("requests are executed in the order of the calls, without waiting for replies", async () => {
    const { client, folder } = await inFolder();
    const made = Array.from({ length: 300 }, (_, i) =>
      client.create(`${folder}/n-`, { mode: "persistent-sequential", data: `${i}` }),
    );
    const { children } = await client.getChildren(folder);
    expect(children).toHaveLength(300);
    const paths = (await Promise.all(made)).map(({ path }) => path);
    expect(paths).toEqual([...paths].sort());
    const connections = new Set((await Promise.all(made)).map(({ reply }) => reply.connection));
    expect(connections.size).toBe(1);
  });

  test("multi does all or nothing; its reply's zxid is the czxid of its nodes", async () => {
    const { client, folder } = await inFolder();
    const { results, reply } = await client.multi([
      { op: "create", path: `${folder}/box`, mode: "container" },
      { op: "create", path: `${folder}/box/n-`, mode: "ephemeral-sequential", data: "1" },
      { op: "setData", path: folder, data: "2", version: 0 },
      { op: "check", path: folder, version: 1 },
    ]);
    expect(results[0].path).toBe(`${folder}/box`);
    expect(results[1].path).toBe(`${folder}/box/n-0000000000`);
    expect(results[2].stat.version).toBe(1);
    for (const { path } of [results[0], results[1]]) {
      expect((await client.exists(path)).stat?.czxid).toBe(reply.zxid);
    }
    const refused = client.multi([
      { op: "delete", path: results[1].path },
      { op: "check", path: folder, version: 7 },
      { op: "create", path: `${folder}/never` },
    ]);
    const error = await expectCode(refused, "BAD_VERSION");
    expect(error).toMatchObject({
      part: 1,
      path: folder,
      executed: "no",
      reply: { succeeded: false },
    });
    expect(error.message).toContain(`multi ${JSON.stringify(folder)}:`);
    expect((await client.exists(results[1].path)).stat).not.toBe(null);
  });

  test("multiRead has a result or an error for each part", async () => {
    const { client, folder } = await inFolder();
    await client.create(`${folder}/a`, { data: "1" });
    const { results } = await client.multiRead([
      { op: "getData", path: `${folder}/a` },
      { op: "getData", path: `${folder}/none` },
      { op: "getChildren", path: folder },
    ]);
    expect(results[0]).toMatchObject({ data: Buffer.from("1"), stat: { version: 0 } });
    expect(results[1]).toMatchObject({ code: "NO_NODE", path: `${folder}/none`, part: 1 });
    expect(results[2]).toEqual({ children: ["a"] });
  });

  test("long data goes both ways, and a reply beyond the bound ends only its connection", async () => {
    const { client, folder } = await inFolder();
    const data = Buffer.alloc(1_000_000, "x");
    await client.create(`${folder}/long`, { data });
    expect((await client.getData(`${folder}/long`)).data.equals(data)).toBe(true);
    const log = new EventLog();
    const small = await open({ maxReplyBytes: 10_000, on: log.on });
    const error = await expectCode(small.getData(`${folder}/long`), "CONNECTION_LOSS");
    expect(error.message).toMatch(
      /a reply of 1000\d+ bytes, where 10000 are accepted: raise maxReplyBytes/,
    );
    await log.has("reconnected");
    expect((await small.exists(folder)).stat).not.toBe(null);
  });

  describe("watches", () => {
    const collect = () => {
      const events: string[] = [];
      const watch = ({ type, path }: WatchEvent): void => void events.push(`${type} ${path}`);
      return { events, watch };
    };

    test("of reads are called once", async () => {
      const { client, folder } = await inFolder();
      const { events, watch } = collect();
      const path = `${folder}/a`;
      await client.exists(path, { watch });
      await client.create(path);
      await client.getData(path, { watch });
      await client.getChildren(path, { watch });
      await client.setData(path, "1");
      await client.setData(path, "2");
      await client.create(`${path}/b`);
      await client.delete(`${path}/b`);
      await client.getChildren(path, { watch });
      await client.delete(path);
      await client.sync("/");
      expect(events).toEqual([
        `created ${path}`,
        `data-changed ${path}`,
        `children-changed ${path}`,
        `deleted ${path}`,
      ]);
    });

    test("that are persistent stay until they are removed, here and on the server", async () => {
      const { client, folder } = await inFolder();
      const [node, below] = [collect(), collect()];
      const one = await client.addWatch(`${folder}/a`, {}, node.watch);
      const all = await client.addWatch(folder, { recursive: true }, below.watch);
      expect(await server.ask("wchp")).toContain(`${folder}/a\n`);
      await client.create(`${folder}/a`);
      await client.setData(`${folder}/a`, "1");
      await client.create(`${folder}/a/b`);
      await client.sync("/");
      const [a, b] = [`${folder}/a`, `${folder}/a/b`];
      expect(node.events).toEqual([`created ${a}`, `data-changed ${a}`, `children-changed ${a}`]);
      expect(below.events).toEqual([`created ${a}`, `data-changed ${a}`, `created ${b}`]);
      await Promise.all([one.remove(), all.remove()]);
      expect(await server.ask("wchp")).not.toContain(folder);
      await client.delete(b);
      await client.sync("/");
      expect([node.events.length, below.events.length]).toEqual([3, 3]);
    });

    test("are set again after a reconnect: changes in between are told where the server can", async () => {
      await using proxy = await TcpProxy.open(server);
      const log = new EventLog();
      const { client: other, folder } = await inFolder();
      const client = await open({ servers: [addressOf(proxy)], on: log.on });
      const { events, watch } = collect();
      await Promise.all(["data", "gone", "list"].map((name) => other.create(`${folder}/${name}`)));
      await client.getData(`${folder}/data`, { watch });
      await client.getData(`${folder}/gone`, { watch });
      await client.exists(`${folder}/new`, { watch });
      await client.getChildren(`${folder}/list`, { watch });
      const all = collect();
      await client.addWatch(folder, { recursive: true }, all.watch);
      const cut = proxy.cut();
      await cut.inject();
      await log.has("suspended");
      await other.setData(`${folder}/data`, "1");
      await other.delete(`${folder}/gone`);
      await other.create(`${folder}/new`);
      await other.create(`${folder}/list/item`);
      await cut.heal();
      await log.has("reconnected");
      await client.sync("/");
      expect(events.sort()).toEqual([
        `children-changed ${folder}/list`,
        `created ${folder}/new`,
        `data-changed ${folder}/data`,
        `deleted ${folder}/gone`,
      ]);
      // This watch also gets the events that the server replays for other watches, but none that only it asked for.
      expect(all.events).not.toContain(`created ${folder}/list/item`);
      await other.create(`${folder}/later`);
      await client.sync("/");
      expect(all.events).toContain(`created ${folder}/later`);
    });
  });

  test("chroot: the client sees nothing but its own part of the tree", async () => {
    const { client: outside, folder } = await inFolder();
    const client = await open({ chroot: folder });
    const events: WatchEvent[] = [];
    await client.addWatch("/", { recursive: true }, (event) => events.push(event));
    const { path } = await client.create("/a-", { mode: "ephemeral-sequential" });
    expect(path).toBe("/a-0000000000");
    const { results } = await client.multi([{ op: "create", path: "/b" }]);
    expect(results[0].path).toBe("/b");
    expect((await client.getChildren("/")).children.sort()).toEqual(["a-0000000000", "b"]);
    expect((await client.getEphemerals()).paths).toEqual([path]);
    expect(events.map(({ path: at }) => at)).toEqual([path, "/b"]);
    expect((await outside.exists(`${folder}/b`)).stat).not.toBe(null);
    const lost = await open({ chroot: `${folder}/none` });
    await expectCode(lost.create("/a"), "NO_NODE");
  });

  test("ACLs by digest", async () => {
    const login = { user: "app", password: "S3cr3t" };
    const { client, folder } = await inFolder({ auth: login });
    const [mine, theirs] = [`${folder}/mine`, `${folder}/theirs`];
    await client.create(mine, { data: "1", acl: CREATOR_ACL });
    const { acl, stat } = await client.getAcl(mine);
    expect(acl).toEqual([digestAcl(login)]);
    const reader = { user: "reader", password: "other" };
    await client.create(theirs, {
      acl: [digestAcl(reader, ["read"]), digestAcl(login, ["admin"])],
    });
    const [nobody, other, same] = [
      await open(),
      await open({ auth: reader }),
      await open({ auth: login }),
    ];
    await expectCode(nobody.getData(mine), "NO_AUTH");
    await expectCode(other.setData(theirs, ""), "NO_AUTH");
    await other.getData(theirs);
    await expectCode(nobody.create(`${folder}/no`, { acl: CREATOR_ACL }), "INVALID_ACL");
    expect((await same.getData(mine)).data.toString()).toBe("1");
    await expectCode(client.setAcl(mine, OPEN_ACL, { version: stat.aversion + 1 }), "BAD_VERSION");
    await client.setAcl(mine, OPEN_ACL, { version: stat.aversion });
    await nobody.getData(mine);
  });

  test("the login is repeated on every connection", async () => {
    await using proxy = await TcpProxy.open(server);
    const log = new EventLog();
    const { client, folder } = await inFolder({
      servers: [addressOf(proxy)],
      auth: { user: "a", password: "b" },
      on: log.on,
    });
    await client.create(`${folder}/mine`, { acl: CREATOR_ACL });
    const cut = proxy.cut();
    await cut.inject();
    await cut.heal();
    await log.has("reconnected");
    await client.getData(`${folder}/mine`);
  });

  describe("a session elsewhere", () => {
    /** A session, and a second connection that presents its ticket. */
    async function twice() {
      const { session, log } = await openSession({ servers: [addressOf(server)] });
      return { session, log, thief: (await present(server, session.ticket)) as Connection };
    }

    test("that moved to another connection is taken back", async () => {
      const { session, log } = await twice();
      await log.has("suspended");
      await log.has("reconnected");
      expect(session.state).toBe("connected");
    });

    test("that was ended by another connection is lost", async () => {
      const { log, thief } = await twice();
      const close = new Request<object>(CLOSE, 0, { succeeded() {}, failed() {} });
      thief.send([close as Request], 0);
      await log.has("lost");
      expect(log.reasons.at(-1)).toContain("SESSION_EXPIRED");
    });

    test("is refused by a server that is behind it, and with a wrong password", async () => {
      const { session, thief } = await twice();
      thief.destroy("it has shown that the ticket is good");
      const ahead = { ...session.ticket, lastZxid: 2n ** 62n };
      expect(await present(server, ahead)).toMatch(
        /^the server closed it without granting .* behind/,
      );
      const guessed = { ...session.ticket, password: Buffer.alloc(16) };
      expect(await present(server, guessed)).toBe("expired");
    });
  });

  describe("a process", () => {
    const script = (body: string): string => `
      import { ZooKeeperClient } from ${JSON.stringify(DIST)};
      const client = await ZooKeeperClient.open({ servers: ["${addressOf(server)}"] });
      ${body}
      console.log("done");`;

    test("ends with an idle client, and not while a request is pending", async () => {
      const [idle, busy] = await Promise.all([
        runNode(script("await client.addWatch('/', {}, () => {});")),
        runNode(
          script(`
            for (let i = 0; i < 3; i++) await client.sync("/");
            await client.close();`),
        ),
      ]);
      expect(idle).toMatchObject({ code: 0, out: "done", err: "" });
      expect(busy).toMatchObject({ code: 0, out: "done", err: "" });
    });
  });
});
