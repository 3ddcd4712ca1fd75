import { setImmediate as turn } from "node:timers/promises";
import { inspect } from "node:util";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { systemClock } from "../../../src/core/clock.js";
import { VirtualClock } from "../../../src/testing/virtual-clock.js";
import { freePort } from "../../../src/verify/lab/ports.js";
import { ZooKeeperClient, type ZooKeeperClientOptions } from "../../../src/zookeeper/index.js";
import { rejection } from "../../core/helpers.js";
import { runs } from "../../support/chance.js";
import { until } from "../../support/worker.js";
import {
  blob,
  EventLog,
  expectCode,
  FakeServer,
  frame,
  int,
  long,
  obliging,
  openClient,
  PING,
  SESSION_ID,
} from "../../support/zookeeper.js";

const T = 3_000;
const EXISTS = 3;
const SET_DATA = 5;
const SYNC = 9;

/** A client on a virtual clock, and the events that it has had. */
async function onVirtualClock(servers: readonly FakeServer[], more: object = {}) {
  const clock = new VirtualClock();
  const log = new EventLog();
  const client = await openClient({
    servers: servers.map(({ name }) => name),
    sessionTimeoutMs: T,
    requestTimeoutMs: 60_000,
    clock,
    random: () => 0.999,
    on: log.on,
    ...more,
  });
  return { client, clock, log };
}

/** Lets time pass in small steps, so that the network can keep up. */
async function pass(clock: VirtualClock, ms: number): Promise<void> {
  for (let left = ms; left > 0; left -= 50) {
    await clock.advance(Math.min(50, left));
    for (let i = 0; i < 5; i++) await turn();
  }
}

/** Resolves when the client is back; a server that was not asked anything yet is tried again after a pause. */
const returns = (clock: VirtualClock, log: EventLog): Promise<void> =>
  until("it is back", async () => {
    await pass(clock, 50);
    return log.names.at(-1) !== "suspended";
  });

const deaf: Parameters<typeof FakeServer.open>[0] = (connection, request) => {
  if (request.xid === null) connection.grant();
};

describe("the session's deadline", () => {
  test("an idle client pings after a third of the timeout, and stays connected", async () => {
    const server = await FakeServer.open();
    const { client, clock, log } = await onVirtualClock([server]);
    await pass(clock, T / 3 - 50);
    expect(server.requests(PING)).toHaveLength(0);
    await pass(clock, 50);
    await until("a ping", () => server.requests(PING).length === 1);
    await pass(clock, 10 * T);
    expect(server.requests(PING).length).toBeGreaterThanOrEqual(25);
    expect(log.names).toEqual(["connected"]);
    expect(client.state).toBe("connected");
  });

  test("pings come as often as is asked, and not behind other requests", async () => {
    const server = await FakeServer.open();
    const { client, clock } = await onVirtualClock([server], { pingIntervalMs: 200 });
    for (let i = 0; i < 10; i++) {
      await client.sync("/");
      await pass(clock, 150);
    }
    expect(server.requests(PING)).toHaveLength(0);
    await pass(clock, 1_000);
    expect(server.requests(PING).length).toBeGreaterThanOrEqual(4);
  });

  test("silence: suspended after two thirds, lost after the whole, both counted from the last answered send", async () => {
    const server = await FakeServer.open();
    const { client, clock, log } = await onVirtualClock([server]);
    await pass(clock, 500);
    const { reply } = await client.sync("/");
    server.handler = () => {};
    expect(client.aliveUntilMs).toBe(reply.sentAtMs + T);
    await clock.advance((2 * T) / 3 - 1);
    expect(log.names).toEqual(["connected"]);
    await clock.advance(1);
    expect(log.names).toEqual(["connected", "suspended"]);
    expect(log.reasons[0]).toContain("two thirds");
    await clock.advance(T / 3 - 1);
    expect(client.state).toBe("suspended");
    await clock.advance(1);
    expect(log.names).toEqual(["connected", "suspended", "lost"]);
    expect(log.reasons[1]).toMatch(/no server has answered for .* 3000 ms .* open another client/);
    expect(client.state).toBe("lost");
    expect(clock.timers).toBe(0);
    await expectCode(client.sync("/"), "SESSION_EXPIRED");
  });

  test("events of watches do not count: they say nothing about what the server has heard", async () => {
    const server = await FakeServer.open(deaf);
    const { clock, log } = await onVirtualClock([server]);
    server.handler = () => {};
    const [first] = server.connections;
    for (let ms = 0; ms < T; ms += 100) {
      first!.event(1, "/a");
      await pass(clock, 100);
    }
    expect(log.names).toEqual(["connected", "suspended", "lost"]);
  });

  test("a stalled process reads what has arrived before it calls the server silent", async () => {
    const timeoutMs = 30_000;
    const real = systemClock();
    let aheadMs = 0;
    const clock = { ...real, elapsedMs: () => real.elapsedMs() + aheadMs };
    const log = new EventLog();
    const server = await FakeServer.open((connection, request) => {
      if (request.xid === null) return connection.grant({ timeoutMs });
      connection.reply(request);
      if (request.type !== PING || server.requests(PING).length > 1) return;
      // With the reply in the socket, the process stands still until the whole timeout since the last
      // answer is over, but not two thirds since this ping.
      aheadMs += 0.6 * timeoutMs;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 300);
    });
    const client = await openClient({ servers: [server.name], on: log.on, clock });
    aheadMs += timeoutMs / 2;
    await until("a ping", () => server.requests(PING).length >= 1);
    await client.sync("/");
    expect(log.names).toEqual(["connected"]);
  });

  test("a process that sleeps through the deadline does not resume the session", async () => {
    const server = await FakeServer.open();
    const { client, clock, log } = await onVirtualClock([server]);
    server.last.socket.destroy();
    await log.has("suspended");
    const unsent = expectCode(client.delete("/a"), "SESSION_EXPIRED");
    clock.stall(T);
    expect(client.state).toBe("lost");
    await pass(clock, 500);
    expect(log.names).toEqual(["connected", "suspended", "lost"]);
    expect(await unsent).toMatchObject({ executed: "no" });
  });

  test("another server is tried, with the session's id, password and last zxid", async () => {
    const servers = await Promise.all([FakeServer.open(), FakeServer.open()]);
    const { client, clock, log } = await onVirtualClock(servers);
    const [first, second] = servers[0]!.connections.length === 1 ? servers : [...servers].reverse();
    first!.handler = (connection, request) => connection.reply(request, { zxid: 77n });
    await client.sync("/");
    first!.handler = () => {};
    await pass(clock, (2 * T) / 3);
    await log.has("reconnected");
    const { body } = second!.requests(null)[0]!;
    expect(body.readBigInt64BE(4)).toBe(77n);
    expect(body.readInt32BE(12)).toBe(T);
    expect(body.readBigInt64BE(16)).toBe(SESSION_ID);
    expect(body.subarray(28, 44).toString()).toBe("P4ssw0rd-16bytes");
    expect(client.connection).toMatchObject({ number: 2, server: second!.name });
    await client.sync("/");
    expect(log.names).toEqual(["connected", "suspended", "reconnected"]);
  });

  test("a server that says so ends it at once", async () => {
    const server = await FakeServer.open();
    const { client, clock, log } = await onVirtualClock([server]);
    server.handler = (connection) => connection.grant({ id: 0n, timeoutMs: 0, password: "" });
    server.last.socket.destroy();
    await log.has("suspended");
    await returns(clock, log);
    expect(log.names.at(-1)).toBe("lost");
    expect(log.reasons.at(-1)).toContain("SESSION_EXPIRED");
    await expectCode(client.getData("/a"), "SESSION_EXPIRED");
  });
});

describe("requests", () => {
  test("go together in one packet, and each knows its send time and its connection", async () => {
    const server = await FakeServer.open();
    const { client, clock } = await onVirtualClock([server]);
    const connectedAtMs = clock.elapsedMs();
    await clock.advance(100);
    const replies: unknown[] = [];
    client.on("replied", (reply) => replies.push(reply));
    const [a, b] = await Promise.all([client.sync("/a"), client.delete("/b")]);
    const connection = { number: 1, server: server.name, connectSentAtMs: connectedAtMs };
    const sent = { sentAtMs: connectedAtMs + 100, connection, succeeded: true };
    expect(a.reply).toMatchObject({ ...sent, isWrite: false });
    expect(b.reply).toMatchObject({ ...sent, isWrite: true });
    expect(replies).toEqual([a.reply, b.reply]);
  });

  test("without a reply time out, and their late reply is not taken for another's", async () => {
    const server = await FakeServer.open(deaf);
    const { client, clock, log } = await onVirtualClock([server], { requestTimeoutMs: 500 });
    const write = client.setData("/a", "1");
    const read = client.sync("/b");
    await until("both are there", () => server.requests(SYNC).length === 1);
    const failed = Promise.all([
      expectCode(write, "OPERATION_TIMEOUT"),
      expectCode(read, "OPERATION_TIMEOUT"),
    ]);
    await clock.advance(500);
    const errors = await failed;
    expect(errors[0]).toMatchObject({ executed: "unknown", path: "/a", server: server.name });
    expect(errors[0]!.message).toContain("no reply came within 500 ms");
    expect(errors[1]).toMatchObject({ executed: "no" });
    const late = [...server.requests(SET_DATA), ...server.requests(SYNC)];
    server.handler = (connection, request) => {
      for (const one of late.splice(0))
        connection.reply(one, { error: one.type === SYNC ? 0 : -101 });
      connection.reply(request, { zxid: 9n });
    };
    expect((await client.sync("/c")).reply.zxid).toBe(9n);
    expect(log.names).toEqual(["connected"]);
  });

  test("that were sent fail with the connection; those that were not wait for the next one", async () => {
    const server = await FakeServer.open(deaf);
    const { client, clock, log } = await onVirtualClock([server]);
    const sent = client.delete("/sent");
    await until("it is there", () => server.requests(2).length === 1);
    const whileSuspended = new Promise<{ unsent: Promise<unknown> }>((resolve) => {
      // In an object, because a promise of a promise would be awaited as a whole.
      client.on("suspended", () => resolve({ unsent: client.delete("/unsent") }));
    });
    server.handler = obliging;
    server.last.socket.destroy();
    const error = await expectCode(sent, "CONNECTION_LOSS");
    expect(error).toMatchObject({ executed: "unknown", retryable: true });
    expect(error.message).toContain("the request may have been executed");
    const { unsent } = await whileSuspended;
    await returns(clock, log);
    await unsent;
    expect(log.names).toEqual(["connected", "suspended", "reconnected"]);
  });

  test("that wait for a connection time out too, and are never sent", async () => {
    const server = await FakeServer.open();
    const { client, clock, log } = await onVirtualClock([server], { requestTimeoutMs: 200 });
    server.handler = () => {};
    server.last.socket.destroy();
    await log.has("suspended");
    const failed = expectCode(client.delete("/a"), "OPERATION_TIMEOUT");
    await clock.advance(200);
    expect(await failed).toMatchObject({ executed: "no" });
    expect((await failed).message).toContain("there was no connection for 200 ms");
    server.handler = obliging;
    await pass(clock, 1_500);
    await log.has("reconnected");
    await client.sync("/");
    expect(server.requests(2)).toHaveLength(0);
  });

  test("errors have ZooKeeper's name, also those without one here", async () => {
    const server = await FakeServer.open();
    const { client } = await onVirtualClock([server]);
    const answer = (error: number) => {
      server.handler = (connection, request) => connection.reply(request, { error });
    };
    answer(-101);
    const error = await expectCode(client.getData("/a"), "NO_NODE");
    expect(error).toMatchObject({ executed: "no", path: "/a", reply: { succeeded: false } });
    expect(JSON.parse(JSON.stringify(error))).toMatchObject({ code: "NO_NODE", path: "/a" });
    answer(-4711);
    expect((await expectCode(client.getData("/a"), "UNKNOWN")).message).toContain("error -4711");
    answer(-122);
    expect(await expectCode(client.delete("/a"), "REQUEST_TIMEOUT")).toMatchObject({
      executed: "unknown",
    });
  });

  test("with wrong arguments are refused, and nothing is sent", async () => {
    const server = await FakeServer.open();
    const { client } = await onVirtualClock([server]);
    const any = client as unknown as Record<string, (...args: unknown[]) => Promise<unknown>>;
    for (const path of [
      "",
      "a",
      "/a/",
      "//",
      "/a/../b",
      "/a/.",
      "/\u0000",
      "/\u{1f600}",
      1,
      null,
    ]) {
      await expectCode(any["getData"]!(path), "INVALID_ARGUMENT");
    }
    const calls: (readonly [string, ...unknown[]])[] = [
      ["create", "/a", { mode: "forever" }],
      ["create", "/a", { data: 5 }],
      ["create", "/a", { acl: [] }],
      ["create", "/a", { acl: [{ permissions: ["all"], scheme: "world", id: "anyone" }] }],
      ["create", "/a", { sequential: true }],
      ["create", "/a", { data: Buffer.alloc(1_048_576) }],
      ["delete", "/a", { version: 1.5 }],
      ["setData", "/a", "", { version: -2 }],
      ["getData", "/a", { watch: true }],
      ["addWatch", "/a", {}, null],
      ["multi", []],
      ["multi", [{ op: "sync", path: "/a" }]],
      ["multiRead", [{ op: "exists", path: "/a" }]],
    ];
    for (const [method, ...args] of calls) {
      await expectCode(any[method]!(...args), "INVALID_ARGUMENT");
    }
    expect(server.last.seen).toHaveLength(1);
  });
});

describe("a hostile server", () => {
  const refused = [
    ["a length beyond the bound", int(5_000_000)],
    ["a negative length", int(-1)],
    ["another protocol", Buffer.from("HTTP/1.1 400 Bad Request\r\n\r\n")],
    ["an unknown request's number", frame(int(4_711), long(1n), int(0))],
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
    await until("it is there", () => server.requests(EXISTS).length === 1);
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
    await until("it is there", () => server.requests(SYNC).length === 1);
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
    const readOnly = await FakeServer.open((connection) =>
      connection.send(frame(int(0), int(T), long(1n), blob("p"), Buffer.from([1]))),
    );
    const servers = [dead, hole.name, mean.name, readOnly.name];
    const error = await rejection(
      ZooKeeperClient.open({ servers, sessionTimeoutMs: 600, connectTimeoutMs: 700 }),
    );
    expect(error).toMatchObject({ code: "CONNECTION_LOSS", retryable: true });
    expect(error.message).toMatch(/no server gave a session within 700 ms \(last failure: 127/);
    for (const one of [hole, mean, readOnly]) expect(one.connections.length).toBeGreaterThan(0);
    await until("the sockets are closed", () =>
      hole.connections.every(({ socket }) => socket.closed),
    );
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

  test("close() does not wait for a silent server longer than a third of the timeout", async () => {
    const server = await FakeServer.open(deaf);
    const { client, clock, log } = await onVirtualClock([server]);
    const pending = expectCode(client.sync("/"), "CLOSED");
    const closing = client.close();
    await expectCode(client.sync("/"), "CLOSED");
    await clock.advance(T / 3);
    await closing;
    await pending;
    expect([client.state, log.names.at(-1), clock.timers]).toEqual(["closed", "closed", 0]);
  });

  test("the session moved: the connection is given up, and the session resumed", async () => {
    const server = await FakeServer.open();
    const { client, log } = await onVirtualClock([server]);
    server.handler = (connection, request) => connection.reply(request, { error: -118 });
    const moved = expectCode(client.delete("/a"), "SESSION_MOVED");
    server.handler = (connection, request) =>
      request.type === 2 && server.connections.length === 1
        ? connection.reply(request, { error: -118 })
        : obliging(connection, request);
    await moved;
    await log.has("reconnected");
    await client.delete("/a");
  });
});

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
      else if (request.type === EXISTS) connection.reply(request, { error: -101 });
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
    expect([restored!.type, restored!.xid, other!.type]).toEqual([105, -8, SYNC]);
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

describe("secrets", () => {
  test("are in no error and in nothing that can be inspected", async () => {
    const server = await FakeServer.open();
    const secret = "S3cr3t";
    const { client, log } = await onVirtualClock([server], {
      auth: { user: "app", password: secret },
    });
    await until("the login", () => server.requests(100).length === 1);
    expect(server.requests(100)[0]!.body.toString()).toContain(`app:${secret}`);
    server.handler = () => {};
    const pending = client.setData("/a", secret);
    server.last.socket.destroy();
    const error = await expectCode(pending, "CONNECTION_LOSS");
    for (const value of [client, error, log]) {
      const text =
        inspect(value, { depth: 20, showHidden: true }) + JSON.stringify({ value: error });
      expect(text).not.toContain(secret);
      expect(text).not.toContain("P4ssw0rd");
    }
  });

  test("a refused login is the end of the session", async () => {
    const server = await FakeServer.open((connection, request) =>
      request.type === 100
        ? connection.reply(request, { error: -115 })
        : obliging(connection, request),
    );
    const { client, log } = await onVirtualClock([server], { auth: { user: "a", password: "b" } });
    await log.has("lost");
    await expectCode(client.sync("/"), "AUTH_FAILED");
  });
});

test("wrong options are refused", async () => {
  const wrong: object[] = [
    {},
    { servers: [] },
    { servers: ["a b"] },
    { servers: ["a:99999"] },
    { servers: "a:1" },
    { servers: ["a"], chroot: "x" },
    { servers: ["a"], sessionTimeoutMs: 0 },
    { servers: ["a"], timeout: 5 },
    { servers: ["a"], auth: { user: "a:b", password: "c" } },
    { servers: ["a"], auth: { user: "a" } },
    { servers: ["a"], tls: { ca: "no PEM" } },
    { servers: ["a"], tls: true },
    { servers: ["a"], maxReplyBytes: 1 },
    { servers: ["a"], random: 4 },
    { servers: ["a"], on: { lost: 1 } },
    { servers: ["a"], on: { lsot: () => {} } },
  ];
  for (const options of wrong) {
    await expectCode(ZooKeeperClient.open(options as ZooKeeperClientOptions), "INVALID_ARGUMENT");
  }
});
