import type { OutgoingHttpHeaders, ServerResponse } from "node:http";
import { Refusal } from "../core/problem.js";

/** A response as it is kept: plain data. */
export interface StoredResponse {
  readonly status: number;
  readonly headers: readonly (readonly [name: string, value: string])[];
  /** In base64; null if it was too large to be kept. */
  readonly body: string | null;
}

/** Says that the response is that of an earlier request. */
export const REPLAYED = "idempotent-replayed";

/** In base64, and with its headers, it fits into a record. */
const MOST_BODY_BYTES = 700_000;
/** Of the connection, and not of the response; the date is that of the sending. */
const NOT_KEPT = ["connection", "keep-alive", "transfer-encoding", "date"];

export function storedResponse(
  status: number,
  headers: Iterable<readonly [string, string]>,
  body: Buffer,
): StoredResponse {
  const kept = [...headers].filter(([name]) => !NOT_KEPT.includes(name.toLowerCase()));
  const text = body.length > MOST_BODY_BYTES ? null : body.toString("base64");
  return { status, headers: kept, body: text };
}

/** The body; throws the refusal to replay a response whose body was too large. */
export function bodyOf({ body }: StoredResponse): Buffer {
  if (body !== null) return Buffer.from(body, "base64");
  throw new Refusal({
    type: "urn:holdfast:problem:response-not-kept",
    title: "The response was too large to be kept",
    status: 410,
    detail: "The request was carried out before, and is not carried out again.",
  });
}

export function replayFetch(stored: StoredResponse): Response {
  const body = bodyOf(stored);
  const headers = [...stored.headers.map(([name, value]) => [name, value] as [string, string])];
  const init = {
    status: stored.status,
    headers: [...headers, [REPLAYED, "true"] as [string, string]],
  };
  // Some statuses allow no body, not even an empty one.
  return new Response(body.length === 0 ? null : new Uint8Array(body), init);
}

export function replayNode(stored: StoredResponse, response: ServerResponse): void {
  const body = bodyOf(stored);
  response.statusCode = stored.status;
  for (const [name, value] of stored.headers) response.appendHeader(name, value);
  response.setHeader(REPLAYED, "true");
  response.end(body);
}

/**
 * Holds back what a handler of `node:http` writes, until it is known whether that is the result of the key.
 * Piping works; a large response is in memory as a whole.
 */
export class HeldResponse {
  /** Resolves when the handler has ended the response. */
  readonly ended: Promise<StoredResponse>;
  readonly #response: ServerResponse;
  readonly #own: Pick<ServerResponse, "write" | "end" | "writeHead" | "flushHeaders">;
  readonly #before: OutgoingHttpHeaders;
  readonly #chunks: Buffer[] = [];

  constructor(response: ServerResponse) {
    this.#response = response;
    const { write, end, writeHead, flushHeaders } = response;
    this.#own = { write, end, writeHead, flushHeaders };
    this.#before = response.getHeaders();
    this.ended = new Promise((resolve) => {
      const held = {
        write: (...args: unknown[]) => this.#write(args),
        end: (...args: unknown[]) => {
          this.#write(args);
          resolve(this.#stored());
          return response;
        },
        writeHead: (status: number, ...rest: unknown[]) => {
          response.statusCode = status;
          for (const [name, value] of headersIn(rest.at(-1))) response.setHeader(name, value);
          return response;
        },
        flushHeaders: () => {},
      };
      Object.assign(response, held);
    });
  }

  /** Lets the response through again; `reset` also undoes what the handler has set. */
  release(reset: boolean): void {
    Object.assign(this.#response, this.#own);
    if (!reset) return;
    this.#response.statusCode = 200;
    for (const name of this.#response.getHeaderNames()) this.#response.removeHeader(name);
    for (const [name, value] of Object.entries(this.#before)) {
      if (value !== undefined) this.#response.setHeader(name, value);
    }
  }

  /** Sends what the handler has written. */
  send(): void {
    this.release(false);
    this.#response.end(Buffer.concat(this.#chunks));
  }

  /** The arguments of `write` and `end`: chunk, encoding and callback, each of which may be left out. */
  #write(args: unknown[]): boolean {
    const [chunk, encoding] = args;
    if (typeof chunk === "string") {
      const name = typeof encoding === "string" ? (encoding as BufferEncoding) : "utf8";
      this.#chunks.push(Buffer.from(chunk, name));
    } else if (chunk instanceof Uint8Array) this.#chunks.push(Buffer.from(chunk));
    const done = args.find((one) => typeof one === "function") as (() => void) | undefined;
    if (done !== undefined) queueMicrotask(done);
    return true;
  }

  #stored(): StoredResponse {
    const headers = Object.entries(this.#response.getHeaders()).flatMap(([name, value]) =>
      [value ?? []].flat().map((one) => [name, String(one)] as const),
    );
    return storedResponse(this.#response.statusCode, headers, Buffer.concat(this.#chunks));
  }
}

/** The last argument of `writeHead`: an object, a list of names and values in turn, or none. */
function headersIn(given: unknown): [string, string | string[]][] {
  if (Array.isArray(given)) {
    return given.flatMap((name, i) => (i % 2 === 0 ? [[name, given[i + 1]]] : [])) as never;
  }
  return typeof given === "object" && given !== null ? Object.entries(given) : [];
}
