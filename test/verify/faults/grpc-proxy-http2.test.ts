import { once } from "node:events";
import {
  type ClientHttp2Session,
  type ClientHttp2Stream,
  connect,
  constants,
  createServer,
  type Http2Server,
  type ServerHttp2Stream,
} from "node:http2";
import { connect as dial, type Socket, createServer as tcpServer } from "node:net";
import { setImmediate as turn } from "node:timers/promises";
import { expect, onTestFinished, test } from "vitest";
import type { GrpcProxy } from "../../../src/verify/faults/grpc-proxy.js";
import { until } from "../../support/worker.js";
import { openProxy } from "./etcd-clients.js";

const { NGHTTP2_CANCEL, NGHTTP2_INTERNAL_ERROR, NGHTTP2_ENHANCE_YOUR_CALM } = constants;
const WATCH = "/etcdserverpb.Watch/Watch";
const MIB = 1024 * 1024;

const portOf = (server: Pick<Http2Server, "address">): number =>
  (server.address() as { port: number }).port;

/** An HTTP/2 server of the test, with the proxy in front of it. */
async function serve(onStream: (stream: ServerHttp2Stream) => void): Promise<GrpcProxy> {
  const server = createServer();
  const sessions = new Set<{ destroy(): void }>();
  server.on("session", (session) => sessions.add(session));
  server.on("stream", (stream) => {
    stream.on("error", () => {});
    onStream(stream);
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  onTestFinished(async () => {
    await turn();
    for (const session of sessions) session.destroy();
    server.close();
  });
  return openProxy({ address: "127.0.0.1", port: portOf(server) });
}

function open({ port }: GrpcProxy): ClientHttp2Session {
  const session = connect(`http://127.0.0.1:${port}`);
  session.on("error", () => {});
  onTestFinished(() => destroy(session));
  return session;
}

/** In a turn of its own: Node 20 can hang if a session is destroyed in a callback of its own. */
async function destroy(session: ClientHttp2Session): Promise<void> {
  await turn();
  session.destroy();
}

function request(session: ClientHttp2Session, path = "/any"): ClientHttp2Stream {
  const stream = session.request({ ":method": "POST", ":path": path });
  stream.on("error", () => {});
  return stream;
}

test("headers, data of both directions and trailers arrive unchanged", async () => {
  const proxy = await serve((stream) => {
    stream.respond({ ":status": 200, "x-begin": "1" }, { waitForTrailers: true });
    stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0", "x-end": "2" }));
    stream.pipe(stream);
  });
  const stream = request(open(proxy));
  const sent = Buffer.from(Array.from({ length: 8 * MIB }, (_, i) => (i * 7 + (i >> 9)) & 255));
  stream.end(sent);
  let headers = {};
  let trailers = {};
  stream.on("response", (some) => {
    headers = some;
  });
  stream.on("trailers", (some) => {
    trailers = some;
  });
  const received: Buffer[] = [];
  for await (const bytes of stream) received.push(bytes);
  expect(Buffer.concat(received).equals(sent)).toBe(true);
  expect(headers).toMatchObject({ ":status": 200, "x-begin": "1" });
  expect(trailers).toMatchObject({ "grpc-status": "0", "x-end": "2" });
  await until("nothing is left of it", () => proxy.openStreams("calls") === 0);
});

test("a reply of headers alone stays one: gRPC reads its status from them", async () => {
  const proxy = await serve((stream) => {
    stream.respond({ ":status": 200, "grpc-status": "5" }, { endStream: true });
  });
  const stream = request(open(proxy)).end();
  const [headers, flags] = await once(stream, "response");
  expect(headers).toMatchObject({ "grpc-status": "5" });
  expect(flags & constants.NGHTTP2_FLAG_END_STREAM).not.toBe(0);
});

test("a stream that one side resets is reset on the other side, and no other stream is", async () => {
  const codes: number[] = [];
  const proxy = await serve((stream) => {
    stream.respond({ ":status": 200 });
    stream.on("data", (bytes) => {
      if (String(bytes) === "reset") setImmediate(() => stream.close(NGHTTP2_ENHANCE_YOUR_CALM));
      else stream.write(bytes);
    });
    stream.on("close", () => codes.push(stream.rstCode));
  });
  const session = open(proxy);
  const other = request(session, WATCH);
  const [resets, cancels] = [request(session), request(session)];
  resets.write("reset");
  await until("the client knows", () => resets.destroyed);
  expect(resets.rstCode).toBe(NGHTTP2_ENHANCE_YOUR_CALM);
  cancels.write("any");
  await once(cancels, "data");
  await turn();
  cancels.close(NGHTTP2_CANCEL);
  await until("the server knows", () => codes.includes(NGHTTP2_CANCEL));
  other.write("still here");
  expect(String((await once(other, "data"))[0])).toBe("still here");
  expect(codes).toHaveLength(2);
});

test("a cut of one kind of call resets its streams on both sides", async () => {
  const codes: number[] = [];
  const proxy = await serve((stream) => {
    stream.respond({ ":status": 200 });
    stream.on("close", () => codes.push(stream.rstCode));
  });
  const session = open(proxy);
  const [watch, call] = [request(session, WATCH), request(session)];
  await Promise.all([once(watch, "response"), once(call, "response")]);
  await proxy.cut({ only: "watch" }).inject();
  await until("the client knows", () => watch.destroyed);
  expect(watch.rstCode).toBe(NGHTTP2_INTERNAL_ERROR);
  await until("the server knows", () => codes.includes(NGHTTP2_CANCEL));
  const refused = request(session, WATCH);
  await until("it is refused", () => refused.destroyed);
  expect(refused.rstCode).toBe(constants.NGHTTP2_REFUSED_STREAM);
  expect(codes).toHaveLength(1);
  expect(call.destroyed).toBe(false);
});

test("a reader that does not read slows its sender down, and nobody else", async () => {
  const total = 64 * MIB;
  let sent = 0;
  const proxy = await serve((stream) => {
    stream.respond({ ":status": 200 });
    if (sent > 0) return void stream.end("short");
    const more = (): void => {
      while (sent < total && !stream.destroyed) {
        sent += 64 * 1024;
        if (!stream.write(Buffer.alloc(64 * 1024))) break;
      }
    };
    stream.on("drain", more);
    more();
  });
  const session = open(proxy);
  const slow = request(session, WATCH);
  await once(slow, "response");
  let before = -1;
  await until("the sender waits", async () => {
    await new Promise((resolve) => setTimeout(resolve, 100));
    const waits = sent === before;
    before = sent;
    return waits;
  });
  expect(sent).toBeLessThan(4 * MIB);
  expect(String((await once(request(session).end(), "data"))[0])).toBe("short");
  let read = 0;
  slow.on("data", (bytes) => {
    read += bytes.length;
  });
  await until("all has arrived", () => read >= total);
});

test("a stall slows a sender down when it has sent enough", async () => {
  let received = 0;
  const proxy = await serve((stream) => {
    stream.respond({ ":status": 200 });
    stream.on("data", (bytes) => {
      received += bytes.length;
    });
  });
  const stream = request(open(proxy), WATCH);
  await once(stream, "response");
  const stall = proxy.stall("to-server", { only: "watch" });
  await stall.inject();
  let taken = 0;
  for (let i = 0; i < 512; i++) stream.write(Buffer.alloc(64 * 1024), () => taken++);
  // The proxy takes about 1 MiB; the rest can't leave the client.
  await new Promise((resolve) => setTimeout(resolve, 500));
  expect(received).toBe(0);
  expect(taken * 64 * 1024).toBeLessThan(4 * MIB);
  await stall.heal();
  await until("all has arrived", () => received === 32 * MIB);
});

test("data from a client that has gone arrives when a stall ends", async () => {
  const received: string[] = [];
  const proxy = await serve((stream) => {
    stream.respond({ ":status": 200 });
    stream.on("data", (bytes) => received.push(String(bytes)));
  });
  const stall = proxy.stall("to-server", { only: "calls" });
  await stall.inject();
  const session = open(proxy);
  const stream = request(session);
  stream.write("late");
  await until("the stream is there", () => proxy.openStreams("calls") === 1);
  await new Promise((resolve) => setTimeout(resolve, 100));
  await destroy(session);
  await until("the client has gone", () => proxy.openConnections === 0);
  expect(received).toEqual([]);
  await stall.heal();
  await until("the request arrives", () => received.length > 0);
  expect(received).toEqual(["late"]);
  await until("nothing is left of it", () => proxy.openStreams("calls") === 0);
});

test("a client that leaves before the server has sent anything ends its connection to the server too", async () => {
  const sockets = new Set<Socket>();
  const silent = tcpServer((socket) => {
    sockets.add(socket.on("error", () => {}).on("close", () => sockets.delete(socket)));
    socket.resume();
  });
  await once(silent.listen(0, "127.0.0.1"), "listening");
  onTestFinished(() => void silent.close());
  const proxy = await openProxy({ address: "127.0.0.1", port: portOf(silent) });
  const client = dial(proxy.port, "127.0.0.1");
  client.write("PRI * HTTP/2.0\r\n");
  await until("it is passed on", () => sockets.size === 1);
  client.end();
  await until("nothing is left of it", () => proxy.openConnections === 0 && sockets.size === 0);
});

test("close leaves no socket and no timer, whatever faults are in force", async () => {
  const kept = (): number =>
    process.getActiveResourcesInfo().filter((one) => /TCP|Timeout/.test(one)).length;
  const proxy = await serve((stream) => stream.respond({ ":status": 200 }));
  const before = kept();
  const session = open(proxy);
  const stream = request(session, WATCH);
  await once(stream, "response");
  await proxy.delay(60_000, undefined, { only: "watch" }).inject();
  await proxy.stall("to-client", { only: "calls" }).inject();
  stream.write("late");
  request(session);
  request(session, WATCH);
  await until("both are held", () => proxy.openStreams("calls") === 1);
  await until("a new one is delayed", () => proxy.openStreams("watch") === 2);
  await proxy.close();
  await until("the client knows", () => session.destroyed);
  expect(proxy.openStreams("watch") + proxy.openStreams("calls")).toBe(0);
  // The proxy's two listeners have gone as well.
  await until("nothing is left", () => kept() <= before - 2);
});
