import type { Endpoint, Endpoints } from "./endpoints.js";
import { Code, EtcdError, type Executed, isStaleToken, toEtcdError } from "./errors.js";
import {
  callWithin,
  cancelLater,
  type GrpcCall,
  type GrpcFailure,
  type GrpcMetadata,
} from "./grpc.js";
import type { Login } from "./login.js";
import type { Method } from "./messages.js";

export interface CallOptions {
  /** For all attempts together. */
  readonly timeoutMs?: number | undefined;
  /** The request may be sent again even if an attempt may have been executed. Default false. */
  readonly again?: boolean | undefined;
  /** Called before the reply is delivered, if an earlier attempt may have been executed, too. */
  readonly onRepeated?: (() => void) | undefined;
}

export interface Timeouts {
  readonly callMs: number;
  readonly attemptMs: number;
}

/** Pause between rounds over all endpoints. */
const PAUSE_MS = { first: 20, most: 250 };
const FOR_EVER_MS = 2 ** 30;

/** Sends each call to the endpoint in use, and retries at the next while that is safe and in time. */
export class Caller {
  readonly endpoints: Endpoints;
  readonly timeouts: Timeouts;
  readonly #pending = new Set<{ close(): void }>();
  /** Keeps the process alive while a call is pending: the connection itself may not. */
  readonly #keepsAlive = setInterval(() => {}, FOR_EVER_MS).unref();
  #pendingCount = 0;
  #closed = false;

  constructor(endpoints: Endpoints, timeouts: Timeouts) {
    this.endpoints = endpoints;
    this.timeouts = timeouts;
  }

  call<Request extends object, Reply extends object>(
    method: Method<Request, Reply>,
    request: Request,
    login: Login,
    options: CallOptions | undefined,
  ): Promise<Reply> {
    return new Promise((resolve, reject) => {
      if (this.#closed) return reject(closedError());
      const call = new Call(this, method, method.encode(request), login, options, resolve, reject);
      this.#pending.add(call);
      this.addPending();
      call.start();
    });
  }

  done(call: { close(): void }): void {
    if (this.#pending.delete(call)) this.removePending();
  }

  addPending(): void {
    if (++this.#pendingCount === 1) this.#keepsAlive.ref();
  }

  removePending(): void {
    if (--this.#pendingCount === 0) this.#keepsAlive.unref();
  }

  close(): void {
    this.#closed = true;
    for (const call of this.#pending) call.close();
    clearInterval(this.#keepsAlive);
  }
}

export const closedError = (executed: Executed = "no"): EtcdError =>
  new EtcdError("the client is closed", { grpcCode: Code.CANCELLED, executed, endpoint: null });

class Call<Reply extends object> {
  readonly #caller: Caller;
  readonly #method: Method<never, Reply>;
  readonly #bytes: Buffer;
  readonly #login: Login;
  readonly #again: boolean;
  readonly #onRepeated: (() => void) | undefined;
  readonly #deadline: number;
  readonly #resolve: (reply: Reply) => void;
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
    method: Method<never, Reply>,
    bytes: Buffer,
    login: Login,
    options: CallOptions | undefined,
    resolve: (reply: Reply) => void,
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
    // The login has a timeout of its own, which may be longer.
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
    const attemptMs = this.#endpoint.pace.attemptTimeoutMs(this.#caller.timeouts);
    const timeoutMs = Math.min(remainingMs, attemptMs);
    this.#sent = callWithin(
      timeoutMs,
      this.#endpoint.client,
      this.#method,
      this.#bytes,
      metadata,
      this.#answered,
    );
  }

  readonly #answered = (failure: GrpcFailure | null, reply?: Reply): void => {
    this.#sent = null;
    if (this.#over) return;
    const { pace, address } = this.#endpoint!;
    const tookMs = performance.now() - this.#sentAtMs;
    if (failure !== null) {
      const error = toEtcdError(address, failure);
      if (error.silent) pace.timedOut(tookMs);
      this.#failed(error);
      return;
    }
    pace.answered(tookMs);
    this.#over = true;
    this.#caller.done(this);
    if (this.#executed === "unknown") this.#onRepeated?.();
    this.#resolve(reply!);
  };

  #failed(error: EtcdError): void {
    if (error.executed === "unknown") this.#executed = "unknown";
    if (isStaleToken(error) && this.#login.hasUser && !this.#freshToken) {
      this.#freshToken = true;
      this.#login.renew(this.#metadata!);
      this.#startAfterLogin();
      return;
    }
    if (!error.retryable) {
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

  /** No pause before each endpoint was tried once. */
  #pauseMs(): number {
    const count = this.#caller.endpoints.addresses.length;
    if (this.#attempts % count !== 0) return 0;
    return Math.min(PAUSE_MS.first * 2 ** (this.#attempts / count - 1), PAUSE_MS.most);
  }

  #fail(error: EtcdError): void {
    if (this.#over) return;
    this.#over = true;
    clearTimeout(this.#pause);
    this.#caller.done(this);
    // The last attempt may not have been sent; an earlier one may have been executed.
    if (this.#executed === "unknown") error.executed = "unknown";
    this.#reject(error);
  }

  #timedOut(): EtcdError {
    const endpoint = this.#endpoint?.address ?? null;
    return new EtcdError("request timed out", {
      grpcCode: Code.DEADLINE_EXCEEDED,
      executed: this.#executed,
      endpoint,
      retryable: true,
    });
  }

  #remainingMs(): number {
    return this.#deadline - performance.now();
  }
}
