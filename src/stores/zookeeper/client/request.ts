import { InvalidArgumentError } from "../../../core/errors.js";
import type { ZooKeeperErrorCode } from "./codes.js";
import { type Reply, requestText, ZooKeeperError } from "./errors.js";
import { JuteWriter } from "./jute.js";
import type { Operation } from "./operations.js";

/** The longest request that a server takes with its default settings (`jute.maxbuffer`). */
const MAX_BYTES = 0xfffff;
const XID_AT = 4;
/** Errors of a server that gave a write up without knowing its outcome, or failed after it. */
const DOUBTFUL: readonly ZooKeeperErrorCode[] = [
  "CONNECTION_LOSS",
  "DATA_INCONSISTENCY",
  "MARSHALLING_ERROR",
  "OPERATION_TIMEOUT",
  "REQUEST_TIMEOUT",
  "RUNTIME_INCONSISTENCY",
  "SYSTEM_ERROR",
  "UNKNOWN",
];

/** Called when a request is answered or given up. */
export interface RequestHandlers<T> {
  /** In the same step as the reply is read, before the next reply or event. */
  succeeded(value: T, reply: Reply): void;
  failed(error: ZooKeeperError): void;
}

/** A request on its way, from the call to its reply, its timeout or the end of its connection. */
export class Request<T = unknown> {
  readonly operation: Operation<T>;
  /** On the client's clock. */
  readonly deadlineMs: number;
  sentAtMs: number | null = null;
  xid = 0;
  /** `host:port` of the server to which it was sent. */
  server: string | null = null;
  settled = false;
  readonly #frame: Buffer;
  readonly #handlers: RequestHandlers<T>;

  constructor(operation: Operation<T>, deadlineMs: number, handlers: RequestHandlers<T>) {
    this.operation = operation;
    this.deadlineMs = deadlineMs;
    this.#handlers = handlers;
    const writer = new JuteWriter();
    writer.int(0);
    writer.int(operation.type);
    operation.write(writer);
    this.#frame = writer.frame();
    if (this.#frame.length > MAX_BYTES) {
      throw new InvalidArgumentError(
        `the request ${this} has ${this.#frame.length} bytes; a server takes ${MAX_BYTES} at most`,
      );
    }
  }

  /** The request's bytes, once it is known where, when and under which number it is sent. */
  frame(xid: number, sentAtMs: number, server: string): Buffer {
    this.xid = xid;
    this.sentAtMs = sentAtMs;
    this.server = server;
    this.#frame.writeInt32BE(xid, XID_AT);
    return this.#frame;
  }

  succeed(value: T, reply: Reply): void {
    if (this.settled) return;
    this.settled = true;
    this.#handlers.succeeded(value, reply);
  }

  fail(
    code: ZooKeeperErrorCode,
    more: Omit<ConstructorParameters<typeof ZooKeeperError>[1] & object, "request"> = {},
  ): void {
    if (this.settled) return;
    this.settled = true;
    const { name, path } = this.operation;
    const at = more.path ?? path;
    const executed = this.#mayHaveBeenExecuted(code, more.reply != null) ? "unknown" : "no";
    this.#handlers.failed(
      new ZooKeeperError(code, {
        executed,
        server: this.server,
        ...more,
        request: requestText(name, at),
        path: at,
      }),
    );
  }

  #mayHaveBeenExecuted(code: ZooKeeperErrorCode, answered: boolean): boolean {
    if (!this.operation.isWrite || this.sentAtMs === null) return false;
    return !answered || DOUBTFUL.includes(code);
  }

  toString(): string {
    return requestText(this.operation.name, this.operation.path);
  }
}
