import { once } from "node:events";
import { type AddressInfo, createServer, type Server, type Socket } from "node:net";
import { setImmediate as turn } from "node:timers/promises";
import { expect, onTestFinished } from "vitest";
import { systemClock } from "../../src/core/clock.js";
import { Connection, type SessionTicket } from "../../src/stores/zookeeper/client/connection.js";
import { Listeners } from "../../src/stores/zookeeper/client/events.js";
import { checkedSettings } from "../../src/stores/zookeeper/client/options.js";
import { Session } from "../../src/stores/zookeeper/client/session.js";
import { Watches } from "../../src/stores/zookeeper/client/watches.js";
import { VirtualClock } from "../../src/testing/virtual-clock.js";
import {
  ZooKeeperClient,
  type ZooKeeperClientOptions,
  type ZooKeeperEvents,
} from "../../src/zookeeper/index.js";
import { until } from "./worker.js";

/** A request as a server sees it. For the connect request, `xid` and `type` are null. */
export interface SeenRequest {
  readonly xid: number | null;
  readonly type: number | null;
  readonly body: Buffer;
}

export const SESSION_ID = 0x1234_5678_9abc_def0n;
/** Types of requests. */
export const Type = {
  exists: 3,
  setData: 5,
  sync: 9,
  ping: 11,
  multiRead: 22,
  closeSession: -11,
} as const;
/** The timeout that a `FakeServer` grants. */
export const T = 3_000;

/** Writes a server's bytes by hand, and none of them by the code under test. */
export const int = (value: number): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeInt32BE(value);
  return bytes;
};
export const long = (value: bigint): Buffer => {
  const bytes = Buffer.alloc(8);
  bytes.writeBigInt64BE(value);
  return bytes;
};
export const blob = (value: string | Buffer): Buffer =>
  Buffer.concat([int(Buffer.byteLength(value)), Buffer.from(value)]);
export const frame = (...parts: readonly Buffer[]): Buffer => blob(Buffer.concat(parts));

/** One connection to a `FakeServer`. */
export class FakeConnection {
  readonly seen: SeenRequest[] = [];
  readonly socket: Socket;

  constructor(socket: Socket) {
    this.socket = socket;
  }

  send(...frames: readonly Buffer[]): void {
    this.socket.write(Buffer.concat(frames));
  }

  grant({ id = SESSION_ID, timeoutMs = T, password = "P4ssw0rd-16bytes" } = {}): void {
    this.send(frame(int(0), int(timeoutMs), long(id), blob(password), Buffer.from([0])));
  }

  /** Replies to the request, by default with an empty success. */
  reply({ xid }: SeenRequest, { zxid = 1n, error = 0, body = Buffer.alloc(0) } = {}): void {
    this.send(frame(int(xid!), long(zxid), int(error), body));
  }

  event(type: number, path: string, zxid = -1n): void {
    this.send(frame(int(-1), long(zxid), int(0), int(type), int(3), blob(path)));
  }
}

export type Handler = (connection: FakeConnection, request: SeenRequest) => void;

/** Grants sessions and replies to everything with an empty success. */
export const obliging: Handler = (connection, request) => {
  if (request.xid === null) connection.grant();
  else connection.reply(request);
};

/** Grants sessions, and then says nothing more. */
export const deaf: Handler = (connection, request) => {
  if (request.xid === null) connection.grant();
};

/** A server that does what the test says. */
export class FakeServer {
  readonly connections: FakeConnection[] = [];
  handler: Handler;
  readonly #listener: Server;

  private constructor(handler: Handler) {
    this.handler = handler;
    this.#listener = createServer((socket) => this.#accept(socket));
  }

  static async open(handler: Handler = obliging): Promise<FakeServer> {
    const server = new FakeServer(handler);
    server.#listener.listen(0, "127.0.0.1");
    await once(server.#listener, "listening");
    onTestFinished(() => server.close());
    return server;
  }

  get name(): string {
    return `127.0.0.1:${(this.#listener.address() as AddressInfo).port}`;
  }

  /** The connection that came last. */
  get last(): FakeConnection {
    return this.connections.at(-1)!;
  }

  /** All requests of this type on all connections. */
  requests(type: number | null): SeenRequest[] {
    return this.connections.flatMap(({ seen }) => seen.filter((one) => one.type === type));
  }

  close(): void {
    this.#listener.close();
    for (const { socket } of this.connections) socket.destroy();
  }

  #accept(socket: Socket): void {
    const connection = new FakeConnection(socket);
    this.connections.push(connection);
    let bytes = Buffer.alloc(0);
    let greeted = false;
    socket.on("error", () => {});
    socket.on("data", (chunk) => {
      bytes = Buffer.concat([bytes, chunk]);
      while (bytes.length >= 4 && bytes.length >= 4 + bytes.readInt32BE(0)) {
        const end = 4 + bytes.readInt32BE(0);
        const body = bytes.subarray(4, end);
        bytes = bytes.subarray(end);
        const request = greeted
          ? { xid: body.readInt32BE(0), type: body.readInt32BE(4), body: body.subarray(8) }
          : { xid: null, type: null, body };
        greeted = true;
        connection.seen.push(request);
        this.handler(connection, request);
      }
    });
  }
}

/** Opens a client that is closed with the test. */
export async function openClient(options: ZooKeeperClientOptions): Promise<ZooKeeperClient> {
  const client = await ZooKeeperClient.open(options);
  onTestFinished(async () => {
    const closing = client.close();
    // On a virtual clock, a silent server would be waited for without end.
    if (options.clock instanceof VirtualClock) await options.clock.advance(client.sessionTimeoutMs);
    await closing;
  });
  return client;
}

/** A client on a virtual clock, and the events that it has had. */
export async function onVirtualClock(
  servers: readonly FakeServer[],
  more: Partial<ZooKeeperClientOptions> = {},
): Promise<{ client: ZooKeeperClient; clock: VirtualClock; log: EventLog }> {
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
export async function pass(clock: VirtualClock, ms: number): Promise<void> {
  for (let left = ms; left > 0; left -= 50) {
    await clock.advance(Math.min(50, left));
    for (let i = 0; i < 5; i++) await turn();
  }
}

/** Resolves when the client is back; a server that was not asked anything yet is tried again after a pause. */
export const returns = (clock: VirtualClock, log: EventLog): Promise<void> =>
  until("it is back", async () => {
    await pass(clock, 50);
    return log.names.at(-1) !== "suspended";
  });

/** A session whose ticket can be read. */
export async function openSession(
  options: ZooKeeperClientOptions,
): Promise<{ session: Session; log: EventLog }> {
  const log = new EventLog();
  const listeners = new Listeners();
  listeners.on("suspended", log.on.suspended!);
  listeners.on("reconnected", log.on.reconnected!);
  listeners.on("lost", log.on.lost!);
  const settings = checkedSettings(options);
  const session = new Session(settings, listeners, new Watches(settings.chroot));
  onTestFinished(() => session.close());
  await session.open();
  return { session, log };
}

/** Resolves with a connection that has resumed the ticket's session, or with the reason why it has not. */
export function present(
  { address: host, port }: { address: string; port: number },
  ticket: SessionTicket,
): Promise<Connection | string> {
  const server = { host, port, name: `${host}:${port}` };
  const clock = systemClock();
  const options = { server, number: 1, tls: undefined, clock, maxReplyBytes: 1_024 };
  return new Promise((resolve) => {
    const connection: Connection = new Connection(
      { ...options, ticket: () => ticket },
      {
        attached: ({ timeoutMs }) => resolve(timeoutMs > 0 ? connection : "expired"),
        closed: resolve,
        replied() {},
        noticed() {},
      },
    );
    onTestFinished(() => connection.destroy("the test is over"));
  });
}

/** The names of a client's events in order, and how to wait for the next of a kind. */
export class EventLog {
  readonly names: string[] = [];
  readonly reasons: string[] = [];
  readonly on: Partial<ZooKeeperEvents> = {
    connected: () => this.names.push("connected"),
    suspended: ({ message }) => this.#add("suspended", message),
    reconnected: () => this.names.push("reconnected"),
    lost: ({ message }) => this.#add("lost", message),
    closed: () => this.names.push("closed"),
  };

  #add(name: string, reason: string): void {
    this.names.push(name);
    this.reasons.push(reason);
  }

  has(name: string, count = 1, withinMs?: number): Promise<void> {
    const isSo = (): boolean => this.names.filter((one) => one === name).length >= count;
    return until(`the event ${name}`, isSo, withinMs);
  }
}

/** The error with which the promise rejects must have this code. */
export async function expectCode(promise: Promise<unknown>, code: string): Promise<Error> {
  const error = await promise.then(
    () => new Error("it succeeded"),
    (reason: Error) => reason,
  );
  expect(error).toMatchObject({ code });
  return error;
}
