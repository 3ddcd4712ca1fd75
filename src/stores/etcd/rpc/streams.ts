import type { Endpoint } from "./endpoints.js";
import { Code, EtcdError, explain, isStaleToken } from "./errors.js";
import {
  cancelLater,
  type GrpcFailure,
  type GrpcMetadata,
  type GrpcStream,
  letProcessEnd,
} from "./grpc.js";
import type { Login } from "./login.js";
import type { Method } from "./messages.js";
import type { Caller } from "./unary.js";

export interface StreamEars<Answer> {
  hear(answer: Answer): void;
  /** Once, and never after `close`. */
  broken(error: EtcdError): void;
}

/** One stream on the endpoint in use. It never comes back: who needs one opens another. */
export class Stream<Request extends object, Answer extends object> {
  readonly #caller: Caller;
  readonly #login: Login;
  readonly #endpoint: Endpoint;
  readonly #metadata: GrpcMetadata;
  readonly #stream: GrpcStream<Request, Answer>;
  readonly #ears: StreamEars<Answer>;
  /** Something came: there is a connection, or was. */
  #heard = false;
  #over = false;

  constructor(
    caller: Caller,
    login: Login,
    metadata: GrpcMetadata,
    method: Method<Request, Answer>,
    ears: StreamEars<Answer>,
  ) {
    this.#caller = caller;
    this.#login = login;
    this.#metadata = metadata;
    this.#ears = ears;
    this.#endpoint = caller.endpoints.current;
    const { path, encode, decode } = method;
    this.#stream = this.#endpoint.client.makeBidiStreamRequest(path, encode, decode, metadata);
    this.#stream
      .on("metadata", () => letProcessEnd(this.#stream))
      .on("data", (answer) => {
        this.#heard = true;
        this.#endpoint.pace.heardAtMs = performance.now();
        if (!this.#over) ears.hear(answer);
      })
      .on("error", (failure) => this.#break(failure))
      .on("end", () => this.#break({ code: Code.UNAVAILABLE, details: "the stream has ended" }));
  }

  send(request: Request): void {
    this.#stream.write(request);
  }

  /** What was sent then was not answered in time. */
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
    const error = explain(this.#endpoint.address, failure);
    if (isStaleToken(error)) this.#login.renew(this.#metadata);
    this.#ears.broken(error);
    // After its own end was told: the move would close it.
    const isSilent = this.#heard && !Number.isNaN(silentSinceMs);
    if (error.moves) this.#caller.endpoints.failed(this.#endpoint, isSilent ? silentSinceMs : null);
  }
}

export const movedError = (): EtcdError =>
  new EtcdError("the client left its endpoint, which did not answer in time", {
    grpcCode: Code.UNAVAILABLE,
    executed: "unknown",
    endpoint: null,
    moves: true,
  });
