import type { IncomingMessage, ServerResponse } from "node:http";
import { HoldfastError, InvalidArgumentError, StaleTokenError } from "../core/errors.js";
import { checkKey, readSequencer, type SequencerOptions } from "../core/sequencer.js";
import { checkOptions, checkToken, show } from "../core/validate.js";
import { checkFenced, checkResource, type Fence, type Fenced } from "./fence.js";
import { PROBLEM_JSON, type Problem, Refusal } from "./shared/problem.js";

/** The header that carries the token: `TOKEN`, `TOKEN;floor=FLOOR`, or a sequencer. */
export const FENCING_TOKEN = "fencing-token";

/** How a service guards its requests. */
export interface HttpGuard<Request> extends SequencerOptions {
  /** The fence that the service keeps. */
  readonly fence: Pick<Fence<undefined>, "guard">;
  /** The resource that a request is for. */
  readonly resource: (request: Request) => string | Promise<string>;
  /** Lets requests without the header pass, unguarded. Default false: they are refused with 428. */
  readonly optional?: boolean | undefined;
  /**
   * With `key`: the name of the lock that must have been granted. Default: the resource. A sequencer for
   * another name is refused with 403.
   */
  readonly name?: ((request: Request) => string | Promise<string>) | undefined;
}

const STALE = "urn:holdfast:problem:stale-token";
const MOST_PROBLEM_BYTES = 16_384;
const BAD_TOKEN = {
  type: "urn:holdfast:problem:bad-token",
  title: "The fencing token can't be read",
};
const BAD_RESOURCE = {
  type: "urn:holdfast:problem:bad-resource",
  title: "The request is for no resource that a fence can have",
};
/** The fence was asked before the handler: trying again is safe. */
const unavailable = (): Refusal =>
  new Refusal(
    {
      type: "urn:holdfast:problem:fence-unavailable",
      title: "The fence can't be asked",
      status: 503,
      detail: "The token could not be checked, so nothing was done. Try again.",
    },
    { "retry-after": "1" },
  );

/** Writes a lease's numbers as the value of the header. */
export function fencingToken(lease: Fenced): string {
  const { token, floor } = checkFenced("resource", lease);
  return token === floor ? String(token) : `${token};floor=${floor}`;
}

/** Reads the value of the header. Throws `InvalidArgumentError` if it is none. */
export function parseFencingToken(value: string): Fenced {
  const [, token, floor] = /^(\d{1,19})(?:;\s*floor=(\d{1,19}))?$/.exec(value.trim()) ?? [];
  if (token === undefined) {
    throw new InvalidArgumentError(
      `the header Fencing-Token is ${show(value)}; it must be a number, as in "42" or "42;floor=40"`,
    );
  }
  const fenced = {
    token: checkToken(BigInt(token), "token"),
    floor: checkToken(BigInt(floor ?? token), "floor"),
  };
  return checkFenced("resource", fenced);
}

/**
 * Guards a handler in the style of Fetch (Next, Deno, Bun; Hono with `(c) => guarded(c.req.raw)`): refuses a
 * stale holder with 412 and a problem document before `handler` runs. The handler gets the numbers, for a guard
 * in its own transaction: without one, a later holder can enter while the handler runs. What follows the request
 * is passed on.
 *
 * @example
 * ```ts
 * import { sqliteFence } from "holdfast/fence/sqlite";
 * import { guardFetch } from "holdfast/fence/http";
 * import { openSqlite } from "holdfast/stores/sqlite";
 *
 * const db = await openSqlite("shop.db");
 * const fence = sqliteFence(db);
 * export const PUT = guardFetch(
 *   { fence, resource: () => "stock" }, // not the path: a second spelling of it would be a second resource
 *   async (request, fenced) => {
 *     const count = Number(await request.text());
 *     db.exec("BEGIN IMMEDIATE");
 *     try {
 *       if (fenced !== null) fence.guardSync(db, "stock", fenced);
 *       db.prepare("UPDATE stock SET count = ?").run(count);
 *       db.exec("COMMIT");
 *     } catch (error) {
 *       db.exec("ROLLBACK");
 *       throw error; // a StaleTokenError becomes a 412
 *     }
 *     return new Response(null, { status: 204 });
 *   },
 * );
 * ```
 */
export function guardFetch<Rest extends readonly unknown[]>(
  guard: HttpGuard<Request>,
  handler: (request: Request, fenced: Fenced | null, ...rest: Rest) => Response | Promise<Response>,
): (request: Request, ...rest: Rest) => Promise<Response> {
  checkGuard(guard);
  return async (request, ...rest) => {
    const value = request.headers.get(FENCING_TOKEN);
    try {
      const fenced = await admit(guard, request, value);
      return uncached(await handler(request, fenced, ...rest), value);
    } catch (error) {
      const refusal = refusalOf(error);
      if (refusal === null) throw error;
      return uncached(refusal.toResponse(), value);
    }
  };
}

/**
 * The header by which caches keep a reply from other holders: a read that a cache answers does not enter. A
 * header of the service's own counts.
 */
const cacheHeader = (token: string | null): [name: string, value: string] =>
  token === null ? ["vary", FENCING_TOKEN] : ["cache-control", "no-store"];

function uncached(response: Response, token: string | null): Response {
  // The reply to an upgrade can't be copied.
  if (response.status < 200) return response;
  const [name, value] = cacheHeader(token);
  const set = (one: Response): Response => {
    if (name === "vary" || !one.headers.has(name)) one.headers.append(name, value);
    return one;
  };
  try {
    return set(response);
  } catch {
    // The headers of a reply that was fetched, or of a redirect, can't be changed.
    return set(new Response(response.body, response));
  }
}

/**
 * Guards a request of `node:http` or Express. Resolves to the numbers of the holder, to null if the request
 * is `optional` and has none, and to false if it was refused: then the response has been sent. Rejects with any
 * other error, as of `resource`: an error that leaves a listener of `node:http` ends the process. docs/fences.md
 * has a middleware for Express.
 *
 * @example
 * ```ts
 * import { createServer } from "node:http";
 * import { guardNode, refuse } from "holdfast/fence/http";
 * import { memoryFence } from "holdfast/fence/memory";
 *
 * const fence = memoryFence(); // of the database that the service writes to
 * createServer(async (request, response) => {
 *   try {
 *     const fenced = await guardNode({ fence, resource: () => "hat" }, request, response);
 *     if (fenced !== false) response.end("guard again in the transaction that writes");
 *   } catch (error) {
 *     if (!refuse(response, error)) response.destroy(); // a StaleTokenError of your transaction is a 412
 *   }
 * });
 * ```
 */
export async function guardNode(
  guard: HttpGuard<IncomingMessage>,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<Fenced | null | false> {
  checkGuard(guard);
  const header = request.headers[FENCING_TOKEN];
  const value = Array.isArray(header) ? header.join(",") : (header ?? null);
  const [name, text] = cacheHeader(value);
  if (!response.headersSent && (name === "vary" || !response.hasHeader(name)))
    response.appendHeader(name, text);
  try {
    return await admit(guard, request, value);
  } catch (error) {
    if (!refuse(response, error)) throw error;
    return false;
  }
}

/**
 * Answers with the problem document if the error is a refusal by a fence, such as the `StaleTokenError` of a
 * guard in your transaction. Returns false for any other error, and if the response has begun: then nothing
 * was sent, and the request is yours to end.
 */
export function refuse(response: ServerResponse, error: unknown): boolean {
  return refusalOf(error)?.send(response) ?? false;
}

/**
 * Makes a `fetch` for the work under a lease: each request carries the token, is aborted when the lease is
 * lost, and rejects with `StaleTokenError` if the service refuses the token. Other replies are returned, also
 * errors: check `ok`. With a `sequencer`, which others could use, a redirect is an error unless you set
 * `redirect`: `fetch` would send the header to the other server too.
 *
 * @example
 * ```ts
 * import { fencedFetch } from "holdfast/fence/http";
 *
 * await locks.withLock("stock", async (lease) => {
 *   const send = fencedFetch(lease);
 *   await send("http://127.0.0.1:8080/stock", { method: "PUT", body: "6" });
 * });
 * ```
 */
export function fencedFetch(
  lease: Fenced & { readonly signal?: AbortSignal; assertHeld?(): void },
  options: { fetch?: typeof fetch; sequencer?: string } = {},
): typeof fetch {
  checkOptions(options, "the options of fencedFetch", ["fetch", "sequencer"]);
  const value = options.sequencer ?? fencingToken(lease);
  return async (input, init = {}) => {
    lease.assertHeld?.();
    const headers = new Headers(init.headers ?? (input as Request).headers);
    headers.set(FENCING_TOKEN, value);
    // A read that a cache answers would not enter, and may be old.
    if (!headers.has("cache-control")) headers.set("cache-control", "no-cache");
    const signals = [lease.signal, init.signal, (input as Request).signal].filter(
      (one) => one instanceof AbortSignal,
    );
    const signal = signals.length === 0 ? null : AbortSignal.any(signals);
    // An option that is undefined counts as left out.
    const cache = init.cache ?? "no-store";
    const redirect = init.redirect ?? (options.sequencer === undefined ? undefined : "error");
    const request = { ...init, cache, ...(redirect && { redirect }), headers, signal };
    const response = await (options.fetch ?? fetch)(input, request);
    if (response.status === 412) await throwIfStale(response.clone(), lease.token);
    return response;
  };
}

async function throwIfStale(response: Response, token: bigint): Promise<void> {
  if (!response.headers.get("content-type")?.toLowerCase().startsWith(PROBLEM_JSON)) return;
  const text = await readStart(response);
  let problem: Partial<Record<string, unknown>> | null = null;
  try {
    problem = JSON.parse(text) as Partial<Record<string, unknown>> | null;
  } catch {
    return;
  }
  if (problem?.["type"] !== STALE) return;
  const { highest, resource } = problem;
  const known = typeof highest === "string" && /^\d{1,19}$/.test(highest) ? BigInt(highest) : token;
  throw new StaleTokenError(typeof resource === "string" ? resource : response.url, token, known);
}

/** A problem document is short; the rest of a longer body is not read. */
async function readStart(response: Response): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  const reader = response.body?.getReader();
  while (reader !== undefined && text.length <= MOST_PROBLEM_BYTES) {
    const { done, value } = await reader.read();
    if (done) return text;
    text += decoder.decode(value, { stream: true });
  }
  // The other half of the clone goes on: not awaited, because this waits for that half too.
  void reader?.cancel();
  return "";
}

async function admit<R>(
  guard: HttpGuard<R>,
  request: R,
  value: string | null,
): Promise<Fenced | null> {
  if (value === null) {
    if (guard.optional) return null;
    throw new Refusal({
      type: "urn:holdfast:problem:no-token",
      title: "A fencing token is required",
      status: 428,
      detail: "Send the token of your lease in the header Fencing-Token.",
    });
  }
  const resource = await guard.resource(request);
  readOr400(() => checkResource(resource), BAD_RESOURCE);
  const fenced =
    guard.key === undefined ? parsed(value) : await verified(guard, request, value, resource);
  try {
    await guard.fence.guard(undefined, resource, fenced);
  } catch (error) {
    throw isUnavailable(error) ? unavailable() : error;
  }
  return fenced;
}

const parsed = (value: string): Fenced => readOr400(() => parseFencingToken(value));

async function verified<R>(
  guard: HttpGuard<R>,
  request: R,
  value: string,
  resource: string,
): Promise<Fenced> {
  const { name, token, floor } = readOr400(() => readSequencer(value, { key: guard.key! }));
  const expected = (await guard.name?.(request)) ?? resource;
  if (name === expected) return { token, floor };
  throw new Refusal({
    type: "urn:holdfast:problem:other-lock",
    title: "The sequencer is for another lock",
    status: 403,
    detail: `The sequencer was granted for ${JSON.stringify(name)}; this resource needs ${JSON.stringify(expected)}.`,
  });
}

function readOr400<T>(read: () => T, what = BAD_TOKEN): T {
  try {
    return read();
  } catch (error) {
    throw new Refusal({
      ...what,
      status: 400,
      detail: (error as Error).message,
    });
  }
}

/** Null for an error that is not a fence's. */
function refusalOf(error: unknown): Refusal | null {
  if (error instanceof Refusal) return error;
  const problem = HoldfastError.is(error) ? problemOf(error) : null;
  return problem === null ? null : new Refusal(problem);
}

function problemOf(error: HoldfastError): Problem | null {
  if (error.code === "STALE_TOKEN") {
    const { resource, token, highest } = error as StaleTokenError;
    return {
      type: STALE,
      title: "The fencing token is stale",
      status: 412,
      detail:
        token < highest
          ? `A later holder has entered ${JSON.stringify(resource)}: your lease is over.`
          : error.message,
      resource,
      token: String(token),
      highest: String(highest),
    };
  }
  if (!isUnavailable(error)) return null;
  // The error of a handler: the reply to its commit may have been lost.
  return {
    type: "urn:holdfast:problem:store-unavailable",
    title: "A store gave no reply",
    status: 503,
    detail: "It is not known whether the request was carried out.",
  };
}

/** By its code: the error may come from another copy of the library. */
const isUnavailable = (error: unknown): boolean =>
  HoldfastError.is(error) && error.code === "STORE_UNAVAILABLE";

function checkGuard<R>(guard: HttpGuard<R>): void {
  checkOptions(guard, "the options of the guard", ["fence", "resource", "optional", "name", "key"]);
  if (typeof guard.fence?.guard !== "function" || typeof guard.resource !== "function") {
    throw new InvalidArgumentError(
      "the guard needs a fence, and a function resource that tells which resource a request is for",
    );
  }
  if ("key" in guard) checkKey({ key: guard.key });
}
