import type { Socket } from "node:net";
import type { Lane } from "./lane.js";
import { Link, type LinkSettings } from "./link.js";
import type { Direction } from "./rules.js";

/**
 * Reads the bytes that the client sends on one connection, in order and in chunks of any size.
 * Returns the kind of the connection, or undefined while it is unknown.
 */
export type KindReader = (bytes: Buffer) => string | undefined;

/** One connection of a client, and the one that the proxy has to the server for it. */
export class TcpLink extends Link {
  readonly gone: Promise<unknown>;
  readonly #client: Socket;
  readonly #upstream: Socket;
  #kind: string | undefined;

  constructor(client: Socket, upstream: Socket, settings: LinkSettings, readKind?: KindReader) {
    super(settings);
    this.#client = client;
    this.#upstream = upstream;
    // The kind is read before the lane takes the bytes, so that they are subject to the rules for
    // their kind.
    if (readKind !== undefined) client.on("data", (bytes) => this.#learn(readKind(bytes)));
    join(client, upstream, this.toServer);
    join(upstream, client, this.toClient);
    this.gone = Promise.all(
      [client, upstream].map((socket) => new Promise((resolve) => socket.once("close", resolve))),
    );
  }

  get kind(): string | undefined {
    return this.#kind;
  }

  write(direction: Direction, bytes: Buffer): boolean {
    return (direction === "to-server" ? this.#upstream : this.#client).write(bytes);
  }

  hold(direction: Direction, waits: boolean): void {
    const sender = direction === "to-server" ? this.#client : this.#upstream;
    if (waits) sender.pause();
    else sender.resume();
  }

  resetAfter(bytes: Buffer): void {
    this.toServer.drop();
    this.toClient.drop();
    this.#upstream.write(bytes, () => this.reset());
  }

  protected resetSides(): void {
    reset(this.#client);
    reset(this.#upstream);
  }

  protected resetServer(): void {
    reset(this.#upstream);
  }

  protected resetClient(): void {
    // The server's side is not reset, because the server might drop bytes that it has not read yet.
    this.toServer.take(() => this.#upstream.end());
    this.toServer.seal();
    this.toClient.drop();
    reset(this.#client);
  }

  #learn(kind: string | undefined): void {
    if (kind === this.#kind) return;
    this.#kind = kind;
    if (this.isCut) this.reset();
    else this.pump();
  }
}

/** Passes everything that the source sends, and its end, through the lane to the sink. */
function join(source: Socket, sink: Socket, lane: Lane): void {
  source.on("data", (bytes) => lane.take(bytes));
  source.on("end", () => lane.take(() => sink.end()));
  // An error is followed by "close".
  source.on("error", () => {});
  source.on("close", (hadError) => {
    if (hadError || !source.readableEnded) lane.take(() => reset(sink));
  });
  sink.on("drain", () => lane.drained());
  sink.on("close", () => lane.drop());
}

/**
 * Resets a socket. A socket that is still connecting would be reset only once it is connected. A
 * socket that is being shut down refuses the reset, and would then never close.
 */
function reset(socket: Socket): void {
  const { connecting, writableEnded, writableFinished, writableLength } = socket;
  const shuttingDown = writableEnded && !writableFinished && writableLength === 0;
  if (connecting || shuttingDown) socket.destroy();
  else socket.resetAndDestroy();
}
