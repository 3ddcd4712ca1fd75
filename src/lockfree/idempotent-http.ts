import { createHash } from "node:crypto";
import type { IncomingMessage, ServerResponse } from "node:http";
import { HoldfastError, InvalidArgumentError } from "../core/errors.js";
import type { Lease } from "../core/lease.js";
import { Refusal } from "../core/problem.js";
import {
  checkBoolean,
  checkNumber,
  checkOptions,
  type Duration,
  orElse,
  show,
} from "../core/validate.js";
import { contextOf, type Locks } from "../locks.js";
import { idempotentOutcome } from "./idempotent.js";
import {
  HeldResponse,
  replayFetch,
  replayNode,
  type StoredResponse,
  storedResponse,
} from "./stored-response.js";

/** How a service obeys the header `Idempotency-Key`. */
export interface IdempotentHttpOptions<Request> {
  /** How long responses are kept. */
  keep: Duration;
  /**
   * Who sends the request, such as the account. Keys of different senders are different: without this, one
   * could read the responses to another by guessing a key.
   */
  scope: (request: Request) => string | Promise<string>;
  /** Whether a request without the header is refused with 400. Default true. */
  required?: boolean | undefined;
  /** Requests with these methods are held to the header, others pass. Default POST and PATCH. */
  methods?: readonly string[] | undefined;
  /** How long a duplicate waits for the first before it gets 409. Default 0. */
  wait?: Duration | undefined;
  /** How long the lease of a key lasts without renewal. Default: that of the `Locks`. */
  ttl?: Duration | undefined;
  /** A request with a longer body is refused with 413. Default 1,000,000. */
  mostBodyBytes?: number | undefined;
  /** Which responses are kept. The next request with the key runs the handler again otherwise. Default: below 500. */
  keepStatus?: ((status: number) => boolean) | undefined;
}

/** What a handler gets besides the request. */
export interface IdempotentRequest {
  /** The lease of the key; null for a request that passes without one. */
  readonly lease: Lease | null;
  /** The body, which has been read; null for a request that passes without a key, and if a parser was first. */
  readonly body: Buffer | null;
}

const OPTIONS = [
  "keep",
  "scope",
  "required",
  "methods",
  "wait",
  "ttl",
  "mostBodyBytes",
  "keepStatus",
];
const HEADER = "idempotency-key";
const MOST_BODY_BYTES = 1_000_000;

/**
 * Makes a handler in the style of Fetch (Hono, Next, Deno, Bun) idempotent by the header `Idempotency-Key`: a
 * repeated request gets the response of the first, marked with `Idempotent-Replayed: true`. Refuses with a
 * problem document: 400 without a key, 409 while the first is in progress, 413 for a long body, 422 for another
 * request under the same key, 503 if the store can't be used. Responses are read into memory as a whole.
 *
 * @example
 * ```ts
 * import { connect } from "holdfast";
 * import { idempotentFetch } from "holdfast/lockfree";
 *
 * const locks = await connect("redis://127.0.0.1:6379");
 * export const POST = idempotentFetch(
 *   locks,
 *   { keep: "24h", scope: (request) => request.headers.get("authorization") ?? "" },
 *   async (request) => Response.json(await charge(await request.json()), { status: 201 }),
 * );
 * ```
 */
export function idempotentFetch<Rest extends readonly unknown[]>(
  locks: Locks,
  options: IdempotentHttpOptions<Request>,
  handler: (request: Request, lease: Lease | null, ...rest: Rest) => Response | Promise<Response>,
): (request: Request, ...rest: Rest) => Promise<Response> {
  const guard = checkGuard(locks, options, handler);
  return async (request, ...rest) => {
    try {
      const key = guard.readKey(request.method, request.headers.get(HEADER));
      if (key === null) return await handler(request, null, ...rest);
      const body = await readBody(request.clone().body ?? [], guard.mostBodyBytes);
      const { pathname, search } = new URL(request.url);
      const named = { key, method: request.method, path: pathname + search, body };
      let own: Response | null = null;
      const stored = await guard.run(request, named, async (lease) => {
        const response = await handler(request, lease, ...rest);
        const bytes = Buffer.from(await response.clone().arrayBuffer());
        own = response;
        return storedResponse(response.status, response.headers, bytes);
      });
      return stored === null ? own! : replayFetch(stored);
    } catch (error) {
      const refusal = refusalOf(error);
      if (refusal === null) throw error;
      return refusal.toResponse();
    }
  };
}

/**
 * Makes a handler of `node:http` or Express idempotent, as `idempotentFetch` does. The body is read before the
 * handler runs, unless a parser was first and has set `request.body`; the handler gets it as third argument.
 * What the handler writes is sent when it has been recorded.
 *
 * @example
 * ```ts
 * import { createServer } from "node:http";
 * import { connect } from "holdfast";
 * import { idempotentNode } from "holdfast/lockfree";
 *
 * const locks = await connect("redis://127.0.0.1:6379");
 * const options = { keep: "24h" as const, scope: (request: any) => request.headers.authorization ?? "" };
 * const server = createServer(
 *   idempotentNode(locks, options, async (request, response, { body }) => {
 *     response.writeHead(201).end(JSON.stringify(await charge(JSON.parse(String(body)))));
 *   }),
 * ); // Express: app.post("/charges", idempotentNode(locks, options, handler))
 * ```
 */
export function idempotentNode<Req extends IncomingMessage, Res extends ServerResponse>(
  locks: Locks,
  options: IdempotentHttpOptions<Req>,
  handler: (request: Req, response: Res, more: IdempotentRequest) => unknown,
): (request: Req, response: Res, next?: (error?: unknown) => void) => Promise<void> {
  const guard = checkGuard(locks, options, handler);
  return async (request, response, next) => {
    try {
      await answerNode(guard, request, response, handler);
    } catch (error) {
      if (refusalOf(error)?.send(response)) return;
      // Express 4 does not look at the promise of a handler.
      if (next === undefined) throw error;
      next(error);
    }
  };
}

async function answerNode<Req extends IncomingMessage, Res extends ServerResponse>(
  guard: Guard<Req>,
  request: Req,
  response: Res,
  handler: (request: Req, response: Res, more: IdempotentRequest) => unknown,
): Promise<void> {
  const value = request.headers[HEADER];
  const key = guard.readKey(
    request.method ?? "",
    Array.isArray(value) ? value.join(",") : (value ?? null),
  );
  if (key === null) {
    await handler(request, response, { lease: null, body: null });
    return;
  }
  const { body: parsed, originalUrl } = request as { body?: unknown; originalUrl?: string };
  const read = parsed === undefined ? await readBody(request, guard.mostBodyBytes) : null;
  const named = {
    key,
    method: request.method ?? "",
    path: originalUrl ?? request.url ?? "",
    body: read ?? bytesOf(parsed),
  };
  let held: HeldResponse | null = null;
  try {
    const stored = await guard.run(request, named, async (lease) => {
      held = new HeldResponse(response);
      // The handler may end the response after its promise is settled; a client that leaves ends nothing.
      const { ended } = held;
      const closed = new Promise<never>((_, reject) => {
        response.once("close", () =>
          reject(new Error("the client left before the handler ended the response")),
        );
      });
      closed.catch(() => {});
      await handler(request, response, { lease, body: read });
      return Promise.race([ended, closed]);
    });
    if (stored === null) {
      (held as HeldResponse | null)?.send();
      return;
    }
    (held as HeldResponse | null)?.release(true);
    replayNode(stored, response);
  } catch (error) {
    (held as HeldResponse | null)?.release(true);
    throw error;
  }
}

/** Thrown out of the work, so that its response is not kept. */
class NotKept extends Error {}

interface Named {
  readonly key: string;
  readonly method: string;
  readonly path: string;
  readonly body: Buffer;
}

interface Guard<R> {
  readonly mostBodyBytes: number;
  /** Null: the request passes. Throws a refusal. */
  readKey(method: string, header: string | null): string | null;
  /** Resolves to a response to replay, or null: the response of `work` is to be sent. */
  run(
    request: R,
    named: Named,
    work: (lease: Lease) => Promise<StoredResponse>,
  ): Promise<StoredResponse | null>;
}

function checkGuard<R>(
  locks: Locks,
  options: IdempotentHttpOptions<R>,
  handler: unknown,
): Guard<R> {
  contextOf(locks);
  checkOptions(options, "the options of an idempotent handler", OPTIONS);
  const { scope, keep, wait = 0, ttl, keepStatus = (status) => status < 500 } = options;
  if (typeof scope !== "function" || typeof handler !== "function") {
    throw new InvalidArgumentError(
      `scope is ${show(scope)} and the handler is ${show(handler)}; both must be functions: scope tells who sends a request`,
    );
  }
  const required = checkBoolean(orElse(options.required, true), "required");
  const methods = orElse(options.methods, ["POST", "PATCH"]);
  const rule = { min: 0, max: 2 ** 30, integer: true };
  return {
    mostBodyBytes: checkNumber(
      orElse(options.mostBodyBytes, MOST_BODY_BYTES),
      "mostBodyBytes",
      rule,
    ),
    readKey: (method, header) =>
      !methods.includes(method) || (header === null && !required) ? null : parseKey(header),
    async run(request, { key, method, path, body }, work) {
      const name = `http:${hashOf(await scope(request), key)}`;
      const fingerprint = hashOf(method, path, body);
      const locking = { keep, wait, ttl, fingerprint };
      try {
        const { value, replayed } = await idempotentOutcome(locks, name, locking, async (lease) => {
          const stored = await work(lease);
          if (!keepStatus(stored.status)) throw new NotKept();
          return stored;
        });
        return replayed ? value : null;
      } catch (error) {
        if (error instanceof NotKept) return null;
        throw error;
      }
    },
  };
}

/** A string of the draft's structured fields, or the bare text that most clients send. */
function parseKey(header: string | null): string {
  const key = /^"(.*)"$/.exec(header?.trim() ?? "")?.[1] ?? header?.trim() ?? "";
  if (/^[\x20-\x7e]{1,255}$/.test(key)) return key;
  throw new Refusal({
    type: "urn:holdfast:problem:no-idempotency-key",
    title: "An idempotency key is required",
    status: 400,
    detail:
      "Send 1 to 255 visible ASCII characters in the header Idempotency-Key: the same for each attempt of one request, and another for every other request.",
  });
}

async function readBody(
  stream: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  most: number,
): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of stream) {
    bytes += chunk.length;
    if (bytes > most) {
      throw new Refusal(
        {
          type: "urn:holdfast:problem:body-too-large",
          title: "The body is too large",
          status: 413,
          detail: `A request with an idempotency key may have a body of ${most} bytes.`,
        },
        // The rest of the body is not read.
        { connection: "close" },
      );
    }
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

/** The body as a parser has left it: text, bytes, or data. */
const bytesOf = (parsed: unknown): Buffer =>
  Buffer.isBuffer(parsed)
    ? parsed
    : Buffer.from(typeof parsed === "string" ? parsed : JSON.stringify(parsed));

/** Each part by its own length, so that no two lists of parts run together. */
function hashOf(...parts: (string | Buffer)[]): string {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(`${Buffer.byteLength(part)}:`).update(part);
  return hash.digest("hex");
}

/** Null for an error that is the handler's own. */
function refusalOf(error: unknown): Refusal | null {
  if (error instanceof Refusal) return error;
  if (!HoldfastError.is(error)) return null;
  const [status, title, detail] = PROBLEMS[error.code] ?? [];
  if (status === undefined) return null;
  const type = `urn:holdfast:problem:${error.code.toLowerCase().replaceAll("_", "-")}`;
  const headers = status === 422 ? {} : { "retry-after": "1" };
  return new Refusal({ type, title: title!, status, detail: detail! }, headers);
}

const UNKNOWN = [
  503,
  "It is not known whether the request was carried out",
  "Send it again with the same key.",
] as const;

const PROBLEMS: Partial<Record<HoldfastError["code"], readonly [number, string, string]>> = {
  IN_PROGRESS: [
    409,
    "The request is in progress",
    "Send it again with the same key to get its response.",
  ],
  OTHER_REQUEST: [422, "The key was used for another request", "Use a new key for a new request."],
  STORE_UNAVAILABLE: UNKNOWN,
  LEASE_LOST: UNKNOWN,
};
