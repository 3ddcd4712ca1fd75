import { subscribe } from "node:diagnostics_channel";
import type { Socket } from "node:net";
import { importInstalled } from "../../shared/client-library.js";

/** The part of `@grpc/grpc-js` that is used here. */
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

export interface GrpcStream<Request, Reply> extends GrpcCall {
  write(request: Request): boolean;
  on(event: "data", listener: (reply: Reply) => void): this;
  on(event: "error", listener: (failure: GrpcFailure) => void): this;
  on(event: "end" | "metadata", listener: () => void): this;
}

export interface GrpcClient {
  makeUnaryRequest<Reply>(
    path: string,
    serialize: (request: Buffer) => Buffer,
    deserialize: (bytes: Buffer) => Reply,
    request: Buffer,
    metadata: GrpcMetadata,
    options: { deadline: number },
    callback: (failure: GrpcFailure | null, reply?: Reply) => void,
  ): GrpcCall;
  makeBidiStreamRequest<Request, Reply>(
    path: string,
    serialize: (request: Request) => Buffer,
    deserialize: (bytes: Buffer) => Reply,
    metadata: GrpcMetadata,
  ): GrpcStream<Request, Reply>;
  close(): void;
}

/** A deadline of grpc-js ends a call by itself, as a rule: this much later, a timer does. */
const OVERDUE_MS = 100;
/** The failure by which grpc-js reports a passed deadline. */
const OVERDUE: GrpcFailure = { code: 4, details: "Deadline exceeded" };
const unchanged = (bytes: Buffer): Buffer => bytes;

/**
 * Sends one unary call, which ends after `timeoutMs`. grpc-js reads the deadline off the wall clock: if
 * that is set back by a minute while the call is made, the deadline alone would come a minute late.
 */
export function callWithin<Reply>(
  timeoutMs: number,
  client: GrpcClient,
  { path, decode }: { readonly path: string; decode(bytes: Buffer): Reply },
  request: Buffer,
  metadata: GrpcMetadata,
  answered: (failure: GrpcFailure | null, reply?: Reply) => void,
): GrpcCall {
  let isOverdue = false;
  const deadline = Date.now() + timeoutMs;
  const call = client.makeUnaryRequest(
    path,
    unchanged,
    decode,
    request,
    metadata,
    { deadline },
    (failure, reply) => {
      clearTimeout(timer);
      answered(failure !== null && isOverdue ? OVERDUE : failure, reply);
    },
  );
  const timer = setTimeout(() => {
    isOverdue = true;
    cancelLater(call);
  }, timeoutMs + OVERDUE_MS);
  return call;
}

export async function loadGrpc(): Promise<Grpc> {
  noteSockets();
  const { module } = await importInstalled(
    ["@grpc/grpc-js"],
    "etcd: needs a client library: npm install @grpc/grpc-js",
  );
  return ((module as { default?: unknown }).default ?? module) as Grpc;
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
 * Lets the process end although a closed channel leaves a socket open that is still connecting, or whose
 * peer does not reply: where packets are dropped, that lasts for minutes.
 */
export function unrefSockets(addresses: readonly string[]): void {
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
export function unrefStream(stream: object): void {
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
