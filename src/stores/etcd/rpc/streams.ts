import type { Caller } from "./caller.js";
import type { Endpoint } from "./endpoints.js";
import { Code, EtcdError, isStaleToken, toEtcdError } from "./errors.js";
import {
  cancelLater,
  type GrpcFailure,
  type GrpcMetadata,
  type GrpcStream,
  unrefStream,
} from "./grpc.js";
import type { Login } from "./login.js";
import type { Method } from "./messages.js";

export interface StreamListener<Reply> {
  received(reply: Reply): void;
  /** Once, and never after `close`. */
  broken(error: EtcdError): void;
}

/** One stream on the endpoint in use. A stream that broke is not reopened: its user opens another. */
export class Stream<Request extends object, Reply extends object> {
  readonly #caller: Caller;
  readonly #login: Login;
  readonly #endpoint: Endpoint;
  readonly #metadata: GrpcMetadata;
  readonly #stream: GrpcStream<Request, Reply>;
  readonly #listener: StreamListener<Reply>;
  /** Something was received: there is a connection, or was. */
  #hasReceived = false;
  #over = false;

  constructor(
    caller: Caller,
    login: Login,
    metadata: GrpcMetadata,
    method: Method<Request, Reply>,
    listener: StreamListener<Reply>,
  ) {
    this.#caller = caller;
    this.#login = login;
    this.#metadata = metadata;
    this.#listener = listener;
    this.#endpoint = caller.endpoints.current;
    const { path, encode, decode } = method;
    this.#stream = this.#endpoint.client.makeBidiStreamRequest(path, encode, decode, metadata);
    this.#stream
      .on("metadata", () => unrefStream(this.#stream))
      .on("data", (reply) => {
        this.#hasReceived = true;
        this.#endpoint.pace.receivedAtMs = performance.now();
        if (!this.#over) listener.received(reply);
      })
      .on("error", (failure) => this.#break(failure))
      .on("end", () => this.#break({ code: Code.UNAVAILABLE, details: "the stream has ended" }));
  }

  send(request: Request): void {
    this.#stream.write(request);
  }

  /** The request that was sent then got no reply in time. */
  timedOut(sentAtMs: number): void {
    this.#endpoint.pace.timedOut(performance.now() - sentAtMs);
    this.#break({ code: Code.DEADLINE_EXCEEDED, details: "request timed out" }, sentAtMs);
    cancelLater(this.#stream);
  }

  close(): void {
    this.#over = true;
    cancelLater(this.#stream);
  }

  #break(failure: GrpcFailure, silentSinceMs = Number.NaN): void {
    if (this.#over) return;
    this.#over = true;
    const error = toEtcdError(this.#endpoint.address, failure);
    if (isStaleToken(error)) this.#login.renew(this.#metadata);
    this.#listener.broken(error);
    // After the listener knows: a change of the endpoint would close the stream.
    const isSilent = this.#hasReceived && !Number.isNaN(silentSinceMs);
    if (error.retryable)
      this.#caller.endpoints.failed(this.#endpoint, isSilent ? silentSinceMs : null);
  }
}

export const movedError = (): EtcdError =>
  new EtcdError(
    "the client changed to another endpoint, because this one did not reply in time; retry",
    {
      grpcCode: Code.UNAVAILABLE,
      executed: "unknown",
      endpoint: null,
      retryable: true,
    },
  );
