import { inspect } from "node:util";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { describe, expect, test } from "vitest";
import { type DigestLogin, ZooKeeperClient } from "../../../src/zookeeper/index.js";
import { until } from "../../support/worker.js";
import {
  deaf,
  expectCode,
  FakeServer,
  obliging,
  onVirtualClock,
  pass,
  returns,
  T,
  Type,
} from "../../support/zookeeper.js";

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
    await until("both are there", () => server.requests(Type.sync).length === 1);
    const failed = Promise.all([
      expectCode(write, "OPERATION_TIMEOUT"),
      expectCode(read, "OPERATION_TIMEOUT"),
    ]);
    await clock.advance(500);
    const errors = await failed;
    expect(errors[0]).toMatchObject({ executed: "unknown", path: "/a", server: server.name });
    expect(errors[0]!.message).toContain("no reply came within 500 ms");
    expect(errors[1]).toMatchObject({ executed: "no" });
    const late = [...server.requests(Type.setData), ...server.requests(Type.sync)];
    server.handler = (connection, request) => {
      for (const one of late.splice(0))
        connection.reply(one, { error: one.type === Type.sync ? 0 : -101 });
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
    expect((await failed).message).toContain(
      "it could not be sent for 200 ms: there was no connection",
    );
    server.handler = obliging;
    await pass(clock, 1_500);
    await log.has("reconnected");
    await client.sync("/");
    expect(server.requests(2)).toHaveLength(0);
  });

  test("that time out unsent leave no bytes behind", async () => {
    setFlagsFromString("--expose-gc");
    const bytesInUse = (): number => {
      runInNewContext("gc")();
      return process.memoryUsage().arrayBuffers;
    };
    const server = await FakeServer.open();
    const { client, clock, log } = await onVirtualClock([server], { requestTimeoutMs: 200 });
    server.handler = () => {};
    server.last.socket.destroy();
    await log.has("suspended");
    const beforeBytes = bytesInUse();
    const codes = Array.from({ length: 20 }, () =>
      client.setData("/a", Buffer.alloc(1_000_000)).catch(({ code }) => code),
    );
    await clock.advance(200);
    expect(new Set(await Promise.all(codes))).toEqual(new Set(["OPERATION_TIMEOUT"]));
    expect(client.state).toBe("suspended");
    await until("they are freed", () => bytesInUse() - beforeBytes < 5_000_000);
  });

  test("of a burst follow one another as replies come, so that a ping is not behind all of them", async () => {
    const server = await FakeServer.open(deaf);
    const { client, clock, log } = await onVirtualClock([server]);
    const burst = Promise.all(Array.from({ length: 2_500 }, (_, i) => client.sync(`/${i}`)));
    await until("the first ones", () => server.requests(Type.sync).length === 1_000);
    await pass(clock, T / 3);
    expect(server.requests(Type.ping)).toHaveLength(1);
    expect(server.requests(Type.sync)).toHaveLength(1_000);
    server.handler = obliging;
    for (const request of server.last.seen.slice(1)) server.last.reply(request);
    const sentAtMs = (await burst).map(({ reply }) => reply.sentAtMs);
    expect(sentAtMs[999]).toBe(sentAtMs[0]);
    expect(sentAtMs[1_000]).toBe(clock.elapsedMs());
    expect(server.requests(Type.sync).map(({ body }) => body.toString("utf8", 4))).toEqual(
      Array.from({ length: 2_500 }, (_, i) => `/${i}`),
    );
    expect(log.names).toEqual(["connected"]);
  });

  test("behind others that are not answered time out unsent, and are then forgotten", async () => {
    const server = await FakeServer.open(deaf);
    const { client, clock } = await onVirtualClock([server], { requestTimeoutMs: 500 });
    const errors = Array.from({ length: 1_001 }, () =>
      expectCode(client.delete("/a"), "OPERATION_TIMEOUT"),
    );
    await until("the first ones", () => server.requests(2).length === 1_000);
    await clock.advance(500);
    expect(await errors[999]).toMatchObject({ executed: "unknown" });
    expect(await errors[1_000]).toMatchObject({ executed: "no" });
    expect((await errors[1_000])!.message).toContain("has not answered earlier requests");
    server.handler = obliging;
    for (const request of server.requests(2)) server.last.reply(request);
    await client.sync("/");
    expect(server.requests(2)).toHaveLength(1_000);
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
    // A server that fails to write its reply says MARSHALLING_ERROR, after it has executed the request.
    for (const [number, code] of [
      [-122, "REQUEST_TIMEOUT"],
      [-5, "MARSHALLING_ERROR"],
      [-2, "RUNTIME_INCONSISTENCY"],
      [-3, "DATA_INCONSISTENCY"],
    ] as const) {
      answer(number);
      expect(await expectCode(client.delete("/a"), code)).toMatchObject({ executed: "unknown" });
    }
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
      ["create", "/a", { acl: [null] }],
      ["create", "/a", { acl: [{ permissions: "read", scheme: "world", id: "anyone" }] }],
      ["create", "/a", { sequential: true }],
      ["create", "/a", { data: Buffer.alloc(1_048_576) }],
      ["delete", "/a", { version: 1.5 }],
      ["setData", "/a", "", { version: -2 }],
      ["getData", "/a", { watch: true }],
      ["addWatch", "/a", {}, null],
      ["addWatch", "/a", { recursive: "no" }, () => {}],
      ["multi", []],
      ["multi", [null]],
      ["multi", [{ op: "sync", path: "/a" }]],
      ["multi", [{ op: "toString", path: "/a" }]],
      ["multi", [{ op: "getData", path: "/a" }]],
      ["multi", [{ op: "create", path: "/a", sequential: true }]],
      ["multiRead", [{ op: "exists", path: "/a" }]],
    ];
    for (const [method, ...args] of calls) {
      await expectCode(any[method]!(...args), "INVALID_ARGUMENT");
    }
    expect(server.last.seen).toHaveLength(1);
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

  test("are in no message about an option, also where a password is written after the user", async () => {
    const options = { servers: ["a"], auth: "app:S3cr3t" as unknown as DigestLogin };
    const error = await expectCode(ZooKeeperClient.open(options), "INVALID_ARGUMENT");
    expect(error.message).not.toContain("S3cr3t");
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
