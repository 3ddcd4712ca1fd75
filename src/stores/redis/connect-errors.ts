import { safeCause } from "../../core/cause.js";
import { StoreUnavailableError } from "../../core/errors.js";
import { explainNetworkFailure } from "../shared/network-failure.js";
import { certificateTrouble, tlsTrouble } from "../shared/tls.js";
import { addressOf, type StoreUrl } from "../url.js";
import { messageOf, replyError } from "./errors.js";
import { type Answering, identify } from "./identify.js";
import { NoReply } from "./open-client.js";
import type { Target } from "./target.js";

/** Why no connection could be made, as far as it is known; the client library's own message is in `cause`. */
export async function toConnectError(
  error: unknown,
  target: Target,
  url: StoreUrl,
): Promise<StoreUnavailableError> {
  const { hosts, db, cluster, sentinel, tls } = target;
  const addresses = hosts.map(({ host, port }) => addressOf(host, port)).join(", ");
  const where = `${url.scheme}://${addresses}`;
  const replied = replyError(error, { where, db, cluster, outage: null });
  const isProtocol = /does not speak/.test(replied?.message ?? "");
  if (replied !== null && !isProtocol) return replied as StoreUnavailableError;
  const text = messageOf(error);
  const failure = ({ why, retryable }: Failure): StoreUnavailableError =>
    new StoreUnavailableError(`can't connect to Redis at ${addresses}: ${why}`, {
      cause: safeCause(error),
      retryable,
    });
  const tlsFailure = tls === null ? undefined : tlsTrouble(text, url);
  if (tlsFailure !== undefined) return failure({ why: tlsFailure, retryable: false });
  const networkFailure = explainNetworkFailure(text);
  if (networkFailure !== null) return failure({ why: networkFailure, retryable: true });
  if (sentinel !== null) {
    const name = JSON.stringify(sentinel);
    const why = `no sentinel there answers with the address of a primary ${name} that can be reached`;
    return failure({ why, retryable: true });
  }
  const { host, port } = hosts[0]!;
  const answering = await identify(host, port);
  const wrongServer = describeWrongServer(answering, tls !== null, url);
  if (wrongServer !== null) return failure(wrongServer);
  if (answering === null && replied !== null) return replied as StoreUnavailableError;
  if (cluster && answering === "redis" && error instanceof NoReply) {
    const why = `Redis answers at ${addressOf(host, port)}, but the cluster is not ready: does redis-cli CLUSTER INFO print cluster_state:ok?`;
    return failure({ why, retryable: true });
  }
  return failure({ why: describeUnknown(error, text), retryable: true });
}

interface Failure {
  readonly why: string;
  readonly retryable: boolean;
}

function describeWrongServer(
  answering: Answering | null,
  byTls: boolean,
  url: StoreUrl,
): Failure | null {
  const wrong = (why: string): Failure => ({ why, retryable: false });
  const [plain, encrypted] = url.scheme.startsWith("redis")
    ? ["write redis: instead of rediss:", "write rediss: instead of redis:"]
    : ["leave tls out of the URL", "add tls=1 to the URL"];
  if (answering === "http") return wrong("an HTTP server answers there: check host and port");
  if (answering === "redis" && byTls) {
    return wrong(`it answers without TLS: ${plain}, or write its TLS port`);
  }
  const speaksTls = answering === "TLS" || answering === "closed TLS";
  if (speaksTls && !byTls) return wrong(`it expects TLS: ${encrypted}`);
  // The alert about a missing certificate may be lost when the server closes the connection.
  return answering === "closed TLS" ? wrong(certificateTrouble(url)) : null;
}

function describeUnknown(error: unknown, text: string): string {
  // A server's own words begin with a code.
  if (/^-?[A-Z]{2,} /.test(text)) return `it answers ${JSON.stringify(text)}`;
  if (error instanceof NoReply) return error.message;
  const code = (error as { code?: unknown } | null)?.code;
  const why = typeof code === "string" ? ` (${code})` : "";
  return `the connection was closed before Redis answered${why}: is it a Redis server?`;
}
