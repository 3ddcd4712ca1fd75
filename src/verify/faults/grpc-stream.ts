import {
  type ClientHttp2Session,
  type ClientHttp2Stream,
  constants,
  type Http2Stream,
  type IncomingHttpHeaders,
  type IncomingHttpStatusHeader,
  type ServerHttp2Stream,
} from "node:http2";
import { Link, type LinkSettings } from "./link.js";
import type { Direction } from "./rules.js";

const { NGHTTP2_CANCEL, NGHTTP2_FLAG_END_STREAM, NGHTTP2_INTERNAL_ERROR, NGHTTP2_REFUSED_STREAM } =
  constants;

/** The purpose of an etcd client's stream; "calls" are all requests with one reply. */
export type GrpcKind = "watch" | "keepalive" | "calls";

type ResponseHeaders = IncomingHttpHeaders & IncomingHttpStatusHeader;

/** One HTTP/2 stream of a client, and the one that the proxy has to the server for it. */
export class GrpcStream extends Link {
  readonly kind: GrpcKind;
  readonly gone: Promise<unknown>;
  readonly #client: ServerHttp2Stream;
  readonly #session: ClientHttp2Session;
  /** Opened when the request headers are delivered: rules hold them back, too. */
  #upstream: ClientHttp2Stream | null = null;
  #trailers: IncomingHttpHeaders = {};
  #settleGone: () => void = () => {};

  constructor(
    client: ServerHttp2Stream,
    headers: IncomingHttpHeaders,
    session: ClientHttp2Session,
    settings: LinkSettings,
  ) {
    super(settings);
    this.kind = kindOf(headers[":path"]);
    this.#client = client;
    this.#session = session;
    this.gone = new Promise<void>((resolve) => {
      this.#settleGone = resolve;
    });
    client.on("error", () => {});
    client.on("drain", () => this.toClient.drained());
    client.on("wantTrailers", () => {
      if (!client.closed) client.sendTrailers(this.#trailers);
    });
    this.toServer.take(() => this.#open(headers));
    client.on("data", (bytes: Buffer) => this.toServer.take(bytes));
    client.on("end", () => this.toServer.take(() => this.#upstream?.end()));
    client.on("close", () => {
      this.toClient.drop();
      this.toServer.take(() => this.#cancel());
      this.#checkGone();
    });
  }

  write(direction: Direction, bytes: Buffer): boolean {
    const receiver = direction === "to-server" ? this.#upstream : this.#client;
    // A closed stream accepts everything; its lane is dropped when the stream reports the close.
    return receiver === null || receiver.closed || receiver.writableEnded || receiver.write(bytes);
  }

  hold(direction: Direction, waits: boolean): void {
    const sender = direction === "to-server" ? this.#client : this.#upstream;
    if (waits) sender?.pause();
    else sender?.resume();
  }

  resetAfter(bytes: Buffer): void {
    this.toServer.drop();
    this.toClient.drop();
    if (this.#upstream === null) this.reset();
    else this.#upstream.write(bytes, () => this.reset());
  }

  protected resetSides(): void {
    // A client may repeat a refused request by itself, which is right only if the request was never
    // sent.
    reset(this.#client, this.#upstream === null ? NGHTTP2_REFUSED_STREAM : NGHTTP2_INTERNAL_ERROR);
    this.resetServer();
    this.#checkGone();
  }

  protected resetServer(): void {
    if (this.#upstream !== null) reset(this.#upstream, NGHTTP2_CANCEL);
  }

  protected resetClient(): void {
    this.reset();
  }

  #open(headers: IncomingHttpHeaders): void {
    if (this.isCut || this.#session.closed || this.#session.destroyed) {
      this.reset();
      return;
    }
    const upstream = this.#session.request(headers);
    this.#upstream = upstream;
    upstream.on("error", () => {});
    upstream.on("drain", () => this.toServer.drained());
    upstream.on("response", (response, flags) => {
      const isLast = (flags & NGHTTP2_FLAG_END_STREAM) !== 0;
      this.toClient.take(() => this.#respond(response, isLast));
    });
    upstream.on("data", (bytes: Buffer) => this.toClient.take(bytes));
    upstream.on("trailers", (trailers) => {
      this.#trailers = trailers;
    });
    upstream.on("end", () => this.toClient.take(() => this.#end()));
    upstream.on("close", () => {
      this.toServer.drop();
      const { rstCode } = upstream;
      // A lost connection ends its streams, too; the client then loses its own connection.
      if (rstCode !== 0 && !this.#session.destroyed)
        this.toClient.take(() => reset(this.#client, rstCode));
      this.#checkGone();
    });
  }

  #respond(response: ResponseHeaders, isLast: boolean): void {
    // Headers alone are no reply yet: the server may send them before the request takes effect.
    if (isLast && this.loseReply()) return;
    if (this.#client.closed || this.#client.headersSent) return;
    const options = { endStream: isLast, waitForTrailers: !isLast, sendDate: false };
    this.#client.respond(response, options);
  }

  #end(): void {
    if (this.#client.closed || this.#client.writableEnded || this.loseReply()) return;
    this.#client.end();
  }

  /** The client has closed its stream. */
  #cancel(): void {
    if (this.#upstream === null) this.#checkGone();
    else reset(this.#upstream, NGHTTP2_CANCEL);
  }

  #checkGone(): void {
    const isUpstreamGone =
      this.#upstream === null ? this.toServer.isEmpty : this.#upstream.destroyed;
    if (this.#client.destroyed && isUpstreamGone) this.#settleGone();
  }
}

function kindOf(path: string | undefined): GrpcKind {
  if (path === "/etcdserverpb.Watch/Watch") return "watch";
  return path === "/etcdserverpb.Lease/LeaseKeepAlive" ? "keepalive" : "calls";
}

/** Deferred, because Node 20 can hang in native code if a stream is reset in a callback of its session. */
function reset(stream: Http2Stream, code: number): void {
  setImmediate(() => {
    if (!stream.closed) stream.close(code);
    // Unread data would keep the stream open.
    stream.resume();
  });
}
