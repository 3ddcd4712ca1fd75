import {
  type ClientHttp2Session,
  connect,
  performServerHandshake,
  type ServerHttp2Session,
} from "node:http2";
import type { Socket } from "node:net";
import { GrpcStream } from "./grpc-stream.js";
import type { Link, LinkSettings } from "./link.js";

/** How long a client waits for the reply to a keepalive ping. */
const PING_TIMEOUT_MS = 2_000;
/** The limit on open streams, because each may hold bytes back. */
const STREAMS = 1_000;

/** How many chunks of a client are read before its server is connected. */
const EARLY_CHUNKS = 16;

/** One HTTP/2 connection of a client, and the one that the proxy has to the server for it. */
export class GrpcSession {
  /** Resolves when both connections are closed. */
  readonly gone: Promise<unknown>;
  readonly #socket: Socket;
  readonly #upstream: ClientHttp2Session;
  readonly #settings: LinkSettings;
  readonly #add: (stream: Link) => void;
  #openStreams = 0;
  readonly #pings = new Set<NodeJS.Timeout>();

  constructor(socket: Socket, url: string, settings: LinkSettings, add: (stream: Link) => void) {
    this.#socket = socket;
    this.#settings = settings;
    this.#add = add;
    this.#upstream = connect(url);
    this.#upstream.on("error", () => {});
    this.#upstream.on("close", () => this.reset());
    // The client learns that a server is there from the server, as it would without the proxy.
    this.#upstream.once(
      "remoteSettings",
      readEarly(socket, () => this.#serve()),
    );
    socket.on("error", () => {});
    socket.on("close", () => this.#checkEnd());
    this.gone = Promise.all(
      [socket, this.#upstream].map(
        (one) => new Promise<void>((resolve) => void one.once("close", resolve)),
      ),
    );
  }

  reset(): void {
    for (const timer of this.#pings) clearTimeout(timer);
    if (!this.#socket.destroyed) this.#socket.resetAndDestroy();
    // Deferred, because Node 20 can hang if a session is destroyed in a callback of its own.
    setImmediate(() => this.#upstream.destroy());
  }

  #serve(): void {
    const session = performServerHandshake(this.#socket, {
      settings: { maxConcurrentStreams: STREAMS },
    });
    session.on("error", () => {});
    session.on("stream", (stream, headers) => {
      const { rules, traffic } = this.#settings;
      const link = new GrpcStream(stream, headers, this.#upstream, { rules, traffic });
      this.#openStreams++;
      link.gone.then(() => {
        this.#openStreams--;
        this.#checkEnd();
      });
      this.#add(link);
    });
    session.on("ping", () => this.#ping());
    // A server that shuts down lets open streams end; the client opens new streams elsewhere.
    this.#upstream.on("goaway", () => close(session));
  }

  /** Closes when both sides are done: requests of a client that has gone are still delivered when a stall ends. */
  #checkEnd(): void {
    if (this.#socket.destroyed && this.#openStreams === 0) this.reset();
  }

  /**
   * Node has already replied to the client's ping, so the proxy pings the server itself: if the
   * server does not reply, the client loses its connection.
   */
  #ping(): void {
    if (this.#upstream.destroyed) return;
    const timer = setTimeout(() => this.reset(), PING_TIMEOUT_MS);
    this.#pings.add(timer);
    this.#upstream.ping(() => {
      clearTimeout(timer);
      this.#pings.delete(timer);
    });
  }
}

/**
 * Reads from a socket that is not served yet, to notice when the client leaves. Returns a function
 * that gives the bytes back and begins to serve.
 */
function readEarly(socket: Socket, serve: () => void): () => void {
  const early: Buffer[] = [];
  const keep = (bytes: Buffer): void => {
    early.push(bytes);
    if (early.length === EARLY_CHUNKS) socket.pause();
  };
  socket.on("data", keep);
  return () => {
    socket.off("data", keep);
    if (socket.destroyed || socket.readableEnded) return;
    socket.pause();
    if (early.length > 0) socket.unshift(Buffer.concat(early));
    serve();
  };
}

function close(session: ServerHttp2Session): void {
  if (!session.closed) session.close();
}
