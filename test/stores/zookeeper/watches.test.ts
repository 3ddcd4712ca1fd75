import { describe, expect, test } from "vitest";
import { until } from "../../support/worker.js";
import {
  blob,
  expectCode,
  FakeServer,
  int,
  obliging,
  onVirtualClock,
  pass,
  returns,
  Type,
} from "../../support/zookeeper.js";

describe("watches", () => {
  const names = (body: Buffer): string[][] => {
    let at = 8;
    const next = (): number => {
      at += 4;
      return body.readInt32BE(at - 4);
    };
    return Array.from({ length: 5 }, () =>
      Array.from({ length: next() }, () => {
        const length = next();
        at += length;
        return body.subarray(at - length, at).toString();
      }),
    );
  };

  test("are set again after a reconnect, before any other request", async () => {
    const server = await FakeServer.open((connection, request) => {
      const stat = Buffer.alloc(68);
      if (request.xid === null) connection.grant();
      else if (request.type === 4)
        connection.reply(request, { body: Buffer.concat([blob("x"), stat]) });
      else if (request.type === Type.exists) connection.reply(request, { error: -101 });
      else if (request.type === 12)
        connection.reply(request, { body: Buffer.concat([int(0), stat]) });
      else connection.reply(request, { zxid: 5n });
    });
    const { client, log } = await onVirtualClock([server], { chroot: "/root" });
    const events: string[] = [];
    const watch = (name: string) => (event: { type: string; path: string }) =>
      void events.push(`${name} ${event.type} ${event.path}`);
    await client.getData("/data", { watch: watch("data") });
    await client.getData("/gone", { watch: watch("gone") });
    await client.exists("/absent", { watch: watch("absent") });
    await client.getChildren("/list", { watch: watch("list") });
    await client.addWatch("/kept", {}, watch("kept"));
    await client.addWatch("/", { recursive: true }, watch("all"));
    server.last.event(3, "/root/gone");
    await until("the event", () => events.length === 2);
    expect(events).toEqual(["gone data-changed /gone", "all data-changed /gone"]);
    client.on("suspended", () => void client.sync("/"));
    server.last.socket.destroy();
    await log.has("reconnected");
    await until("the request", () => server.last.seen.length === 3);
    const [, restored, other] = server.last.seen;
    expect([restored!.type, restored!.xid, other!.type]).toEqual([105, -8, Type.sync]);
    expect(restored!.body.readBigInt64BE(0)).toBe(5n);
    expect(names(restored!.body)).toEqual([
      ["/root/data"],
      ["/root/absent"],
      ["/root/list"],
      ["/root/kept"],
      ["/root"],
    ]);
  });

  test("a path has one kind of persistent watch", async () => {
    const server = await FakeServer.open();
    const { client } = await onVirtualClock([server]);
    const listener = (): void => {};
    const watch = await client.addWatch("/a", { recursive: true }, listener);
    await expectCode(
      client.addWatch("/a", {}, () => {}),
      "INVALID_ARGUMENT",
    );
    await expectCode(client.getData("/a", { watch: () => {} }), "INVALID_ARGUMENT");
    const second = await client.addWatch("/a", { recursive: true }, listener);
    await watch.remove();
    // The second one still needs it.
    expect(server.requests(18)).toHaveLength(0);
    await second.remove();
    expect(server.requests(18)).toHaveLength(1);
    await client.addWatch("/a", {}, listener);
  });

  test("many of them are set again in several requests, each far below the server's limit", async () => {
    const server = await FakeServer.open();
    const { client, clock, log } = await onVirtualClock([server]);
    const paths = Array.from({ length: 2_000 }, (_, i) => `/${"x".repeat(200)}-${i}`);
    await Promise.all(paths.map((path) => client.addWatch(path, {}, () => {})));
    server.last.socket.destroy();
    await log.has("suspended");
    await returns(clock, log);
    await client.sync("/");
    const restored = server.requests(105);
    expect(restored.length).toBeGreaterThan(2);
    expect(restored.flatMap(({ body }) => names(body)[3])).toEqual(paths);
    for (const { body } of restored) expect(body.length).toBeLessThan(200_000);
  });

  test("no path is too long to be set again", async () => {
    const server = await FakeServer.open();
    const { client, clock, log } = await onVirtualClock([server], {
      chroot: `/${"r".repeat(60_000)}`,
    });
    await expectCode(
      client.addWatch(`/${"ä".repeat(65_535)}`, {}, () => {}),
      "INVALID_ARGUMENT",
    );
    const paths = ["a", "b", "c"].map((one) => `/${one.repeat(65_534)}`);
    await Promise.all(paths.map((path) => client.addWatch(path, {}, () => {})));
    server.last.socket.destroy();
    await log.has("suspended");
    await returns(clock, log);
    await client.sync("/");
    const restored = server.requests(105);
    expect(restored.flatMap(({ body }) => names(body)[3])).toHaveLength(3);
    for (const { body } of restored) expect(body.length).toBeLessThan(0xfffff);
  });

  test("if a server refuses to set them again, its connection is of no use", async () => {
    const server = await FakeServer.open();
    const { client, clock, log } = await onVirtualClock([server]);
    await client.addWatch("/a", {}, () => {});
    server.handler = (connection, request) =>
      request.type === 105
        ? connection.reply(request, { error: -6 })
        : obliging(connection, request);
    server.last.socket.destroy();
    await log.has("suspended", 2);
    expect(log.reasons.at(-1)).toContain("refused setWatches (UNIMPLEMENTED)");
    server.handler = obliging;
    await pass(clock, 500);
    await log.has("reconnected", 2);
  });
});
