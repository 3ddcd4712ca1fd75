import { once } from "node:events";
import { createServer, connect as dial, type Server as Listener } from "node:net";
import { freePort } from "../lab/ports.js";
import { type Fault, fault } from "./fault.js";
import { type Direction, type Filter, Link, type Rule, type Traffic } from "./link.js";

export interface Target {
  readonly address: string;
  readonly port: number;
  readonly name?: string;
  /** If it has one, the proxy has the like of it. */
  readonly url?: string;
}

export interface Strikes {
  /** Any request, if left out. */
  readonly when?: Filter;
  /** How often; once if left out, `Infinity` for as long as it is not healed. */
  readonly times?: number;
}

/** A fault that waits for its occasion. */
export interface ProxyFault extends Fault {
  /** How often it has struck since it was injected. */
  readonly struck: number;
}

const PORT_TRIES = 20;

/**
 * A TCP proxy on loopback in front of one server, whose network can be made to fail. Faults may be
 * in force together. Bytes that vanished never come back, and a stream with a hole is none: where
 * something was swallowed, healing resets the connection.
 */
export class TcpProxy implements AsyncDisposable {
  readonly address = "127.0.0.1";
  readonly name: string;
  readonly traffic: Readonly<Record<Direction, Traffic>> = {
    "to-server": { chunks: 0, bytes: 0 },
    "to-client": { chunks: 0, bytes: 0 },
  };
  /** Ever accepted. */
  connections = 0;
  #port = 0;
  #listener: Listener | null = null;
  #closed = false;
  readonly #target: Target;
  readonly #rules = new Set<Rule>();
  readonly #links = new Set<Link>();

  private constructor(target: Target) {
    this.#target = target;
    this.name = target.name ?? `${target.address}:${target.port}`;
  }

  static async open(target: Target): Promise<TcpProxy> {
    const proxy = new TcpProxy(target);
    await proxy.#listen();
    return proxy;
  }

  get port(): number {
    return this.#port;
  }

  get url(): string {
    const { address, port, url } = this.#target;
    const here = `${this.address}:${this.port}`;
    return url?.replace(`${address}:${port}`, here) ?? `tcp://${here}`;
  }

  get openConnections(): number {
    return this.#links.size;
  }

  /** Connections are reset, and new ones refused. */
  cut(): Fault {
    return this.#fault(`${this.name} cut off`, { cuts: true });
  }

  /** Bytes arrive this much later, in order; in both directions if none is named. */
  delay(delayMs: number, direction?: Direction): Fault {
    return this.#fault(`${this.name} ${delayMs} ms away`, { delayMs, direction });
  }

  /** A black hole: connections stay open, and the bytes of one direction vanish. */
  swallow(direction: Direction): Fault {
    return this.#fault(`${this.name} silent`, { swallows: true, direction });
  }

  /** Bytes are held back, and delivered in order when healed, also those of clients that have gone. */
  stall(direction?: Direction): Fault {
    return this.#fault(`${this.name} stalled`, { stalls: true, direction });
  }

  /** A part of the request reaches the server, then both sides are reset. */
  resetMidCommand({ when, times = 1 }: Strikes = {}): ProxyFault {
    return this.#strikes(`${this.name} resets in mid-command`, times, (strike) => ({
      onRequest(link, bytes) {
        if (!link.asks(when) || !strike()) return false;
        link.resetAfter(bytes.subarray(0, middle(bytes, when)));
        return true;
      },
    }));
  }

  /**
   * The request takes effect; of the reply nothing arrives. The first bytes that the server sends
   * after the request count as the reply. The client's connection is reset, or stays open and silent.
   */
  loseReply({
    when,
    times = 1,
    silent = false,
  }: Strikes & { readonly silent?: boolean } = {}): ProxyFault {
    const name = `${this.name} loses replies${silent ? " in silence" : ""}`;
    return this.#strikes(name, times, (strike) => ({
      onRequest(link) {
        if (link.asks(when) && strike()) link.losesReply(silent, this);
        return false;
      },
    }));
  }

  /** Leaves no socket and no timer. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#rules.clear();
    await Promise.all([this.#refuse(), this.#resetAll()]);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #fault(name: string, rule: Rule): Fault {
    return fault(
      rule.direction === undefined ? name : `${name} ${rule.direction}`,
      () => {
        this.#rules.add(rule);
        return this.#obey();
      },
      () => {
        this.#rules.delete(rule);
        for (const link of this.#links) link.closeHole(rule);
        return this.#obey();
      },
    );
  }

  #strikes(name: string, times: number, ruleOf: (strike: () => boolean) => Rule): ProxyFault {
    let struck = 0;
    const rule = ruleOf(() => struck < times && ++struck > 0);
    const { inject, heal } = this.#fault(name, rule);
    return {
      name,
      inject() {
        struck = 0;
        return inject();
      },
      heal,
      get struck() {
        return struck;
      },
    };
  }

  async #obey(): Promise<void> {
    if (this.#closed) return;
    const cut = [...this.#rules].some((rule) => rule.cuts);
    if (cut) await Promise.all([this.#refuse(), this.#resetAll()]);
    else if (this.#listener === null) await this.#listen();
    for (const link of this.#links) link.pump();
  }

  async #listen(): Promise<void> {
    const listener = createServer({ allowHalfOpen: true, noDelay: true }, (client) => {
      this.connections++;
      const { address: host, port } = this.#target;
      const upstream = dial({ host, port, allowHalfOpen: true, noDelay: true });
      const link = new Link(client, upstream, this.#rules, this.traffic);
      this.#links.add(link);
      link.gone.then(() => this.#links.delete(link));
    });
    for (let attempt = 1; ; attempt++) {
      const port = this.#port || (await freePort());
      try {
        await once(listener.listen(port, this.address), "listening");
        this.#port = port;
        break;
      } catch (error) {
        // Others look for free ports too; after a cut it has to be the same.
        if (attempt === PORT_TRIES || this.#port !== 0) throw error;
      }
    }
    listener.on("error", () => {});
    this.#listener = listener;
    if (this.#closed) await this.#refuse();
  }

  /** Nobody listens any more as soon as this returns. */
  async #refuse(): Promise<void> {
    const listener = this.#listener;
    this.#listener = null;
    if (listener !== null) await new Promise((resolve) => listener.close(resolve));
  }

  async #resetAll(): Promise<void> {
    for (const link of this.#links) link.reset();
    await Promise.all([...this.#links].map(({ gone }) => gone));
  }
}

/** Inside of what was looked for, if it is there: bytes before it may be whole requests. */
function middle(bytes: Buffer, when?: Filter): number {
  const at = typeof when === "string" ? bytes.indexOf(when) : -1;
  return Math.floor(at === -1 ? bytes.length / 2 : at + when!.length / 2);
}
