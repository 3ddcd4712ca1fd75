import { once } from "node:events";
import { connect, createServer, type Server as Listener, type Socket } from "node:net";
import { expect, onTestFinished, test } from "vitest";
import { together } from "../../../src/verify/fault.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";
import { Client } from "./client.js";
import { OneRedis } from "./one-redis.js";

describeWith(["redis"], "a TCP proxy, as a network", () => {
  const redis = OneRedis.forAll();

  /** A server of the test that handles its connections directly. */
  async function listen(onSocket: (socket: Socket) => void): Promise<Listener & { port: number }> {
    const server = createServer({ allowHalfOpen: true }, (socket) => {
      socket.on("error", () => {});
      onSocket(socket);
    });
    await once(server.listen(0, "127.0.0.1"), "listening");
    onTestFinished(() => {
      server.close();
    });
    return Object.assign(server, { port: (server.address() as { port: number }).port });
  }

  const kept = (): string[] =>
    process.getActiveResourcesInfo().filter((one) => /TCP|Timeout/.test(one));

  test("passes on the reply after one side has ended its half", async () => {
    const server = await listen((socket) => {
      let text = "";
      socket.on("data", (bytes) => {
        text += bytes;
      });
      socket.on("end", () => socket.end(`received ${text}`));
    });
    const proxy = await redis.inFront({ address: "127.0.0.1", port: server.port });
    const socket = connect({ port: proxy.port, host: "127.0.0.1", allowHalfOpen: true });
    socket.end("all");
    let received = "";
    for await (const bytes of socket) received += bytes;
    expect(received).toBe("received all");
    await until("both are closed", () => proxy.openConnections === 0);
  });

  test("slows a sender down whose reader does not read", async () => {
    const total = 64 * 1024 * 1024;
    let sent = 0;
    const server = await listen((socket) => {
      const more = (): void => {
        while (sent < total && socket.write(Buffer.alloc(64 * 1024))) sent += 64 * 1024;
      };
      socket.on("drain", more);
      more();
    });
    const proxy = await redis.inFront({ address: "127.0.0.1", port: server.port });
    const socket = connect({ port: proxy.port, host: "127.0.0.1" });
    onTestFinished(() => void socket.destroy());
    socket.pause();
    let before = -1;
    await until("the sender waits", async () => {
      await new Promise((resolve) => setTimeout(resolve, 50));
      const stands = sent === before && sent > 0;
      before = sent;
      return stands;
    });
    expect(sent).toBeLessThan(total / 2);
    let read = 0;
    socket.on("data", (bytes) => {
      read += bytes.length;
    });
    socket.resume();
    await until("it goes on", () => read > sent / 2 && sent > before);
  });

  test("resets the client when the server is not there, and throws nothing", async () => {
    const server = await listen(() => {});
    const { port } = server;
    await new Promise((resolve) => server.close(resolve));
    const proxy = await redis.inFront({ address: "127.0.0.1", port });
    const client = await Client.open(proxy);
    await expect(client.request("ping")).rejects.toThrow();
    await until("nothing is left of it", () => proxy.openConnections === 0);
  });

  test("removes the timers of a connection that ends", async () => {
    const proxy = await redis.inFront();
    const late = proxy.delay(60_000, "to-client");
    await late.inject();
    const client = await Client.open(proxy);
    client.send("incr", "left");
    await redis.valueBecomes("left", "1");
    await redis.settle();
    const timers = (): number =>
      process.getActiveResourcesInfo().filter((one) => one === "Timeout").length;
    const before = timers();
    client.socket.resetAndDestroy();
    await until("nothing is left of it", () => proxy.openConnections === 0);
    await until("nor a timer", () => timers() < before);
  });

  test("leaves no socket after close, also where an end has just been passed on", async () => {
    const server = await listen((socket) => socket.end());
    await redis.settle();
    const before = kept().length;
    const proxy = await TcpProxy.open({ address: "127.0.0.1", port: server.port });
    const stall = proxy.stall("to-client");
    await stall.inject();
    const client = await Client.open(proxy);
    await until("the end is held", () => proxy.openConnections === 1);
    await redis.settle();
    await stall.heal();
    // In the same turn: the client's connection is being shut down when it is to be reset.
    await proxy.close();
    await until("the client knows", () => client.ended !== null);
    await until("nothing is left", () => kept().length <= before);
  });

  test("leaves no socket and no timer after close, whatever faults are in force", async () => {
    await redis.settle();
    const before = kept().length;
    const proxy = await TcpProxy.open(redis.server);
    const clients = await Promise.all([1, 2, 3].map(() => Client.open(proxy)));
    await together(proxy.delay(60_000, "to-client"), proxy.stall("to-server")).inject();
    for (const client of clients) client.send("ping");
    await until("all are held", () => proxy.openConnections === 3);
    await proxy.close();
    await until("the clients know", () => clients.every(({ ended }) => ended !== null));
    expect(proxy.openConnections).toBe(0);
    await until("nothing is left", () => kept().length <= before);
  });
});
