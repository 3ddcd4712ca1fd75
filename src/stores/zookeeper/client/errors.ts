import { printable } from "../../../core/text.js";
import { codeOf, meaningOf, type ZooKeeperErrorCode } from "./codes.js";

/** A TCP connection to one server. */
export interface ConnectionInfo {
  /** Rises by one with each attempt to connect, over the client's whole life. */
  readonly number: number;
  /** `host:port` of the server. */
  readonly server: string;
  /** When the request that began or resumed the session was sent, on the client's clock (`elapsedMs`). */
  readonly connectSentAtMs: number;
}

/** When and where a request was sent and answered. Both times are on the client's clock (`elapsedMs`). */
export interface Reply {
  /** The server's last transaction when it answered; 0 or below if it named none. */
  readonly zxid: bigint;
  /** Read before the request was handed to the socket. */
  readonly sentAtMs: number;
  /** Read when the reply arrived. */
  readonly answeredAtMs: number;
  /** The connection on which the request went. */
  readonly connection: ConnectionInfo;
  /** Whether the request needs the leader and a majority; false for `sync`. */
  readonly isWrite: boolean;
  /** Whether the request succeeded; false if the server replied an error. */
  readonly succeeded: boolean;
}

/** A request as messages show it: without its data, which may be a secret. */
export const requestText = (name: string, path: string | null): string =>
  path === null ? name : `${name} ${JSON.stringify(path)}`;

/** The facts about a request that failed. */
interface Failure {
  /** The request, such as `create "/a"`; absent if the error is of no single request. */
  readonly request?: string | undefined;
  readonly path?: string | null | undefined;
  readonly server?: string | null | undefined;
  /** In words; the meaning of the code by default. */
  readonly reason?: string | undefined;
  readonly executed?: "no" | "unknown" | undefined;
  readonly reply?: Reply | null | undefined;
  readonly part?: number | null | undefined;
  readonly cause?: unknown;
}

/** An error that a ZooKeeper server replied, or a request that was not answered. */
export class ZooKeeperError extends Error {
  /** ZooKeeper's name of the error, such as `NO_NODE`. Compare this, not the message. */
  readonly code: ZooKeeperErrorCode;
  /** `no`: the request changed nothing. `unknown`: it is a write that was sent, and may have been or may still be executed. */
  readonly executed: "no" | "unknown";
  /** Whether the same request may succeed later. */
  readonly retryable: boolean;
  /** The path of the request; null if it has none. */
  readonly path: string | null;
  /** `host:port` of the server; null if the error is not of one server. */
  readonly server: string | null;
  /** When and where the request was answered; null if it was not. */
  readonly reply: Reply | null;
  /** The index of the part of a multi that failed; null for other requests. */
  readonly part: number | null;

  constructor(code: ZooKeeperErrorCode, failure: Failure = {}) {
    const { server = null, request, reason, executed = "no" } = failure;
    const { text, retryable } = meaningOf(code);
    const where = server === null ? "ZooKeeper" : `ZooKeeper at ${server}`;
    const what = request === undefined ? "" : ` ${request}:`;
    const doubt =
      executed === "unknown"
        ? "; the request may have been executed: look before you repeat it"
        : "";
    super(
      printable(`${where}:${what} ${reason ?? text} (${code})${doubt}`),
      failure.cause === undefined ? undefined : { cause: failure.cause },
    );
    this.name = "ZooKeeperError";
    this.code = code;
    this.executed = executed;
    this.retryable = retryable;
    this.path = failure.path ?? null;
    this.server = server;
    this.reply = failure.reply ?? null;
    this.part = failure.part ?? null;
  }

  /** For `JSON.stringify`, which refuses a bigint: without the reply. */
  toJSON(): object {
    const { code, executed, retryable, path, server, part, name, message } = this;
    return { name, code, message, executed, retryable, path, server, part };
  }
}

/** An error in a server's reply, before it is known which request it answers. */
export class RefusedReply extends Error {
  readonly code: ZooKeeperErrorCode;
  readonly number: number;
  /** The index and the path of the part of a multi that failed. */
  readonly part: number | null;
  readonly path: string | null;

  constructor(number: number, part: number | null = null, path: string | null = null) {
    super(`error ${number}`);
    this.code = codeOf(number);
    this.number = number;
    this.part = part;
    this.path = path;
  }

  /** The words for an error that has no name here. */
  get reason(): string | undefined {
    return this.code === "UNKNOWN"
      ? `${meaningOf("UNKNOWN").text}: error ${this.number}`
      : undefined;
  }
}
