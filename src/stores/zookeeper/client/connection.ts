import { connect as connectPlain, type Socket } from "node:net";
import { connect as connectTls, type SecureContext } from "node:tls";
import { reasonOf } from "../../../core/cause.js";
import type { Clock } from "../../../core/clock.js";
import { Xid, type ZooKeeperErrorCode } from "./codes.js";
import { type ConnectionInfo, RefusedReply, type Reply } from "./errors.js";
import { Fifo } from "./fifo.js";
import { FrameReader, JuteReader, JuteWriter, MalformedReply } from "./jute.js";
import type { Request } from "./request.js";
import type { ServerAddress } from "./servers.js";

/** A reply to the connect request is far shorter: until it is there, nothing longer is read. */
const HANDSHAKE_BYTES = 1_024;
const NO_NODE = -101;
/**
 * A server reads no more than this many requests ahead of its replies (`globalOutstandingLimit`). Further ones
 * would wait in the network, and a ping behind them.
 */
const MAX_AWAITING = 1_000;

/** Servers give no reason. */
const CLOSED_BEFORE_GRANT =
  "the server closed it without granting a session: it may have no majority, be behind what this client has " +
  "seen, or permit no more connections from this address (maxClientCnxns)";

/** The fields of `tls.connect`. */
export interface ConnectionTls {
  readonly secureContext: SecureContext;
  readonly servername?: string;
}

/** A client presents it to a server to begin a session, or to resume it. */
export interface SessionTicket {
  /** 0 for a new session. */
  readonly id: bigint;
  readonly password: Buffer;
  readonly timeoutMs: number;
  /** A server that is behind it closes the connection. */
  readonly lastZxid: bigint;
}

/** The server's grant: a timeout of 0 says that the session has expired. */
export type GrantedSession = Omit<SessionTicket, "lastZxid">;

/** An event as the server sends it. */
export interface ServerEvent {
  readonly type: number;
  readonly path: string;
  readonly zxid: bigint;
}

/** The owner of a connection. After `closed`, nothing more is called. */
export interface ConnectionOwner {
  attached(session: GrantedSession): void;
  /** Called in the same step in which the request settles. `code`: the error; null if it succeeded. */
  replied(reply: Reply, code: ZooKeeperErrorCode | null): void;
  noticed(event: ServerEvent): void;
  closed(reason: string): void;
}

export interface ConnectionOptions {
  readonly server: ServerAddress;
  readonly number: number;
  readonly tls: ConnectionTls | undefined;
  readonly clock: Clock;
  readonly maxReplyBytes: number;
  /** Asked when the connect request is sent. */
  readonly ticket: () => SessionTicket;
}

type Outcome = { readonly value: unknown } | RefusedReply;

/** One TCP or TLS connection: its handshake, its frames, and which reply answers which request. */
export class Connection {
  readonly #options: ConnectionOptions;
  readonly #owner: ConnectionOwner;
  readonly #socket: Socket;
  readonly #frames = new FrameReader(HANDSHAKE_BYTES);
  /** Replies come in order within each kind of request number. */
  readonly #awaiting = new Map<number, Fifo<Request>>();
  /** When bytes were received last. */
  receivedAtMs = Number.NEGATIVE_INFINITY;
  #info: ConnectionInfo;
  #attached = false;
  #over = false;
  #lastXid = 0;
  #error: unknown = null;

  constructor(options: ConnectionOptions, owner: ConnectionOwner) {
    this.#options = options;
    this.#owner = owner;
    const { server, number, tls } = options;
    this.#info = { number, server: server.name, connectSentAtMs: Number.NEGATIVE_INFINITY };
    const { host, port } = server;
    this.#socket =
      tls === undefined ? connectPlain({ host, port }) : connectTls({ ...tls, host, port });
    this.#socket.setNoDelay(true);
    // The timers of pending requests keep the process alive, and an idle client does not.
    this.#socket.unref();
    this.#socket.once(tls === undefined ? "connect" : "secureConnect", () => this.#greet());
    this.#socket.on("data", (chunk: Buffer) => this.#receive(chunk));
    this.#socket.on("error", (error) => {
      this.#error = error;
    });
    this.#socket.once("close", () => this.#end(this.#reason()));
  }

  get info(): ConnectionInfo {
    return this.#info;
  }

  /** How many more requests may be sent before a reply. */
  get room(): number {
    return MAX_AWAITING - this.#awaitingOf(1).length;
  }

  /** Sends the requests together. `nowMs` must have been read in this turn of the event loop. */
  send(requests: readonly Request[], nowMs: number): void {
    const frames = requests.map((request) => {
      const xid = request.operation.xid ?? this.#nextXid();
      this.#awaitingOf(xid).add(request);
      return request.frame(xid, nowMs, this.#info.server);
    });
    this.#socket.write(frames.length === 1 ? frames[0]! : Buffer.concat(frames));
  }

  /** Ends the connection without notifying its owner; requests without a reply fail. */
  destroy(reason: string): void {
    if (this.#over) return;
    this.#over = true;
    this.#socket.destroy();
    for (const requests of this.#awaiting.values()) {
      while (requests.length > 0) {
        requests.take()!.fail("CONNECTION_LOSS", { reason: `the connection was lost: ${reason}` });
      }
    }
  }

  #end(reason: string): void {
    if (this.#over) return;
    this.destroy(reason);
    this.#owner.closed(reason);
  }

  #reason(): string {
    if (this.#error !== null) return reasonOf(this.#error);
    return this.#attached ? "the server closed it" : CLOSED_BEFORE_GRANT;
  }

  #greet(): void {
    const { clock, ticket } = this.#options;
    const { id, password, timeoutMs, lastZxid } = ticket();
    const writer = new JuteWriter();
    writer.int(0);
    writer.long(lastZxid);
    writer.int(timeoutMs);
    writer.long(id);
    writer.bytes(password);
    // A server that has lost its majority must not serve the session.
    writer.bool(false);
    this.#info = { ...this.#info, connectSentAtMs: clock.elapsedMs() };
    this.#socket.write(writer.frame());
  }

  #receive(chunk: Buffer): void {
    if (this.#over) return;
    const nowMs = this.#options.clock.elapsedMs();
    this.receivedAtMs = nowMs;
    this.#frames.push(chunk);
    try {
      for (let frame = this.#frames.next(); frame !== null; frame = this.#frames.next()) {
        if (this.#attached) this.#take(new JuteReader(frame), nowMs);
        else this.#attach(new JuteReader(frame));
        if (this.#over) return;
      }
    } catch (error) {
      if (!(error instanceof MalformedReply)) throw error;
      this.#end(error.message);
    }
  }

  #attach(reply: JuteReader): void {
    if (this.#info.connectSentAtMs === Number.NEGATIVE_INFINITY) {
      throw new MalformedReply("a reply before the connect request");
    }
    reply.int();
    const timeoutMs = reply.int();
    const id = reply.long();
    const password = reply.bytes();
    const isReadOnly = reply.remaining > 0 && reply.bool();
    if (isReadOnly) this.#end("the server has no majority and serves reads only");
    else {
      this.#attached = true;
      this.#frames.maxBytes = this.#options.maxReplyBytes;
      this.#owner.attached({ id, password, timeoutMs });
    }
  }

  #take(body: JuteReader, answeredAtMs: number): void {
    const [xid, zxid, number] = [body.int(), body.long(), body.int()];
    if (xid === Xid.event) {
      this.#owner.noticed(readEvent(body, zxid));
      return;
    }
    const awaiting = this.#awaitingOf(xid);
    const request = awaiting.first;
    if (request?.xid !== xid) {
      throw new MalformedReply(`a reply to request ${xid}, which is not the next`);
    }
    const outcome = outcomeOf(request, number, body);
    // Settled only now: if the reply is malformed, the request must fail with the connection.
    awaiting.take();
    this.#settle(request, outcome, { zxid, answeredAtMs });
  }

  #settle(
    request: Request,
    outcome: Outcome,
    answered: Pick<Reply, "zxid" | "answeredAtMs">,
  ): void {
    const { isWrite } = request.operation;
    const succeeded = !(outcome instanceof RefusedReply);
    const connection = this.#info;
    const reply = { ...answered, sentAtMs: request.sentAtMs!, connection, isWrite, succeeded };
    if (succeeded) request.succeed(outcome.value, reply);
    else {
      const { code, reason, part, path } = outcome;
      request.fail(code, { reason, part, path, reply });
    }
    // The request may have ended the connection.
    if (!this.#over) this.#owner.replied(reply, succeeded ? null : outcome.code);
  }

  /** All numbers above 0 are one kind, and each of the fixed ones is its own. */
  #awaitingOf(xid: number): Fifo<Request> {
    const kind = Math.min(xid, 1);
    const requests = this.#awaiting.get(kind) ?? new Fifo();
    this.#awaiting.set(kind, requests);
    return requests;
  }

  #nextXid(): number {
    this.#lastXid = (this.#lastXid % 0x7fffffff) + 1;
    return this.#lastXid;
  }
}

function readEvent(reply: JuteReader, zxid: bigint): ServerEvent {
  const type = reply.int();
  // The state of the connection, which is known here.
  reply.int();
  return { type, path: reply.text(), zxid };
}

function outcomeOf({ operation }: Request, number: number, reply: JuteReader): Outcome {
  if (number === NO_NODE && operation.missing !== undefined) return { value: operation.missing };
  if (number !== 0) return new RefusedReply(number);
  try {
    return { value: operation.read(reply) };
  } catch (error) {
    if (error instanceof RefusedReply) return error;
    throw error;
  }
}
