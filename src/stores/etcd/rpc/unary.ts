import type { Endpoint, Endpoints } from "./endpoints.js";
import { Code, EtcdError, type Executed, explain, isStaleToken } from "./errors.js";
import { cancelLater, type GrpcCall, type GrpcFailure, type GrpcMetadata } from "./grpc.js";
import type { Login } from "./login.js";
import type { Method } from "./messages.js";

export interface CallOptions {
  /** For all attempts together. */
  readonly timeoutMs?: number | undefined;
  /** It may be sent again though it may have been executed. */
  readonly again?: boolean | undefined;
  /** Called before the answer is given, if an earlier attempt may have been executed, too. */
  readonly onRepeated?: (() => void) | undefined;
}

export interface Timeouts {
  readonly callMs: number;
  readonly attemptMs: number;
}

/** Between rounds over all endpoints. */
const PAUSE_MS = { first: 20, most: 250 };
const FOR_EVER_MS = 2 ** 30;

/** Sends calls, each to the endpoint in use, and again to the next as long as that is safe and in time. */
export class Caller {
  readonly endpoints: Endpoints;
  readonly timeouts: Timeouts;
  readonly pending = new Set<Call<never>>();
  /** Keeps the process alive while something is pending: the connection itself may not. */
  readonly #hold = setInterval(() => {}, FOR_EVER_MS).unref();
  #held = 0;
  #closed = false;

  constructor(endpoints: Endpoints, timeouts: Timeouts) {
    this.endpoints = endpoints;
    this.timeouts = timeouts;
  }

  call<Request extends object, Answer extends object>(
    method: Method<Request, Answer>,
    request: Request,
    login: Login,
    options: CallOptions | undefined,
  ): Promise<Answer> {
    return new Promise((resolve, reject) => {
      if (this.#closed) return reject(closedError());
      const call = new Call(this, method, method.encode(request), login, options, resolve, reject);
      this.pending.add(call as unknown as Call<never>);
      this.hold();
      call.start();
    });
  }

  done(call: Call<never>): void {
    if (this.pending.delete(call)) this.letGo();
  }

  hold(): void {
    if (++this.#held === 1) this.#hold.ref();
  }

  letGo(): void {
    if (--this.#held === 0) this.#hold.unref();
  }

  close(): void {
    this.#closed = true;
    for (const call of this.pending) call.close();
    clearInterval(this.#hold);
  }
}

export const closedError = (executed: Executed = "no"): EtcdError =>
  new EtcdError("the client is closed", { grpcCode: Code.CANCELLED, executed, endpoint: null });

const asItIs = (bytes: Buffer): Buffer => bytes;

class Call<Answer extends object> {
  readonly #caller: Caller;
  readonly #method: Method<never, Answer>;
  readonly #bytes: Buffer;
  readonly #login: Login;
  readonly #again: boolean;
  readonly #onRepeated: (() => void) | undefined;
  readonly #deadline: number;
  readonly #resolve: (answer: Answer) => void;
  readonly #reject: (error: unknown) => void;
  #endpoint: Endpoint | null = null;
  #metadata: GrpcMetadata | null = null;
  #sent: GrpcCall | null = null;
  #pause: NodeJS.Timeout | undefined;
  #sentAtMs = 0;
  #attempts = 0;
  #freshToken = false;
  #executed: Executed = "no";
  #over = false;

  constructor(
    caller: Caller,
    method: Method<never, Answer>,
    bytes: Buffer,
    login: Login,
    options: CallOptions | undefined,
    resolve: (answer: Answer) => void,
    reject: (error: unknown) => void,
  ) {
    this.#caller = caller;
    this.#method = method;
    this.#bytes = bytes;
    this.#login = login;
    this.#again = options?.again ?? false;
    this.#onRepeated = options?.onRepeated;
    this.#deadline = performance.now() + (options?.timeoutMs ?? caller.timeouts.callMs);
    this.#resolve = resolve;
    this.#reject = reject;
  }

  start(): void {
    const metadata = this.#login.metadata;
    if (metadata === null) this.#startAfterLogin();
    else this.#send(metadata);
  }

  close(): void {
    this.#fail(closedError(this.#sent === null ? this.#executed : "unknown"));
    if (this.#sent !== null) cancelLater(this.#sent);
  }

  #startAfterLogin(): void {
    this.#login.ready().then(
      (metadata) => this.#send(metadata),
      (error) => this.#fail(error),
    );
    // Logging in has a time of its own, which may be longer.
    this.#pause = setTimeout(() => this.#fail(this.#timedOut()), this.#remainingMs());
  }

  #send(metadata: GrpcMetadata): void {
    if (this.#over) return;
    clearTimeout(this.#pause);
    const remainingMs = this.#remainingMs();
    if (remainingMs <= 0) {
      this.#fail(this.#timedOut());
      return;
    }
    this.#endpoint = this.#caller.endpoints.current;
    this.#metadata = metadata;
    this.#attempts++;
    this.#sentAtMs = performance.now();
    const patienceMs = this.#endpoint.pace.patienceMs(this.#caller.timeouts);
    const timeoutMs = Math.min(remainingMs, patienceMs);
    this.#sent = this.#endpoint.client.makeUnaryRequest(
      this.#method.path,
      asItIs,
      this.#method.decode,
      this.#bytes,
      metadata,
      { deadline: Date.now() + timeoutMs },
      this.#answered,
    );
  }

  readonly #answered = (failure: GrpcFailure | null, answer?: Answer): void => {
    this.#sent = null;
    if (this.#over) return;
    const { pace, address } = this.#endpoint!;
    const tookMs = performance.now() - this.#sentAtMs;
    if (failure !== null) {
      const error = explain(address, failure);
      if (error.silent) pace.timedOut(tookMs);
      this.#failed(error);
      return;
    }
    pace.answered(tookMs);
    this.#over = true;
    this.#caller.done(this as unknown as Call<never>);
    if (this.#executed === "unknown") this.#onRepeated?.();
    this.#resolve(answer!);
  };

  #failed(error: EtcdError): void {
    if (error.executed === "unknown") this.#executed = "unknown";
    if (isStaleToken(error) && this.#login.hasUser && !this.#freshToken) {
      this.#freshToken = true;
      this.#login.renew(this.#metadata!);
      this.#startAfterLogin();
      return;
    }
    if (!error.moves) {
      this.#fail(error);
      return;
    }
    this.#caller.endpoints.failed(this.#endpoint!, error.silent ? this.#sentAtMs : null);
    const pauseMs = this.#pauseMs();
    const safe = this.#executed === "no" || this.#again;
    if (!safe || pauseMs >= this.#remainingMs()) {
      this.#fail(error);
      return;
    }
    if (pauseMs === 0) this.start();
    else this.#pause = setTimeout(() => this.start(), pauseMs);
  }

  /** None before each endpoint was asked once. */
  #pauseMs(): number {
    const count = this.#caller.endpoints.addresses.length;
    if (this.#attempts % count !== 0) return 0;
    return Math.min(PAUSE_MS.first * 2 ** (this.#attempts / count - 1), PAUSE_MS.most);
  }

  #fail(error: EtcdError): void {
    if (this.#over) return;
    this.#over = true;
    clearTimeout(this.#pause);
    this.#caller.done(this as unknown as Call<never>);
    // The last attempt may not have left, an earlier one may have been executed.
    if (this.#executed === "unknown") error.executed = "unknown";
    this.#reject(error);
  }

  #timedOut(): EtcdError {
    const endpoint = this.#endpoint?.address ?? null;
    return new EtcdError("request timed out", {
      grpcCode: Code.DEADLINE_EXCEEDED,
      executed: this.#executed,
      endpoint,
      moves: true,
    });
  }

  #remainingMs(): number {
    return this.#deadline - performance.now();
  }
}
