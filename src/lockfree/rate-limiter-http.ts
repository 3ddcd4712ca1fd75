import { createHash } from "node:crypto";
import type { IncomingMessage, ServerResponse } from "node:http";
import { HoldfastError, InvalidArgumentError } from "../core/errors.js";
import { orElse, parseDuration, show } from "../core/validate.js";
import { Refusal } from "../fence/shared/problem.js";
import type { Locks } from "../locks.js";
import { logOutage } from "./log-outage.js";
import { meterOf, type RateLimiterOptions, rateLimiter } from "./rate-limiter.js";

/** How a service limits its requests. */
export interface RateLimitHttpOptions<Request> extends RateLimiterOptions {
  /** The account or the address that is limited. Each has its own units. It must return a string. */
  key: (request: Request) => string | Promise<string>;
  /** How many units a request takes. Default 1. */
  units?: ((request: Request) => number | Promise<number>) | undefined;
  /**
   * The name of the policy in the headers, and of the limiter: 1 to 64 characters of ASCII. Limits with other numbers
   * need another one, also if their keys differ. Default "default".
   */
  policy?: string | undefined;
}

/**
 * Limits a handler in the style of Fetch (Next, Deno, Bun; Hono with `(c) => limited(c.req.raw)`). Refuses with
 * 429, `Retry-After` and a problem document, and with 503 if the store can't be used and `onUnavailable` is
 * `"throw"`. Every response has the headers `RateLimit-Policy` and `RateLimit` of
 * draft-ietf-httpapi-ratelimit-headers-10.
 *
 * @example
 * ```ts
 * import { connect } from "holdfast";
 * import { limitFetch } from "holdfast/lockfree";
 *
 * const locks = await connect("redis://127.0.0.1:6379");
 * const key = (request: Request) => request.headers.get("authorization") ?? "nobody";
 * export const GET = limitFetch(locks, { limit: 100, per: "1m", burst: 20, key }, async () => {
 *   return Response.json({ fine: true });
 * });
 * ```
 */
export function limitFetch<Rest extends readonly unknown[]>(
  locks: Locks,
  options: RateLimitHttpOptions<Request>,
  handler: (request: Request, ...rest: Rest) => Response | Promise<Response>,
): (request: Request, ...rest: Rest) => Promise<Response> {
  const admit = admission(locks, options);
  return async (request, ...rest) => {
    let headers: Record<string, string>;
    try {
      headers = await admit(request);
    } catch (error) {
      if (error instanceof Refusal) return error.toResponse();
      throw error;
    }
    const response = await handler(request, ...rest);
    // A copy: the headers of a response that came from `fetch` can't be changed.
    const limited = new Response(response.body, response);
    // A list: the handler may have a limit of its own.
    for (const [name, value] of Object.entries(headers)) limited.headers.append(name, value);
    return limited;
  };
}

/**
 * Limits requests of `node:http` or Express, as `limitFetch` does. The function that it returns sets the headers,
 * and resolves to false if it has refused the request: then the response has been sent. Express:
 * `app.use(async (req, res, next) => { if (await admit(req, res)) next(); })`.
 */
export function limitNode<Req extends IncomingMessage>(
  locks: Locks,
  options: RateLimitHttpOptions<Req>,
): (request: Req, response: ServerResponse) => Promise<boolean> {
  const admit = admission(locks, options);
  return async (request, response) => {
    try {
      for (const [name, value] of Object.entries(await admit(request)))
        response.appendHeader(name, value);
      return true;
    } catch (error) {
      if (error instanceof Refusal && error.send(response)) return false;
      throw error;
    }
  };
}

/** Takes the units of a request. Resolves to the headers of its response, or throws a refusal. */
function admission<R>(
  locks: Locks,
  options: RateLimitHttpOptions<R>,
): (request: R) => Promise<Record<string, string>> {
  const { key, units = () => 1, policy = "default", ...numbers } = options;
  if (typeof key !== "function") {
    throw new InvalidArgumentError(
      `key is ${show(key)}; it must be a function that tells who is limited`,
    );
  }
  if (typeof units !== "function") {
    throw new InvalidArgumentError(
      `units is ${show(units)}; it must be a function that tells how many units a request takes`,
    );
  }
  // The only characters of a string in a structured header (RFC 9651).
  if (typeof policy !== "string" || !/^[ -~]{1,64}$/.test(policy)) {
    throw new InvalidArgumentError(
      `policy is ${show(policy)}; it must be a string of 1 to 64 printable characters of ASCII, because it stands in headers`,
    );
  }
  rateLimiter(locks, policy, numbers); // Throws for bad numbers now, and not at the first request.
  checkSameNumbers(locks, policy, numbers);
  const name = JSON.stringify(policy);
  const seconds = Math.max(1, Math.ceil(parseDuration(numbers.per, "per", { min: 1 }) / 1_000));
  const policyHeader = `${name};q=${numbers.limit};w=${seconds}`;
  return async (request) => {
    const limiter = rateLimiter(locks, `${policy}:${hashOf(await key(request))}`, numbers);
    const wanted = orElse(await units(request), 1);
    const result = await limiter.take(wanted).catch((error: unknown) => {
      if (!HoldfastError.is(error) || error.code !== "STORE_UNAVAILABLE") throw error;
      logOutage(locks, `a request under the policy ${name}`, error);
      throw unavailable(error);
    });
    if (result.unavailable) return {};
    const { allowed, remaining, retryAfterMs, fullInMs } = result;
    const headers = {
      "ratelimit-policy": policyHeader,
      ratelimit: `${name};r=${remaining};t=${Math.ceil(fullInMs / 1_000)}`,
    };
    if (allowed) return headers;
    throw exceeded(policy, retryAfterMs, headers);
  };
}

/** The numbers of each policy of a `Locks`, as text. */
const policies = new WeakMap<Locks, Map<string, string>>();

/**
 * A key that two limits with different numbers share has one meter, where the smaller one forgets what the larger has
 * taken. Which keys come is not known when a handler is made, so the numbers of a policy must be the same for all.
 */
function checkSameNumbers(locks: Locks, policy: string, numbers: RateLimiterOptions): void {
  const { limit, perUs, burst } = meterOf(numbers);
  const text = `limit ${limit}, per ${perUs / 1_000} ms and burst ${burst}`;
  const known = policies.get(locks) ?? new Map<string, string>();
  policies.set(locks, known);
  const before = known.get(policy) ?? text;
  known.set(policy, before);
  if (before === text) return;
  throw new InvalidArgumentError(
    `the policy ${show(policy)} has ${before} already, and here ${text}; a key that is limited by both would have one count, ` +
      "in which neither limit holds: give each limit a policy of its own, and a limit whose numbers have changed a new one",
  );
}

/** Keys may be long, or secrets. */
function hashOf(key: unknown): string {
  if (typeof key === "string") return createHash("sha256").update(key).digest("hex");
  throw new InvalidArgumentError(
    `key returned ${show(key)}; it must return a string, also for a request that does not say who sent it`,
  );
}

function exceeded(policy: string, retryAfterMs: number, headers: Record<string, string>): Refusal {
  const seconds = Math.max(1, Math.ceil(retryAfterMs / 1_000));
  return new Refusal(
    {
      type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
      title: "The quota is exceeded",
      status: 429,
      detail: `Send the request again in ${seconds} s.`,
      "violated-policies": [policy],
    },
    { ...headers, "retry-after": String(seconds) },
  );
}

/** Nothing was done; units may have been taken. */
const unavailable = (cause: unknown): Refusal =>
  new Refusal(
    {
      type: "urn:holdfast:problem:limiter-unavailable",
      title: "The limiter can't be asked",
      status: 503,
      detail: "The request was not carried out. Send it again later.",
    },
    { "retry-after": "1" },
    cause,
  );
