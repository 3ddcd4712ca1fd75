import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { createLocks } from "../../../src/index.js";
import { zookeeperStore } from "../../../src/stores/zookeeper/index.js";
import { freePort } from "../../../src/verify/lab/ports.js";
import { ZooKeeperClient } from "../../../src/zookeeper/index.js";
import { rejection } from "../../core/helpers.js";
import { runs } from "../../support/chance.js";
import { until } from "../../support/worker.js";
import {
  blob,
  deaf,
  expectCode,
  FakeServer,
  frame,
  type Handler,
  int,
  long,
  obliging,
  onVirtualClock,
  pass,
  returns,
  T,
  Type,
} from "../../support/zookeeper.js";

/** Grants a session for reads, as a server without a majority does to clients that accept it. */
const readOnly: Handler = (connection) =>
  connection.send(frame(int(0), int(T), long(1n), blob("p"), Buffer.from([1])));

describe("a hostile server", () => {
  const refused = [
    ["a length beyond the bound", int(5_000_000)],
    ["a negative length", int(-1)],
    ["another protocol", Buffer.from("HTTP/1.1 400 Bad Request\r\n\r\n")],
    ["an unknown request's number", frame(int(4_711), long(1n), int(0), Buffer.alloc(68))],
    ["a ping that nobody sent", frame(int(-2), long(1n), int(0))],
    ["half a header", frame(int(1))],
    ["an event without a path", frame(int(-1), long(1n), int(0), int(1), int(3))],
    [
      "an event whose path is not UTF-8",
      frame(int(-1), long(1n), int(0), int(1), int(3), blob(Buffer.from([0xff]))),
    ],
    ["a reply without its body", frame(int(1), long(1n), int(0), int(3))],
  ] as const;
  test.each(refused)("%s ends the connection, and the session goes on", async (_, bytes) => {
    const server = await FakeServer.open(deaf);
    const { client, clock, log } = await onVirtualClock([server]);
    const request = client.exists("/a");
    request.catch(() => {});
    await until("it is there", () => server.requests(Type.exists).length === 1);
    server.handler = obliging;
    server.last.send(bytes);
    await expectCode(request, "CONNECTION_LOSS");
    await returns(clock, log);
    expect((await client.sync("/")).reply.connection.number).toBe(2);
  });

  test("half a packet, then silence, is a timeout", async () => {
    const server = await FakeServer.open(deaf);
    const { client, clock, log } = await onVirtualClock([server], { requestTimeoutMs: 500 });
    const request = expectCode(client.sync("/"), "OPERATION_TIMEOUT");
    await until("it is there", () => server.requests(Type.sync).length === 1);
    server.last.send(frame(int(1), long(1n), int(0)).subarray(0, 9));
    await clock.advance(500);
    await request;
    await pass(clock, (2 * T) / 3);
    expect(log.names.slice(0, 2)).toEqual(["connected", "suspended"]);
  });

  test("garbage never breaks more than its connection", async () => {
    const server = await FakeServer.open();
    const { client, clock, log } = await onVirtualClock([server]);
    const garbage = fc.oneof(
      fc.uint8Array({ minLength: 1, maxLength: 64 }).map((bytes) => Buffer.from(bytes)),
      fc.uint8Array({ maxLength: 64 }).map((bytes) => frame(Buffer.from(bytes))),
      fc
        .tuple(fc.integer({ min: -10, max: 3 }), fc.integer({ min: -130, max: 1 }), fc.uint8Array())
        .map(([xid, error, body]) => frame(int(xid), long(1n), int(error), Buffer.from(body))),
    );
    await fc.assert(
      fc.asyncProperty(garbage, async (bytes) => {
        server.handler = (connection, request) => {
          if (request.xid === null) connection.grant();
          else connection.send(bytes);
        };
        const reading = client.getChildren("/").catch((error) => error);
        await until("it is sent", () => server.last.seen.length > 1);
        // A reply of half a packet needs the end of the connection.
        server.handler = obliging;
        server.last.socket.end();
        const result = await reading;
        if (result instanceof Error) expect(result).toHaveProperty("code");
        await until("it is back", async () => {
          await pass(clock, 50);
          return client.connection !== null && client.state === "connected";
        });
        await client.sync("/");
      }),
      { ...runs(60), endOnFailure: true },
    );
    expect(log.names).not.toContain("lost");
  });

  test("no server, a black hole, and one that grants nothing: open() says so in time", async () => {
    const dead = `127.0.0.1:${await freePort()}`;
    const hole = await FakeServer.open(() => {});
    const mean = await FakeServer.open((connection) => connection.grant({ id: 0n, timeoutMs: 0 }));
    const minor = await FakeServer.open(readOnly);
    const servers = [dead, hole.name, mean.name, minor.name];
    const error = await rejection(
      ZooKeeperClient.open({ servers, sessionTimeoutMs: 600, connectTimeoutMs: 700 }),
    );
    expect(error).toMatchObject({ code: "CONNECTION_LOSS", retryable: true });
    expect(error.message).toMatch(/no server gave a session within 700 ms \(last failure: 127/);
    for (const one of [hole, mean, minor]) expect(one.connections.length).toBeGreaterThan(0);
    await until("the sockets are closed", () =>
      hole.connections.every(({ socket }) => socket.closed),
    );
  });

  test.each<[string, Handler, RegExp]>([
    [
      "serves reads only",
      readOnly,
      /last failure: 127\S+ the server has no majority and serves reads/,
    ],
    [
      "closes the connection",
      ({ socket }) => socket.destroy(),
      /last failure: 127\S+ the server closed it without granting a session: it may have no majority/,
    ],
  ])("a server that %s: open() says so", async (_, handler, reason) => {
    const { name } = await FakeServer.open(handler);
    const opened = ZooKeeperClient.open({ servers: [name], connectTimeoutMs: 200 });
    expect((await rejection(opened)).message).toMatch(reason);
  });

  test("a server that resumes another session, or closes at once, is not asked in a hot loop", async () => {
    const server = await FakeServer.open();
    const { clock, log } = await onVirtualClock([server]);
    server.handler = (connection) => connection.grant({ id: 99n });
    server.last.socket.destroy();
    await log.has("suspended");
    await pass(clock, T);
    expect(log.names).toEqual(["connected", "suspended", "lost"]);
    expect(server.connections.length).toBeGreaterThan(5);
    expect(server.connections.length).toBeLessThan(60);
  });

  test.each([
    ["a third of a short timeout", 1_500, 500],
    ["a second", 60_000, 1_000],
  ])("close() waits for a silent server for %s", async (_what, timeoutMs, waitMs) => {
    const server = await FakeServer.open((connection, { xid }) => {
      if (xid === null) connection.grant({ timeoutMs });
    });
    const { client, clock, log } = await onVirtualClock([server]);
    const pending = expectCode(client.sync("/"), "CLOSED");
    const closing = client.close();
    await expectCode(client.sync("/"), "CLOSED");
    await clock.advance(waitMs);
    await closing;
    await pending;
    expect([client.state, log.names.at(-1), clock.timers]).toEqual(["closed", "closed", 0]);
  });

  test("the session moved: the connection is given up, and the session resumed", async () => {
    const server = await FakeServer.open();
    const { client, log } = await onVirtualClock([server]);
    server.handler = (connection, request) =>
      request.type === 2 && server.connections.length === 1
        ? connection.reply(request, { error: -118 })
        : obliging(connection, request);
    await expectCode(client.delete("/a"), "SESSION_MOVED");
    await log.has("reconnected");
    await client.delete("/a");
  });
});

test("servers before 3.6 are refused with the reason, and nothing is written to them", async () => {
  // They reply so to a type of request that they do not know.
  const server = await FakeServer.open((connection, request) => {
    if (request.type === Type.multiRead) connection.reply(request, { error: -6 });
    else obliging(connection, request);
  });
  const locks = createLocks(zookeeperStore({ servers: [server.name] }), { ttl: 1_000 });
  expect(await rejection(locks.acquire("name"))).toMatchObject({
    code: "STORE_UNAVAILABLE",
    retryable: false,
    message: expect.stringContaining("needs ZooKeeper 3.6 or later"),
  });
  await locks.close();
  const types = new Set(server.connections.flatMap(({ seen }) => seen.map(({ type }) => type)));
  for (const type of [null, Type.multiRead, Type.ping, Type.closeSession]) types.delete(type);
  expect([...types]).toEqual([]);
});
