import type { IncomingMessage, ServerResponse } from "node:http";
import { InvalidArgumentError } from "../core/errors.js";
import type { Lease } from "../core/lease.js";
import { show } from "../core/validate.js";
import { Refusal } from "../fence/shared/problem.js";
import type { Locks } from "../locks.js";
import { HeldResponse } from "./held-response.js";
import { HttpGuard, type IdempotentHttpOptions, KEY_HEADER } from "./idempotent-http.js";
import { changeByJson } from "./json-codec.js";
import { replayNode, type StoredResponse } from "./stored-response.js";

/** Given to a handler with the request. */
export interface IdempotentRequest {
  /** The lease of the key; null for a request that passes without one. */
  readonly lease: Lease | null;
  /** The body as it was sent; null for a request that passes without a key, and if a parser has read it before. */
  readonly body: Buffer | null;
}

type Handler<Req, Res> = (request: Req, response: Res, more: IdempotentRequest) => unknown;

/**
 * Makes a handler of `node:http` or Express idempotent, as `idempotentFetch` does. The body is read before the
 * handler runs, and the handler gets it as third argument. If a parser was first, `request.body` stands for it,
 * where it holds all of it: text, bytes, or the data of a body in JSON or of a form. Otherwise the request ends in
 * `InvalidArgumentError`, because another request could not be told from it. The response that the handler writes is
 * sent when it has been recorded.
 *
 * The key is in progress until the handler has ended the response, whether or not the client is still there:
 * a handler that never does keeps the key until `maxHold`. If the client leaves before it has sent its whole
 * body, the handler does not run. An error of the handler or of `scope` goes to `next`; without `next`, the
 * promise rejects with it.
 *
 * @example
 * ```ts
 * import { createServer } from "node:http";
 * import { connect } from "holdfast";
 * import { idempotentNode } from "holdfast/lockfree";
 *
 * const locks = await connect("redis://127.0.0.1:6379");
 * const options = { keep: "24h" as const, scope: (request: any) => authenticate(request).account };
 * const charges = idempotentNode(locks, options, async (request, response, { body }) => {
 *   response.writeHead(201).end(JSON.stringify(await charge(JSON.parse(String(body)))));
 * }); // Express: app.post("/charges", charges)
 * const server = createServer((request, response) =>
 *   charges(request, response, (error) => {
 *     console.error(error);
 *     response.destroy();
 *   }),
 * );
 * ```
 */
export function idempotentNode<Req extends IncomingMessage, Res extends ServerResponse>(
  locks: Locks,
  options: IdempotentHttpOptions<Req>,
  handler: Handler<Req, Res>,
): (request: Req, response: Res, next?: (error?: unknown) => void) => Promise<void> {
  const guard = new HttpGuard(locks, options, handler);
  return async (request, response, next) => {
    try {
      await answer(guard, request, response, handler);
    } catch (error) {
      if (error instanceof Refusal && error.send(response)) return;
      // Express 4 does not look at the promise of a handler.
      if (next === undefined) throw error;
      // Without an error, Express would go on to the next handler.
      next(error || new Error(`the handler has failed without an error: it threw ${show(error)}`));
    }
  };
}

async function answer<Req extends IncomingMessage, Res extends ServerResponse>(
  guard: HttpGuard<Req>,
  request: Req,
  response: Res,
  handler: Handler<Req, Res>,
): Promise<void> {
  const method = request.method ?? "";
  const key = guard.readKey(method, request.headers[KEY_HEADER]?.toString() ?? null);
  if (key === null) {
    await handler(request, response, { lease: null, body: null });
    return;
  }
  const { body: parsed, originalUrl } = request as { body?: unknown; originalUrl?: string };
  // express.json() of Express 4 sets an empty object, and leaves a body of another type unread.
  const wasRead = request.readableDidRead;
  const read = wasRead ? null : await readBody(guard, request);
  if (!wasRead && read === null) return;
  const path = originalUrl ?? request.url ?? "";
  // Some adapters to serverless platforms set a body, and leave nothing to be read.
  const isParsed = read === null || (read.length === 0 && !isEmpty(parsed));
  const named = { key, method, path, body: isParsed ? bytesOf(parsed, request) : read };
  const held = new HeldResponse(response);
  let handled: Promise<unknown> | undefined;
  let stored: StoredResponse | null;
  try {
    stored = await guard.run(request, named, (lease) => {
      handled = (async () => handler(request, response, { lease, body: read }))();
      // Handlers with callbacks return before they end the response, and pipelines after it was sent.
      return Promise.race([held.ended, handled.then(() => held.ended)]);
    });
  } catch (error) {
    held.drop();
    if (!held.isDestroyed) throw error;
    await handled;
    return;
  }
  if (stored === null) held.send();
  else {
    held.drop();
    replayNode(stored, response);
  }
  await handled;
}

/**
 * Resolves to null if the client has left. A refusal leaves the rest of the body to be read and dropped: the
 * client reads no reply before it has sent it.
 */
async function readBody<Req extends IncomingMessage>(
  guard: HttpGuard<Req>,
  request: Req,
): Promise<Buffer | null> {
  try {
    return await guard.readBody(request.iterator({ destroyOnReturn: false }));
  } catch (error) {
    if (request.destroyed && !(error instanceof Refusal)) return null;
    request.resume();
    throw error;
  }
}

/** The body as a parser has left it: text, bytes, or data. Throws if that may be less than was sent. */
function bytesOf(parsed: unknown, { headers }: IncomingMessage): string | Uint8Array {
  const isRaw = typeof parsed === "string" || parsed instanceof Uint8Array;
  if (isRaw && parsed.length > 0) return parsed;
  const type = headers["content-type"] ?? "";
  if (PARSED_TYPES.test(type) && changeByJson(parsed, "") === null) {
    const text = JSON.stringify(parsed);
    // Express 4 sets an empty object also for a body that it has not parsed.
    if (!isEmpty(parsed) || headers["content-length"] === String(text.length)) return text;
  }
  throw new InvalidArgumentError(
    `another middleware has read the body of a request, and request.body is ${show(parsed)}, which may be less than was sent as ` +
      `${show(type)}: put idempotentNode before that middleware, or let it keep the bytes in request.body, as express.raw() does`,
  );
}

/** Types whose data shows all that was sent. A parser of multipart/form-data keeps files elsewhere. */
const PARSED_TYPES = /^application\/(?:[\w.+-]*\+)?(?:json|x-www-form-urlencoded) *(?:;|$)/i;

function isEmpty(parsed: unknown): boolean {
  if (parsed instanceof Uint8Array) return parsed.length === 0;
  if (typeof parsed !== "object") return parsed === undefined || parsed === "";
  return parsed === null || Object.keys(parsed).length === 0;
}
