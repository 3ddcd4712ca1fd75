import { once } from "node:events";
import { createServer, connect as dial, type Server as Listener } from "node:net";
import { freePort } from "../lab/ports.js";
import { FaultyProxy } from "./faulty-proxy.js";
import { type KindReader, TcpLink } from "./tcp-link.js";

export type { ProxyFault, Strikes } from "./rules.js";

export interface Target {
  readonly address: string;
  readonly port: number;
  readonly name?: string;
  /** The server's URL, if it has one. The proxy then has a URL with its own port. */
  readonly url?: string;
}

export interface TcpProxyOptions {
  /**
   * Called for each new connection, to make a reader that finds its kind. Without it, no fault can
   * be limited by `only`. For Redis, pass `redisConnectionKind`.
   */
  readonly kindOf?: () => KindReader;
}

const PORT_TRIES = 20;

/**
 * A TCP proxy on loopback in front of one server, whose network can be made to fail. Faults may be
 * active together, and each can be limited to one kind of connection. Vanished bytes never come back
 * and leave a hole in the stream, so healing resets the connections on which bytes were swallowed.
 *
 * @example
 * ```ts
 * await using proxy = await TcpProxy.open(redis, { kindOf: redisConnectionKind });
 * const deaf = proxy.swallow("to-client", { only: "subscription" });
 * await deaf.inject(); // commands are answered, published messages never arrive
 * await deaf.heal();
 * ```
 */
export class TcpProxy extends FaultyProxy implements AsyncDisposable {
  /** The host to connect to. */
  readonly address = "127.0.0.1";
  /** How many connections were accepted so far. */
  connections = 0;
  #port = 0;
  #listener: Listener | null = null;
  #closed = false;
  readonly #target: Target;
  readonly #kindOf: TcpProxyOptions["kindOf"];

  private constructor(target: Target, { kindOf }: TcpProxyOptions) {
    super(target.name ?? `${target.address}:${target.port}`);
    this.#target = target;
    this.#kindOf = kindOf;
  }

  /** Listens on a free port, which stays the same for the life of the proxy. */
  static async open(target: Target, options: TcpProxyOptions = {}): Promise<TcpProxy> {
    const proxy = new TcpProxy(target, options);
    await proxy.#listen();
    return proxy;
  }

  /** The port on which the proxy listens. */
  get port(): number {
    return this.#port;
  }

  /** The proxy's URL for `connect`. */
  get url(): string {
    const { address, port, url } = this.#target;
    const here = `${this.address}:${this.port}`;
    return url?.replace(`${address}:${port}`, here) ?? `tcp://${here}`;
  }

  /** How many connections of clients are open. */
  get openConnections(): number {
    return this.links.size;
  }

  /** Closes the proxy. No socket and no timer is left. */
  async close(): Promise<void> {
    this.#closed = true;
    this.rules.clear();
    await Promise.all([this.#refuse(), this.reset(() => true)]);
  }

  /** The same as `close`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  protected override async obey(): Promise<void> {
    if (this.#closed) return;
    const cut = [...this.rules].some(({ cuts, only }) => cuts && only === undefined);
    if (cut) await Promise.all([this.#refuse(), super.obey()]);
    else {
      if (this.#listener === null) await this.#listen();
      await super.obey();
    }
  }

  protected override checkKind(only: string): void {
    if (this.#kindOf !== undefined) return;
    throw new TypeError(
      `the proxy of ${this.name} can't limit a fault to ${only} connections: open it with kindOf`,
    );
  }

  async #listen(): Promise<void> {
    const listener = createServer({ allowHalfOpen: true, noDelay: true }, (client) => {
      this.connections++;
      const { address: host, port } = this.#target;
      const upstream = dial({ host, port, allowHalfOpen: true, noDelay: true });
      const { rules, traffic } = this;
      this.add(new TcpLink(client, upstream, { rules, traffic }, this.#kindOf?.()));
    });
    for (let attempt = 1; ; attempt++) {
      const port = this.#port || (await freePort());
      try {
        await once(listener.listen(port, this.address), "listening");
        this.#port = port;
        break;
      } catch (error) {
        // Other processes look for free ports, too; after a cut it has to be the same port.
        if (attempt === PORT_TRIES || this.#port !== 0) throw error;
      }
    }
    listener.on("error", () => {});
    this.#listener = listener;
    if (this.#closed) await this.#refuse();
  }

  /** Stops listening at once; resolves when the port is closed. */
  async #refuse(): Promise<void> {
    const listener = this.#listener;
    this.#listener = null;
    if (listener !== null) await new Promise((resolve) => listener.close(resolve));
  }
}
