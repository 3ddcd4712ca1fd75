import { subscribe } from "node:diagnostics_channel";
import type { Socket } from "node:net";
import { UnsupportedError } from "../../../core/errors.js";

/** As much of `@grpc/grpc-js` as is used here. */
export interface Grpc {
  readonly Client: new (target: string, credentials: unknown, options: object) => GrpcClient;
  readonly Metadata: new () => GrpcMetadata;
  readonly credentials: {
    createInsecure(): unknown;
    createSsl(
      ca: Buffer | null,
      key: Buffer | null,
      cert: Buffer | null,
      verify: { rejectUnauthorized?: boolean },
    ): unknown;
  };
}

export interface GrpcMetadata {
  set(key: string, value: string): void;
  clone(): GrpcMetadata;
}

export interface GrpcFailure {
  readonly code?: number;
  readonly details?: string;
}

export interface GrpcCall {
  cancel(): void;
}

/**
 * Cancels in a turn of its own. Node's HTTP/2 loops for ever, and takes all memory, when a stream is
 * reset while it still handles what it has read and a write is pending (seen on Node 20.20.2).
 */
export function cancelLater(call: GrpcCall): void {
  setImmediate(() => call.cancel());
}

export interface GrpcStream<Request, Answer> extends GrpcCall {
  write(request: Request): boolean;
  on(event: "data", listener: (answer: Answer) => void): this;
  on(event: "error", listener: (failure: GrpcFailure) => void): this;
  on(event: "end" | "metadata", listener: () => void): this;
}

export interface GrpcClient {
  makeUnaryRequest<Answer>(
    path: string,
    serialize: (request: Buffer) => Buffer,
    deserialize: (bytes: Buffer) => Answer,
    request: Buffer,
    metadata: GrpcMetadata,
    options: { deadline: number },
    callback: (failure: GrpcFailure | null, answer?: Answer) => void,
  ): GrpcCall;
  makeBidiStreamRequest<Request, Answer>(
    path: string,
    serialize: (request: Request) => Buffer,
    deserialize: (bytes: Buffer) => Answer,
    metadata: GrpcMetadata,
  ): GrpcStream<Request, Answer>;
  close(): void;
}

/** By a name that is not followed when the package is built or bundled: it is the user's choice. */
const LIBRARY: string = "@grpc/grpc-js";

export async function loadGrpc(): Promise<Grpc> {
  noteSockets();
  try {
    const module = await import(LIBRARY);
    return (module.default ?? module) as Grpc;
  } catch (error) {
    throw new UnsupportedError(
      "etcd: needs a client library: npm install @grpc/grpc-js",
      new AggregateError([error]),
    );
  }
}

/** Sockets that grpc-js has opened. */
let sockets: Set<WeakRef<Socket>> | null = null;

function noteSockets(): void {
  if (sockets !== null) return;
  const noted = new Set<WeakRef<Socket>>();
  sockets = noted;
  subscribe("net.client.socket", (message) => {
    if (!/grpc-js/.test(new Error().stack ?? "")) return;
    const { socket } = message as { socket: Socket };
    const ref = new WeakRef(socket);
    noted.add(ref);
    socket.once("close", () => noted.delete(ref));
  });
}

/**
 * A channel that is closed leaves a socket as it is that is being connected, or whose peer does not
 * answer; for minutes, where packets are dropped. It need not keep the process alive.
 */
export function letSocketsGo(addresses: readonly string[]): void {
  for (const ref of sockets ?? []) {
    const socket = ref.deref();
    if (socket === undefined) sockets!.delete(ref);
    else if (
      socket.connecting ||
      addresses.includes(`${socket.remoteAddress}:${socket.remotePort}`)
    ) {
      socket.unref();
    }
  }
}

/** From a stream to the HTTP/2 session that carries it. */
const TO_SESSION = ["call", "nextCall", "child", "underlyingCalls", "http2Stream", "session"];
const DEPTH = 10;

/**
 * A stream of grpc-js keeps the process alive, and there is no public way to say that it need not.
 * Where its insides are not as expected, the process lives until the client is closed.
 */
export function letProcessEnd(stream: object): void {
  let here: unknown = stream;
  for (let depth = 0; depth < DEPTH; depth++) {
    const inner = stepTo(here);
    if (inner === undefined) return;
    here = inner;
    if (isSession(here)) {
      here.unref();
      return;
    }
  }
}

function stepTo(from: unknown): unknown {
  if (Array.isArray(from)) return from.at(-1);
  if (typeof from !== "object" || from === null) return undefined;
  const fields = from as Record<string, unknown>;
  const name = TO_SESSION.findLast((key) => typeof fields[key] === "object" && fields[key]);
  return name === undefined ? undefined : fields[name];
}

const isSession = (value: unknown): value is { unref(): void } =>
  typeof value === "object" &&
  value !== null &&
  typeof (value as { unref?: unknown }).unref === "function" &&
  typeof (value as { goaway?: unknown }).goaway === "function";
