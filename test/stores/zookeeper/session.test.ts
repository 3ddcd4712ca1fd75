import { describe, expect, test } from "vitest";
import { systemClock } from "../../../src/core/clock.js";
import { Servers } from "../../../src/stores/zookeeper/client/servers.js";
import { seededRandom } from "../../../src/testing/seeded-random.js";
import { VirtualClock } from "../../../src/testing/virtual-clock.js";
import { ZooKeeperClient, type ZooKeeperClientOptions } from "../../../src/zookeeper/index.js";
import { until } from "../../support/worker.js";
import {
  deaf,
  EventLog,
  expectCode,
  FakeServer,
  type Handler,
  obliging,
  onVirtualClock,
  openClient,
  pass,
  returns,
  SESSION_ID,
  T,
  Type,
} from "../../support/zookeeper.js";

describe("the session's deadline", () => {
  test("an idle client pings after a third of the timeout, and stays connected", async () => {
    const server = await FakeServer.open();
    const { client, clock, log } = await onVirtualClock([server]);
    await pass(clock, T / 3 - 50);
    expect(server.requests(Type.ping)).toHaveLength(0);
    await pass(clock, 50);
    await until("a ping", () => server.requests(Type.ping).length === 1);
    await pass(clock, 10 * T);
    expect(server.requests(Type.ping).length).toBeGreaterThanOrEqual(25);
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
    expect(server.requests(Type.ping)).toHaveLength(0);
    await pass(clock, 1_000);
    expect(server.requests(Type.ping).length).toBeGreaterThanOrEqual(4);
  });

  test("pings come more often where the server grants a shorter timeout than was requested", async () => {
    const server = await FakeServer.open((connection, request) => {
      if (request.xid === null) connection.grant({ timeoutMs: T / 2 });
      else connection.reply(request);
    });
    const { clock } = await onVirtualClock([server], { pingIntervalMs: 400 });
    await pass(clock, 1_000);
    expect(server.requests(Type.ping)).toHaveLength(5);
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

  test("a reply that took long counts from the send of its request, the first one from the connect request", async () => {
    const held: (() => void)[] = [];
    const server = await FakeServer.open((connection, request) => {
      held.push(() => obliging(connection, request));
    });
    const clock = new VirtualClock();
    const startMs = clock.elapsedMs();
    const opening = openClient({ servers: [server.name], clock });
    await until("the connect request", () => held.length === 1);
    await clock.advance(400);
    held.shift()!();
    const client = await opening;
    expect(client.connection!.connectSentAtMs).toBe(startMs);
    expect(client.aliveUntilMs).toBe(startMs + T);
    const syncing = client.sync("/");
    await until("the request", () => held.length === 1);
    await clock.advance(300);
    held.shift()!();
    const { reply } = await syncing;
    expect([reply.sentAtMs, reply.answeredAtMs]).toEqual([startMs + 400, startMs + 700]);
    expect(client.aliveUntilMs).toBe(startMs + 400 + T);
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

  test("with frequent pings, a server is given up after three of them and a second, though two thirds are not over", async () => {
    for (const [pingIntervalMs, silentMs] of [
      [100, 1_000],
      [500, 1_500],
    ] as const) {
      const server = await FakeServer.open();
      const { clock, log } = await onVirtualClock([server], { pingIntervalMs });
      await pass(clock, 2 * T);
      expect(log.names).toEqual(["connected"]);
      server.handler = () => {};
      const unanswered = server.requests(Type.ping).length;
      await until("a ping", async () => {
        await pass(clock, 50);
        return server.requests(Type.ping).length > unanswered;
      });
      await pass(clock, silentMs - 100);
      expect(log.names).toEqual(["connected"]);
      await pass(clock, 100);
      expect(log.names).toEqual(["connected", "suspended"]);
      expect(log.reasons[0]).toContain("it has not answered since the last pings");
    }
  });

  test("a server that sends is given up after two thirds, however frequent the pings", async () => {
    const server = await FakeServer.open();
    const { clock, log } = await onVirtualClock([server], { pingIntervalMs: 100 });
    server.handler = () => {};
    const sendFor = async (ms: number): Promise<void> => {
      for (let left = ms; left > 0; left -= 100) {
        server.last.event(1, "/a");
        await pass(clock, 100);
      }
    };
    await sendFor((2 * T) / 3 - 100);
    expect(log.names).toEqual(["connected"]);
    await sendFor(200);
    expect(log.names).toEqual(["connected", "suspended"]);
  });

  test("a server that accepts a connection and never reads from it is dialled again soon, then more patiently", async () => {
    const timeoutMs = 60_000;
    const greet: Handler = (connection, request) => {
      if (request.xid === null) connection.grant({ timeoutMs });
      else connection.reply(request);
    };
    const server = await FakeServer.open(greet);
    const { clock, log } = await onVirtualClock([server], { sessionTimeoutMs: timeoutMs });
    // As long as it is down, it refuses: that says nothing about how long it takes to answer.
    server.handler = ({ socket }) => socket.destroy();
    server.last.socket.destroy();
    await until("some refusals", async () => {
      await pass(clock, 50);
      return server.connections.length > 6;
    });
    expect(log.names).toEqual(["connected", "suspended"]);
    server.handler = () => {};
    const dialledAtMs: number[] = [];
    const fromMs = clock.elapsedMs();
    while (clock.elapsedMs() - fromMs < 9_000) {
      const before = server.connections.length;
      await pass(clock, 50);
      if (server.connections.length > before) dialledAtMs.push(clock.elapsedMs() - fromMs);
    }
    // With a pause of up to half a second before each of them.
    const gapsMs = dialledAtMs.slice(1).map((ms, i) => ms - dialledAtMs[i]!);
    expect(gapsMs.map((ms) => Math.floor(ms / 1_000))).toEqual([1, 2, 4]);
    server.handler = greet;
    await until("it is back", async () => {
      await pass(clock, 500);
      return log.names.at(-1) === "reconnected";
    });
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
      if (request.type !== Type.ping || server.requests(Type.ping).length > 1) return;
      // With the reply in the socket, the process stands still until the whole timeout since the last
      // answer is over, but not two thirds since this ping.
      aheadMs += 0.6 * timeoutMs;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 300);
    });
    const client = await openClient({ servers: [server.name], on: log.on, clock });
    aheadMs += timeoutMs / 2;
    await until("a ping", () => server.requests(Type.ping).length >= 1);
    await client.sync("/");
    expect(log.names).toEqual(["connected"]);
  });

  test("a process that sleeps through the deadline does not resume the session, although the server would", async () => {
    const server = await FakeServer.open();
    const { client, clock, log } = await onVirtualClock([server]);
    await client.sync("/");
    let unsent: Promise<Error> | undefined;
    client.on("suspended", () => {
      unsent = expectCode(client.delete("/a"), "SESSION_EXPIRED");
      clock.stall(T);
      expect(client.state).toBe("lost");
    });
    server.last.socket.destroy();
    await log.has("lost");
    expect(log.names).toEqual(["connected", "suspended", "lost"]);
    expect(await unsent).toMatchObject({ executed: "no" });
    expect(server.connections).toHaveLength(2);
  });

  test("a grant that is read after the session's timeout is none: nothing is sent to it", async () => {
    const clock = new VirtualClock();
    const log = new EventLog();
    const server = await FakeServer.open((connection, request) => {
      if (request.xid === null && server.connections.length === 1) clock.stall(T);
      obliging(connection, request);
    });
    const auth = { user: "a", password: "b" };
    const opening = openClient({ servers: [server.name], on: log.on, clock, auth });
    await until("another connection", async () => {
      await pass(clock, 50);
      return server.connections.length === 2;
    });
    const client = await opening;
    expect(client.connection?.number).toBe(2);
    expect(server.connections[0]!.seen).toHaveLength(1);

    server.handler = (connection, request) => {
      clock.stall(T);
      obliging(connection, request);
    };
    server.last.socket.destroy();
    await log.has("suspended");
    await pass(clock, T / 20);
    await log.has("lost");
    expect(log.names).toEqual(["connected", "suspended", "lost"]);
    expect(server.last.seen).toHaveLength(1);
  });

  test("a server may say so in its reply to a ping", async () => {
    const server = await FakeServer.open();
    const { clock, log } = await onVirtualClock([server]);
    server.handler = (connection, request) => connection.reply(request, { error: -112 });
    await pass(clock, T / 3);
    await log.has("lost");
    expect(log.names).toEqual(["connected", "lost"]);
  });

  test("a session that the server has ended is alive no longer, and in no listener", async () => {
    const server = await FakeServer.open();
    const { client, clock } = await onVirtualClock([server]);
    await clock.advance(100);
    const seen: number[] = [];
    client.on("replied", () => seen.push(client.aliveUntilMs));
    client.on("lost", () => seen.push(client.aliveUntilMs));
    const before = client.aliveUntilMs;
    server.handler = (connection, request) => connection.reply(request, { error: -112 });
    await expectCode(client.sync("/"), "SESSION_EXPIRED");
    expect(seen).toEqual([before, clock.elapsedMs()]);
    await clock.advance(100);
    expect(client.aliveUntilMs).toBe(seen[1]);
  });

  test("the reason of the loss names the silent server, and no failure of the past", async () => {
    const server = await FakeServer.open();
    const { clock, log } = await onVirtualClock([server]);
    clock.stall(T);
    await pass(clock, 250);
    expect(log.names).toEqual(["connected", "lost"]);
    expect(log.reasons[0]).toContain(`(last failure: ${server.name}: it has not answered)`);
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

test("servers are tried in random order, each once in a round", () => {
  const texts = ["a", "b:1", "[::1]:3", "d", "e"];
  const firsts = new Set<string>();
  for (let seed = 0; seed < 50; seed++) {
    const servers = new Servers(texts, seededRandom(seed).unit);
    const round = texts.map(() => servers.next().name);
    expect([...round].sort()).toEqual(["[::1]:3", "a:2181", "b:1", "d:2181", "e:2181"]);
    expect(servers.allTried).toBe(true);
    expect(servers.next().name).toBe(round[0]);
    firsts.add(round[0]!);
  }
  expect(firsts.size).toBe(texts.length);
});

test("a signal ends an attempt to open a session at once, and no client that is open", async () => {
  const silent = await FakeServer.open(() => {});
  const abort = new AbortController();
  const { signal } = abort;
  const opening = ZooKeeperClient.open({ servers: [silent.name], signal }).catch((error) => error);
  await until("it connects", () => silent.requests(null).length === 1);
  const obligingServer = await FakeServer.open();
  const client = await openClient({ servers: [obligingServer.name], signal });
  const reason = new Error("no longer needed");
  abort.abort(reason);
  expect(await opening).toBe(reason);
  await until("its connection is closed", () => silent.last.socket.destroyed);
  await client.sync("/");
  const late = ZooKeeperClient.open({ servers: [silent.name], signal });
  await expect(late).rejects.toBe(reason);
  expect(silent.connections).toHaveLength(1);
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
    { servers: ["a"], signal: 4 },
    { servers: ["a"], on: { lost: 1 } },
    { servers: ["a"], on: { lsot: () => {} } },
  ];
  for (const options of wrong) {
    await expectCode(ZooKeeperClient.open(options as ZooKeeperClientOptions), "INVALID_ARGUMENT");
  }
});
