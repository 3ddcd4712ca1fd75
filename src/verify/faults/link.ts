import type { Socket } from "node:net";

export type Direction = "to-server" | "to-client";

/** Which requests: those that contain the text, or for which the function says so. */
export type Filter = string | ((request: Buffer) => boolean);

export interface Traffic {
  chunks: number;
  bytes: number;
}

/** What the rules in force do to a link. Everything is decided when bytes are delivered, not when they come in. */
export interface Rule {
  /** Both, if left out. */
  readonly direction?: Direction | undefined;
  readonly cuts?: boolean;
  readonly delayMs?: number;
  readonly stalls?: boolean;
  readonly swallows?: boolean;
  /** True if it did away with the request. */
  readonly onRequest?: (link: Link, bytes: Buffer) => boolean;
}

/** What is held back of one direction of one connection before its sender has to wait. */
const HELD_BYTES = 1024 * 1024;
/** As much of a request is kept to be looked at. */
const REQUEST_BYTES = 64 * 1024;
const NOTHING = Buffer.alloc(0);

/** One connection of a client, and the one that the proxy has to the server for it. */
export class Link {
  /** Resolves when both connections are closed. */
  readonly gone: Promise<unknown>;
  readonly #client: Socket;
  readonly #upstream: Socket;
  readonly #rules: ReadonlySet<Rule>;
  readonly #toServer: Lane;
  readonly #toClient: Lane;
  /** What the client has sent since the server last said something. */
  #request: Buffer = NOTHING;
  #losing: { readonly silent: boolean; readonly rule: Rule } | null = null;

  constructor(
    client: Socket,
    upstream: Socket,
    rules: ReadonlySet<Rule>,
    traffic: Readonly<Record<Direction, Traffic>>,
  ) {
    this.#client = client;
    this.#upstream = upstream;
    this.#rules = rules;
    this.#toServer = new Lane("to-server", client, upstream, rules, traffic, (bytes) =>
      this.#passRequest(bytes),
    );
    this.#toClient = new Lane("to-client", upstream, client, rules, traffic, () =>
      this.#passReply(),
    );
    this.gone = Promise.all(
      [client, upstream].map((socket) => new Promise((resolve) => socket.once("close", resolve))),
    );
  }

  pump(): void {
    this.#toServer.pump();
    this.#toClient.pump();
  }

  reset(): void {
    this.#toServer.drop();
    this.#toClient.drop();
    reset(this.#client);
    reset(this.#upstream);
  }

  asks(when?: Filter): boolean {
    if (when === undefined) return true;
    return typeof when === "string" ? this.#request.includes(when) : when(this.#request);
  }

  resetAfter(bytes: Buffer): void {
    this.#toServer.drop();
    this.#toClient.drop();
    this.#upstream.write(bytes, () => this.reset());
  }

  losesReply(silent: boolean, rule: Rule): void {
    this.#losing ??= { silent, rule };
    // One request, one strike: it is not looked at again with what follows.
    this.#request = NOTHING;
  }

  /** Called when the rule is no more. */
  closeHole(rule: Rule): void {
    if (this.#losing?.rule === rule) this.#losing = null;
    if (this.#toServer.hole === rule || this.#toClient.hole === rule) this.reset();
  }

  #passRequest(bytes: Buffer): boolean {
    for (const rule of this.#rules) {
      if (rule.onRequest === undefined) continue;
      this.#request = Buffer.concat([this.#request, bytes]).subarray(-REQUEST_BYTES);
      break;
    }
    for (const rule of this.#rules) if (rule.onRequest?.(this, bytes)) return false;
    return true;
  }

  #passReply(): boolean {
    this.#request = NOTHING;
    if (this.#losing === null) return true;
    const { silent, rule } = this.#losing;
    this.#losing = null;
    if (silent) this.#toClient.hole = rule;
    else {
      // The server is not reset: it might throw away what it has not read yet.
      this.#toServer.take("end");
      this.#toServer.seal();
      this.#toClient.drop();
      reset(this.#client);
    }
    return false;
  }
}

type Parcel = Buffer | "end" | "reset";

/** One direction of a link: parcels in order, each delivered when the rules let it pass. */
class Lane {
  /** The rule by which something vanished here; from then on everything does. */
  hole: Rule | null = null;
  #sealed = false;
  #full = false;
  #heldBytes = 0;
  #timer: NodeJS.Timeout | undefined;
  readonly #held: { readonly parcel: Parcel; readonly cameMs: number }[] = [];

  constructor(
    readonly direction: Direction,
    readonly source: Socket,
    readonly sink: Socket,
    readonly rules: ReadonlySet<Rule>,
    readonly traffic: Readonly<Record<Direction, Traffic>>,
    readonly passes: (bytes: Buffer) => boolean,
  ) {
    source.on("data", (bytes) => this.take(bytes));
    source.on("end", () => this.take("end"));
    // An error is followed by "close".
    source.on("error", () => {});
    source.on("close", (hadError) => {
      if (hadError || !source.readableEnded) this.take("reset");
    });
    sink.on("drain", () => {
      this.#full = false;
      this.pump();
    });
    sink.on("close", () => clearTimeout(this.#timer));
  }

  take(parcel: Parcel): void {
    if (this.#sealed) return;
    this.#held.push({ parcel, cameMs: performance.now() });
    this.#heldBytes += parcel.length;
    this.pump();
  }

  /** Takes nothing more. What is held is still delivered. */
  seal(): void {
    this.#sealed = true;
  }

  drop(): void {
    this.#sealed = true;
    this.#held.length = 0;
    this.#heldBytes = 0;
    this.pump();
  }

  pump(): void {
    clearTimeout(this.#timer);
    if (this.sink.destroyed && this.#held.length > 0) this.drop();
    while (this.#held.length > 0 && !this.#full && !this.#stalled()) {
      const { parcel, cameMs } = this.#held[0]!;
      const dueInMs = this.#delayMs(cameMs);
      if (dueInMs > 0) {
        this.#timer = setTimeout(() => this.pump(), Math.ceil(dueInMs));
        break;
      }
      this.#held.shift();
      this.#heldBytes -= parcel.length;
      this.#deliver(parcel);
    }
    if (this.#heldBytes > HELD_BYTES) this.source.pause();
    else this.source.resume();
  }

  #deliver(parcel: Parcel): void {
    for (const rule of this.rules) if (rule.swallows && this.#under(rule)) this.hole ??= rule;
    if (this.hole !== null) return;
    if (parcel === "end") this.sink.end();
    else if (parcel === "reset") reset(this.sink);
    else if (this.passes(parcel)) {
      const traffic = this.traffic[this.direction];
      traffic.chunks++;
      traffic.bytes += parcel.length;
      this.#full = !this.sink.write(parcel);
    }
  }

  #stalled(): boolean {
    for (const rule of this.rules) if (rule.stalls && this.#under(rule)) return true;
    return false;
  }

  /** How long what came then has still to wait. */
  #delayMs(cameMs: number): number {
    let delayMs = 0;
    for (const rule of this.rules) if (this.#under(rule)) delayMs += rule.delayMs ?? 0;
    return delayMs === 0 ? 0 : cameMs + delayMs - performance.now();
  }

  #under({ direction }: Rule): boolean {
    return direction === undefined || direction === this.direction;
  }
}

/**
 * One that is still connecting would be reset only when it is connected; one that is being shut down
 * refuses to be reset, and would then never close.
 */
function reset(socket: Socket): void {
  const { connecting, writableEnded, writableFinished, writableLength } = socket;
  const shuttingDown = writableEnded && !writableFinished && writableLength === 0;
  if (connecting || shuttingDown) socket.destroy();
  else socket.resetAndDestroy();
}
