import { InvalidArgumentError } from "../core/errors.js";
import type { Lease } from "../core/lease.js";
import { Refusal } from "../fence/shared/problem.js";
import type { Locks } from "../locks.js";
import { HttpGuard, type IdempotentHttpOptions, KEY_HEADER } from "./idempotent-http.js";
import { replayFetch, storedResponse } from "./stored-response.js";

/**
 * Makes a handler in the style of Fetch (Next, Deno, Bun; Hono with `(c) => charge(c.req.raw)`) idempotent by
 * the header `Idempotency-Key`: a repeated request gets the response of the first, marked with
 * `Idempotent-Replayed: true`. Refuses with a problem document: 400 without a key, 409 while the first is in
 * progress, 413 for a long body, 422 for another request under the same key, 503 if the store can't be used, the
 * `Locks` is closed or the lease of the key was lost (the logger of the `Locks` gets the error). Errors of the handler come out.
 * Responses are read into memory as a whole.
 *
 * The work goes on when the client leaves. Do not pass `request.signal` to it: use `lease.signal`.
 *
 * @example
 * ```ts
 * import { connect } from "holdfast";
 * import { idempotentFetch } from "holdfast/lockfree";
 *
 * const locks = await connect("redis://127.0.0.1:6379");
 * export const POST = idempotentFetch(
 *   locks,
 *   { keep: "24h", scope: async (request) => (await authenticate(request)).account },
 *   async (request) => Response.json(await charge(await request.json()), { status: 201 }),
 * );
 * ```
 */
export function idempotentFetch<Rest extends readonly unknown[]>(
  locks: Locks,
  options: IdempotentHttpOptions<Request>,
  handler: (request: Request, lease: Lease | null, ...rest: Rest) => Response | Promise<Response>,
): (request: Request, ...rest: Rest) => Promise<Response> {
  const guard = new HttpGuard(locks, options, handler);
  return async (request, ...rest) => {
    try {
      const key = guard.readKey(request.method, request.headers.get(KEY_HEADER));
      if (key === null) return await handler(request, null, ...rest);
      if (request.bodyUsed) {
        throw new InvalidArgumentError(
          "another middleware has read the body of the request, so the request can't be told from others: " +
            "put idempotentFetch before it, or let it read a clone of the request",
        );
      }
      // Cancelling one of two halves would wait for the other.
      const half = request.clone().body?.values({ preventCancel: true });
      const body = await guard.readBody(half ?? []);
      const { pathname, search } = new URL(request.url);
      const named = { key, method: request.method, path: pathname + search, body };
      let own: Response | undefined;
      const stored = await guard.run(request, named, async (lease) => {
        const response = await handler(request, lease, ...rest);
        const bytes = Buffer.from(await response.clone().arrayBuffer());
        own = response;
        return storedResponse(response.status, response.headers, bytes);
      });
      return stored === null ? own! : replayFetch(stored);
    } catch (error) {
      if (error instanceof Refusal) return error.toResponse();
      throw error;
    }
  };
}
