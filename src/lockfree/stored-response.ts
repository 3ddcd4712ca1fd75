import type { ServerResponse } from "node:http";
import { Refusal } from "../fence/shared/problem.js";

/** A header as `node:http` has it: several values under one name are a list. */
export type Header = readonly [name: string, value: string | readonly string[]];

/** A response as it is kept: plain data. */
export interface StoredResponse {
  readonly status: number;
  readonly headers: readonly Header[];
  /** In base64; null if the response was too large to be kept. */
  readonly body: string | null;
}

/** A body of this size, in base64 and with its headers, fits into a record. */
const MOST_BODY_BYTES = 700_000;
/** The limit on all headers together, as text. */
const MOST_HEADER_BYTES = 60_000;
/** Statuses whose responses have no body. `node:http` leaves out one that a handler writes. */
const WITHOUT_BODY = [204, 205, 304];
/** The header that marks the stored response of an earlier request. */
const REPLAYED = "idempotent-replayed";
/**
 * Headers that belong to one connection or one moment. A cookie is a secret, which does not belong in the store,
 * and an old one would replace the client's current one.
 */
const NOT_KEPT = [
  "connection",
  "date",
  "keep-alive",
  "set-cookie",
  "trailer",
  "transfer-encoding",
  "upgrade",
];

export function storedResponse(
  status: number,
  headers: Iterable<Header>,
  body: Buffer,
): StoredResponse {
  const kept = [...headers].filter(([name]) => !NOT_KEPT.includes(name.toLowerCase()));
  const headerBytes = Buffer.byteLength(JSON.stringify(kept));
  return body.length > MOST_BODY_BYTES || headerBytes > MOST_HEADER_BYTES
    ? { status, headers: [], body: null }
    : { status, headers: kept, body: body.toString("base64") };
}

export function replayFetch(stored: StoredResponse): Response {
  const body = bodyOf(stored);
  const headers = new Headers({ [REPLAYED]: "true" });
  for (const [name, value] of stored.headers) {
    for (const one of [value].flat()) headers.append(name, one);
  }
  // Such statuses do not allow an empty body either.
  const content = WITHOUT_BODY.includes(stored.status) ? null : new Uint8Array(body);
  return new Response(content, { status: stored.status, headers });
}

export function replayNode(stored: StoredResponse, response: ServerResponse): void {
  const body = bodyOf(stored);
  response.statusCode = stored.status;
  for (const [name, value] of stored.headers) response.setHeader(name, value);
  response.setHeader(REPLAYED, "true");
  response.end(body);
}

/** The body; throws the refusal to replay a response that was too large. */
function bodyOf({ body }: StoredResponse): Buffer {
  if (body !== null) return Buffer.from(body, "base64");
  throw new Refusal({
    type: "urn:holdfast:problem:response-not-kept",
    title: "The response was too large to be kept",
    status: 410,
    detail: "The request was carried out before, and is not carried out again.",
  });
}
