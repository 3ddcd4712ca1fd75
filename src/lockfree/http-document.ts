import { InvalidArgumentError, StoreUnavailableError, UnsupportedError } from "../core/errors.js";
import { unknownOutcome, type VersionedPlace } from "../core/place.js";
import { checkOptions } from "../core/validate.js";
import { checkNext } from "./next-text.js";

/** Options of `httpDocument`. */
export interface HttpDocumentOptions {
  /** Sent with every request. */
  readonly headers?: Readonly<Record<string, string>> | undefined;
  /** Replaces the global `fetch`. It must not repeat a PUT by itself: the second would meet the first. */
  readonly fetch?: typeof fetch | undefined;
}

/** Caches return old values; with compression, servers weaken or change the tag. */
const FRESH = { "cache-control": "no-cache", "accept-encoding": "identity" };

/** The version is another one, or there is nothing where something was. */
const CONFLICTS = [404, 409, 412];

/**
 * A document of an HTTP service that sends a strong `ETag` and obeys `If-Match` and `If-None-Match: *`; null
 * while it answers 404. A service that ignores the conditions loses updates, and nothing here can notice it.
 */
export function httpDocument(
  url: string | URL,
  options: HttpDocumentOptions = {},
): VersionedPlace<string | null, string, string | null> {
  checkOptions(options, "the options of httpDocument", ["headers", "fetch"]);
  const { host, pathname } = checkUrl(url);
  const resource = `the document ${host}${pathname}`;
  const send = async <T>(
    init: RequestInit,
    conditions: Record<string, string>,
    receive: (response: Response) => Promise<T>,
  ): Promise<T> => {
    const headers = new Headers(options.headers);
    for (const [name, value] of Object.entries(conditions)) headers.set(name, value);
    const response = await (options.fetch ?? fetch)(url, { ...init, headers });
    return receive(response);
  };
  return {
    resource,
    async read() {
      const received = await send({ cache: "no-store" }, FRESH, async (response) => ({
        response,
        text: await response.text(),
      })).catch((cause: unknown) => {
        throw new StoreUnavailableError(`no reply from ${host}: try again`, { cause });
      });
      const { response, text } = received;
      if (response.status === 404) return { value: null, version: null };
      if (!response.ok) throw refusal("GET", host, response.status);
      return { value: text, version: strongTag(response, host) };
    },
    async write(next, tag) {
      const condition = tag === null ? { "if-none-match": "*" } : { "if-match": tag };
      // A redirect may turn a PUT into a GET, and the page that answers it would count as written.
      const init = { method: "PUT", body: checkNext(next), redirect: "manual" as const };
      const { ok, status } = await send(init, condition, async (response) => {
        await response.body?.cancel();
        return response;
      }).catch((cause: unknown) => {
        throw unknownOutcome(resource, `no reply from ${host} to a PUT`, cause);
      });
      if (ok) return next;
      if (CONFLICTS.includes(status) && !(status === 404 && tag === null)) return false;
      if (status < 400) {
        const why = `${host} answered a PUT with a redirect, which is not followed: pass the URL of the document itself`;
        throw unknownOutcome(resource, why);
      }
      // A gateway answers so when the service behind it has not replied.
      if (status >= 500) throw unknownOutcome(resource, `${host} answered a PUT with ${status}`);
      throw refusal("PUT", host, status);
    },
  };
}

const refusal = (method: string, host: string, status: number): StoreUnavailableError => {
  const retryable = status >= 500 || status === 429;
  const next = retryable
    ? "try again later"
    : "check the URL and the permission to read and write it";
  return new StoreUnavailableError(`${host} answered a ${method} with ${status}: ${next}`, {
    retryable,
  });
};

/** `If-Match` compares strongly: with a weak tag, every write would be refused. */
function strongTag(response: Response, host: string): string {
  const tag = response.headers.get("etag");
  if (tag !== null && !tag.startsWith("W/")) return tag;
  throw new UnsupportedError(
    `${host} sent ${tag === null ? "no ETag" : "a weak ETag"}: If-Match needs a strong one`,
  );
}

/** The text is not repeated in an error: it may hold a password. */
function checkUrl(url: string | URL): URL {
  const parsed = URL.canParse(String(url)) ? new URL(url) : null;
  if (parsed === null || !/^https?:$/.test(parsed.protocol)) {
    throw new InvalidArgumentError("httpDocument needs an http: or https: URL with a host");
  }
  if (parsed.username === "" && parsed.password === "") return parsed;
  throw new InvalidArgumentError(
    `the URL of ${parsed.host} has a user or a password, which fetch refuses: send the header authorization`,
  );
}
