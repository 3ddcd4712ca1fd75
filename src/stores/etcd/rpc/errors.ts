import type { GrpcFailure } from "./grpc.js";

export const Code = {
  CANCELLED: 1,
  UNKNOWN: 2,
  INVALID_ARGUMENT: 3,
  DEADLINE_EXCEEDED: 4,
  NOT_FOUND: 5,
  ALREADY_EXISTS: 6,
  PERMISSION_DENIED: 7,
  RESOURCE_EXHAUSTED: 8,
  FAILED_PRECONDITION: 9,
  OUT_OF_RANGE: 11,
  UNIMPLEMENTED: 12,
  INTERNAL: 13,
  UNAVAILABLE: 14,
  UNAUTHENTICATED: 16,
} as const;

/** `no`: the request was never sent, or the server refused it. */
export type Executed = "no" | "unknown";

export class EtcdError extends Error {
  readonly grpcCode: number;
  executed: Executed;
  /** `host:port`; null if the error is not of one endpoint. */
  readonly endpoint: string | null;
  /** Whether another endpoint, or the same one a little later, may execute the request. */
  readonly retryable: boolean;

  constructor(
    what: string,
    more: { grpcCode: number; executed: Executed; endpoint: string | null; retryable?: boolean },
  ) {
    super(more.endpoint === null ? `etcd: ${what}` : `etcd at ${more.endpoint}: ${what}`);
    this.name = "EtcdError";
    this.grpcCode = more.grpcCode;
    this.executed = more.executed;
    this.endpoint = more.endpoint;
    this.retryable = more.retryable ?? false;
  }

  /** The request was sent, and no reply came within its timeout. */
  get silent(): boolean {
    return this.grpcCode === Code.DEADLINE_EXCEEDED && this.executed === "unknown";
  }
}

/** Messages of grpc-js for a request that was never sent. */
const UNSENT =
  /^No connection established|^Channel closed before call started|^Name resolution failed|^Failed to start HTTP\/2 stream|^Stream refused by server|Waiting for LB pick|waiting for name resolution|waiting for metadata filters/;

/** The server refused the request before it proposed anything to its cluster. */
const REFUSED = /no leader|not leader|not capable|too many requests|learner/;

const REFUSALS: readonly number[] = [
  Code.INVALID_ARGUMENT,
  Code.NOT_FOUND,
  Code.ALREADY_EXISTS,
  Code.PERMISSION_DENIED,
  Code.FAILED_PRECONDITION,
  Code.OUT_OF_RANGE,
  Code.UNIMPLEMENTED,
  Code.UNAUTHENTICATED,
];

/** The connection, the server or its leader was lost, or a timeout ended the request. */
const TROUBLE =
  /RST_STREAM|HTTP\/2 stream|deadline exceeded|context canceled|timed out|no leader|not leader|leader changed|server stopped|learner|unhealthy/;

export function toEtcdError(
  endpoint: string,
  { code = Code.UNKNOWN, details = "" }: GrpcFailure,
): EtcdError {
  const ofServer = details.startsWith("etcdserver:");
  const refused =
    REFUSALS.includes(code) ||
    (ofServer && (REFUSED.test(details) || code === Code.RESOURCE_EXHAUSTED));
  return new EtcdError(describeFailure(code, details), {
    grpcCode: code,
    executed: refused || UNSENT.test(details) ? "no" : "unknown",
    endpoint,
    retryable:
      code === Code.UNAVAILABLE || code === Code.DEADLINE_EXCEEDED || TROUBLE.test(details),
  });
}

function describeFailure(code: number, details: string): string {
  if (code === Code.DEADLINE_EXCEEDED) {
    return UNSENT.test(details) ? "no connection could be made in time" : "request timed out";
  }
  const last =
    /^No connection established\. Last error: (?:Error: )?(.*?)(?: \([^)]*\))?\.?(?: Resolution note:.*)?$/s;
  const reason = last.exec(details)?.[1];
  if (reason !== undefined) return `can't connect: ${reason}`;
  return details.replace(/^etcdserver: /, "") || `failed with code ${code}`;
}

/** The token has expired, or was given before the users were changed, or before there were any. */
export const isStaleToken = ({ grpcCode, message }: EtcdError): boolean =>
  grpcCode === Code.UNAUTHENTICATED ||
  /invalid auth token|revision of auth store is old|user name is empty/.test(message);
