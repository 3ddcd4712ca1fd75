import { createHash } from "node:crypto";
import { HoldfastError, InvalidArgumentError, type LeaseLostError } from "../core/errors.js";
import type { Lease } from "../core/lease.js";
import {
  checkBoolean,
  checkNumber,
  checkOptions,
  type Duration,
  orElse,
  show,
} from "../core/validate.js";
import { PROBLEM_JSON, type Problem, Refusal } from "../fence/shared/problem.js";
import type { Locks } from "../locks.js";
import { checkIdempotent, idempotentOutcome } from "./idempotent.js";
import { logOutage } from "./log-outage.js";
import type { StoredResponse } from "./stored-response.js";

/** How a service obeys the header `Idempotency-Key`. */
export interface IdempotentHttpOptions<Request> {
  /** How long responses are kept. */
  keep: Duration;
  /**
   * The sender of the request, such as the account: a text that is not empty, from what you have authenticated.
   * Keys of different senders are different: otherwise, one could read the responses to another by sending its keys.
   */
  scope: (request: Request) => string | Promise<string>;
  /** Whether a request without the header is refused with 400. Default true; otherwise it passes. */
  required?: boolean | undefined;
  /** Requests with these methods are held to the header, others pass. Default POST and PATCH. */
  methods?: readonly string[] | undefined;
  /** How long a duplicate waits for the first before it gets 409. Default 0. */
  wait?: Duration | undefined;
  /** How long the lease of a key lasts without renewal. Default: that of the `Locks`. */
  ttl?: Duration | undefined;
  /**
   * How long a handler may work. After that, its signal aborts, and the next request with the key runs the
   * handler again. Default `Infinity`.
   */
  maxHold?: Duration | undefined;
  /** A request with a longer body is refused with 413. Default 1,000,000. */
  mostBodyBytes?: number | undefined;
  /**
   * Which responses are kept. After others, the next request with the key runs the handler again. Default:
   * below 500, but not 408, 425 and 429, which ask the client to try again, and not 412 and 428, which may pass with
   * another condition or token. The refusal of a token by a guard in the handler is never kept.
   */
  keepStatus?: ((status: number) => boolean) | undefined;
}

export const KEY_HEADER = "idempotency-key";

const OPTIONS = [
  "keep",
  "scope",
  "required",
  "methods",
  "wait",
  "ttl",
  "maxHold",
  "mostBodyBytes",
  "keepStatus",
];
const isFinal = (status: number): boolean =>
  status < 500 && ![408, 412, 425, 428, 429].includes(status);
/** A string of structured fields (RFC 9651), or the bare text that most clients send. Two headers are neither. */
const KEY = /^(?:"((?:[ !#-[\]-~]|\\["\\]){1,255})"|([!#-+\--~]{1,255}))$/;

/** Thrown out of the work, so that its response is not kept. */
class NotKept extends Error {}

/** A request as the key names it. */
interface NamedRequest {
  readonly key: string;
  readonly method: string;
  readonly path: string;
  readonly body: string | Uint8Array;
}

/** The part that the forms for Fetch and for `node:http` share. */
export class HttpGuard<Req> {
  readonly #locks: Locks;
  readonly #scope: IdempotentHttpOptions<Req>["scope"];
  readonly #required: boolean;
  readonly #methods: readonly string[];
  readonly #mostBodyBytes: number;
  readonly #keepStatus: (status: number) => boolean;
  readonly #idempotentOptions: Pick<
    IdempotentHttpOptions<Req>,
    "keep" | "wait" | "ttl" | "maxHold"
  >;

  constructor(locks: Locks, options: IdempotentHttpOptions<Req>, handler: unknown) {
    checkOptions(options, "the options of an idempotent handler", OPTIONS);
    const { scope, required, methods, mostBodyBytes, keepStatus, ...rest } = options;
    this.#locks = locks;
    this.#scope = checkFunction(scope, "scope");
    this.#required = checkBoolean(orElse(required, true), "required");
    this.#methods = checkMethods(orElse(methods, ["POST", "PATCH"]));
    const rule = { min: 0, max: 2 ** 30, integer: true };
    this.#mostBodyBytes = checkNumber(orElse(mostBodyBytes, 1_000_000), "mostBodyBytes", rule);
    this.#keepStatus = checkFunction(orElse(keepStatus, isFinal), "keepStatus");
    this.#idempotentOptions = { ...rest, wait: orElse(rest.wait, 0) };
    checkIdempotent(locks, this.#idempotentOptions);
    checkFunction(handler, "the handler");
  }

  /** Null: the request passes. Throws a refusal. */
  readKey(method: string, header: string | null): string | null {
    if (!this.#methods.includes(method) || (header === null && !this.#required)) return null;
    const [, quoted, bare] = KEY.exec(header?.trim() ?? "") ?? [];
    const key = quoted ?? bare;
    if (key !== undefined) return key;
    throw new Refusal({
      type: "urn:holdfast:problem:no-idempotency-key",
      title: "An idempotency key is required",
      status: 400,
      detail:
        "Send one header Idempotency-Key with 1 to 255 visible ASCII characters: the same for each attempt of one request, and another for every other request.",
    });
  }

  async readBody(stream: AsyncIterable<Uint8Array> | Iterable<Uint8Array>): Promise<Buffer> {
    const most = this.#mostBodyBytes;
    const chunks: Uint8Array[] = [];
    let bytes = 0;
    for await (const chunk of stream) {
      bytes += chunk.length;
      chunks.push(chunk);
      if (bytes <= most) continue;
      throw new Refusal({
        type: "urn:holdfast:problem:body-too-large",
        title: "The body is too large",
        status: 413,
        detail: `A request with an idempotency key may have a body of ${most} bytes.`,
      });
    }
    return Buffer.concat(chunks);
  }

  /** Resolves to a response to replay, or to null: the response of `work` is to be sent. Throws a refusal, or the error of `work`. */
  async run(
    request: Req,
    { key, method, path, body }: NamedRequest,
    work: (lease: Lease) => Promise<StoredResponse>,
  ): Promise<StoredResponse | null> {
    const name = `http:${hashOf(checkScope(await this.#scope(request)), key)}`;
    const options = { ...this.#idempotentOptions, fingerprint: hashOf(method, path, body) };
    const errorsOfHandler: unknown[] = [];
    try {
      const outcome = await idempotentOutcome(this.#locks, name, options, async (lease) => {
        const stored = await work(lease).catch((error: unknown) => {
          if (!isLossOf(lease, error)) errorsOfHandler.push(error);
          throw error;
        });
        if (refusesToken(stored) || !this.#keepStatus(stored.status)) throw new NotKept();
        return stored;
      });
      return outcome.replayed ? outcome.value : null;
    } catch (error) {
      if (error instanceof NotKept) return null;
      const refusal = errorsOfHandler.includes(error) ? null : refusalOf(error);
      if (refusal?.problem.status === UNKNOWN.status) {
        logOutage(this.#locks, "a request with an idempotency key", error);
      }
      throw refusal ?? error;
    }
  }
}

/** The handler may throw the loss of its key, which is no failure of the handler's own. */
const isLossOf = ({ name }: Lease, error: unknown): boolean =>
  HoldfastError.is(error) &&
  error.code === "LEASE_LOST" &&
  (error as LeaseLostError).lockName === name;

/** Null for an error that no client can do anything about. */
function refusalOf(error: unknown): Refusal | null {
  if (!HoldfastError.is(error)) return null;
  const problem = PROBLEMS[error.code];
  if (problem === undefined) return null;
  const type = `urn:holdfast:problem:${error.code.toLowerCase().replaceAll("_", "-")}`;
  const headers = problem.status === 422 ? {} : { "retry-after": "1" };
  return new Refusal({ type, ...problem }, headers, error);
}

const UNKNOWN = {
  title: "It is not known whether the request was carried out",
  status: 503,
  detail: "Send it again with the same key.",
};

const PROBLEMS: Partial<
  Record<HoldfastError["code"], Pick<Problem, "title" | "status" | "detail">>
> = {
  IN_PROGRESS: {
    title: "The request is in progress",
    status: 409,
    detail: "Send it again with the same key to get its response.",
  },
  OTHER_REQUEST: {
    title: "The key was used for another request",
    status: 422,
    detail: "Use a new key for a new request.",
  },
  STORE_UNAVAILABLE: UNKNOWN,
  LEASE_LOST: UNKNOWN,
  CLOSED: UNKNOWN,
};

const TOKEN_REFUSAL =
  /^\{"type":"urn:holdfast:problem:(?:stale-token|no-token|bad-token|other-lock)"/;

/** By a guard of a fence inside the handler. A repeated request may carry the token of a later holder. */
function refusesToken({ headers, body }: StoredResponse): boolean {
  const isProblem = headers.some(
    ([name, value]) => name === "content-type" && value === PROBLEM_JSON,
  );
  return isProblem && TOKEN_REFUSAL.test(Buffer.from(body ?? "", "base64").toString());
}

/** Each part by its own length, so that no two lists of parts run together. */
function hashOf(...parts: (string | Uint8Array)[]): string {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(`${Buffer.byteLength(part)}:`).update(part);
  return hash.digest("hex");
}

function checkScope(scope: unknown): string {
  if (typeof scope === "string" && scope !== "") return scope;
  throw new InvalidArgumentError(
    `scope returned ${show(scope)}; it must tell who sends the request, or refuse a request of nobody by throwing`,
  );
}

function checkFunction<T>(value: T, what: string): T {
  if (typeof value === "function") return value;
  throw new InvalidArgumentError(`${what} is ${show(value)}; it must be a function`);
}

function checkMethods(value: unknown): readonly string[] {
  const isMethod = (one: unknown): boolean => typeof one === "string" && /^[A-Z]+$/.test(one);
  if (Array.isArray(value) && value.every(isMethod)) return value;
  throw new InvalidArgumentError(
    `methods is ${show(value)}; it must be a list of methods in capital letters, such as ["POST"]`,
  );
}
