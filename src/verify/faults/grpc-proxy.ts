import { once } from "node:events";
import { createServer } from "node:net";
import type { Fault } from "../fault.js";
import { FaultyProxy } from "./faulty-proxy.js";
import { GrpcSession } from "./grpc-session.js";
import type { GrpcKind } from "./grpc-stream.js";
import { type Target, TcpProxy } from "./proxy.js";
import type { Direction, Limit, ProxyFault, Strikes } from "./rules.js";

export type { GrpcKind } from "./grpc-stream.js";

/**
 * A proxy on loopback in front of one etcd server, without TLS. A client has all its calls and
 * streams on one HTTP/2 connection; this proxy can make one kind of stream fail while the others
 * work. A fault without `only` hits the whole connection, as in a `TcpProxy`.
 *
 * @example
 * ```ts
 * await using proxy = await GrpcProxy.open(etcd);
 * const deaf = proxy.swallow("to-client", { only: "watch" });
 * await deaf.inject(); // leases are kept alive and calls answered, but no watch receives an event
 * await deaf.heal();
 * ```
 */
export class GrpcProxy implements AsyncDisposable {
  /** The host to connect to. */
  readonly address = "127.0.0.1";
  readonly #connections: TcpProxy;
  readonly #streams: GrpcStreams;

  private constructor(connections: TcpProxy, streams: GrpcStreams) {
    this.#connections = connections;
    this.#streams = streams;
  }

  /** Listens on a free port, which stays the same for the life of the proxy. */
  static async open(target: Target): Promise<GrpcProxy> {
    const streams = await GrpcStreams.open(target);
    const { address, port } = streams;
    const url = target.url?.replace(`${target.address}:${target.port}`, `${address}:${port}`);
    const connections = await TcpProxy.open({
      address,
      port,
      name: streams.name,
      ...(url === undefined ? {} : { url }),
    });
    return new GrpcProxy(connections, streams);
  }

  /** The name of the server behind the proxy, for the names of faults. */
  get name(): string {
    return this.#streams.name;
  }

  /** The port on which the proxy listens. */
  get port(): number {
    return this.#connections.port;
  }

  /** The proxy's URL for `connect`. */
  get url(): string {
    return this.#connections.url;
  }

  /** How many connections were accepted so far. */
  get connections(): number {
    return this.#connections.connections;
  }

  /** How many connections of clients are open. */
  get openConnections(): number {
    return this.#connections.openConnections;
  }

  /** How many streams of this kind are open at either side. */
  openStreams(kind: GrpcKind): number {
    return this.#streams.count(kind);
  }

  /** Connections are reset and new ones refused; with `only`, streams of that kind are. */
  cut(limit: Limit<GrpcKind> = {}): Fault {
    return this.#part(limit).cut(limit);
  }

  /** Closes only the server's side of connections, until healing resets them; with `only`, of streams of the kind. */
  leaveHalfOpen(limit: Limit<GrpcKind> = {}): Fault {
    return this.#part(limit).leaveHalfOpen(limit);
  }

  /** Messages arrive this much later, in order. Default: in both directions. */
  delay(delayMs: number, direction?: Direction, limit: Limit<GrpcKind> = {}): Fault {
    return this.#part(limit).delay(delayMs, direction, limit);
  }

  /** Streams stay open, and the messages of one direction vanish; healing resets these streams. */
  swallow(direction: Direction, limit: Limit<GrpcKind> = {}): Fault {
    return this.#part(limit).swallow(direction, limit);
  }

  /** Messages are held back, and delivered in order when healed. */
  stall(direction?: Direction, limit: Limit<GrpcKind> = {}): Fault {
    return this.#part(limit).stall(direction, limit);
  }

  /** Half a message arrives, then nothing more in that direction, until healing resets the stream. */
  truncate(direction: Direction, strikes: Strikes<GrpcKind> = {}): ProxyFault {
    return this.#part(strikes).truncate(direction, strikes);
  }

  /** A part of the request reaches the server, then both sides of the stream are reset. */
  resetMidCommand(strikes: Strikes<GrpcKind> = {}): ProxyFault {
    return this.#part(strikes).resetMidCommand(strikes);
  }

  /**
   * The request takes effect, but nothing of the reply arrives. The client's stream is reset, or
   * stays open and silent until healed. Even without `only`, this hits one stream and not the
   * connection.
   */
  loseReply(strikes: Strikes<GrpcKind> & { readonly silent?: boolean } = {}): ProxyFault {
    return this.#streams.loseReply(strikes);
  }

  /** Closes the proxy. No socket and no timer is left. */
  async close(): Promise<void> {
    await this.#connections.close();
    await this.#streams.close();
  }

  /** The same as `close`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #part({ only }: Limit<GrpcKind>): FaultyProxy<GrpcKind> {
    return only === undefined ? this.#connections : this.#streams;
  }
}

/** The streams of all connections. */
class GrpcStreams extends FaultyProxy<GrpcKind> {
  readonly address = "127.0.0.1";
  readonly #sessions = new Set<GrpcSession>();
  readonly #listener;

  private constructor(target: Target) {
    super(target.name ?? `${target.address}:${target.port}`);
    const { rules, traffic } = this;
    this.#listener = createServer({ noDelay: true }, (socket) => {
      const url = `http://${target.address}:${target.port}`;
      const session = new GrpcSession(socket, url, { rules, traffic }, (link) => this.add(link));
      this.#sessions.add(session);
      session.gone.then(() => this.#sessions.delete(session));
    });
  }

  static async open(target: Target): Promise<GrpcStreams> {
    const streams = new GrpcStreams(target);
    await once(streams.#listener.listen(0, streams.address), "listening");
    return streams;
  }

  get port(): number {
    return (this.#listener.address() as { port: number }).port;
  }

  count(kind: GrpcKind): number {
    return [...this.links].filter((link) => link.kind === kind).length;
  }

  async close(): Promise<void> {
    this.rules.clear();
    const closed = new Promise((resolve) => this.#listener.close(resolve));
    const reset = this.reset(() => true);
    for (const session of this.#sessions) session.reset();
    await Promise.all([closed, reset, ...[...this.#sessions].map(({ gone }) => gone)]);
  }

  protected override checkKind(): void {}
}
