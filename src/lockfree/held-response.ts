import type { OutgoingHttpHeader, OutgoingHttpHeaders, ServerResponse } from "node:http";
import { type Header, type StoredResponse, storedResponse } from "./stored-response.js";

/** Status and headers of a response at one moment. */
interface Head {
  readonly status: number;
  readonly message: string;
  readonly headers: OutgoingHttpHeaders;
}

/**
 * Holds back what a handler of `node:http` writes, until it is known whether that is the result of the key.
 * Hides from the handler that the client has left, which would end its streams before they have ended the
 * response. Piping works; a large response is in memory as a whole.
 */
export class HeldResponse {
  /** Resolves when the handler has ended the response, and rejects when it has destroyed it. */
  readonly ended: Promise<StoredResponse>;
  readonly #response: ServerResponse;
  readonly #before: Head;
  readonly #chunks: Buffer[] = [];
  /** The properties of the response that ours hide; undefined if it had none of its own. */
  readonly #hidden: (readonly [name: string, PropertyDescriptor | undefined])[];
  #atEnd: Head | null = null;
  #hasClientLeft = false;
  #isDestroyed = false;

  constructor(response: ServerResponse) {
    this.#response = response;
    this.#before = headOf(response);
    this.#hasClientLeft = response.destroyed;
    let properties: PropertyDescriptorMap = {};
    this.ended = new Promise((resolve, reject) => {
      properties = { ...this.#state(), ...this.#methods(resolve, reject) };
    });
    // Nobody may be waiting for it: another caller has the result of the key.
    this.ended.catch(() => {});
    this.#hidden = Object.keys(properties).map(
      (name) => [name, Object.getOwnPropertyDescriptor(response, name)] as const,
    );
    for (const [name, property] of Object.entries(properties)) {
      Object.defineProperty(response, name, { ...property, configurable: true });
    }
  }

  get isDestroyed(): boolean {
    return this.#isDestroyed;
  }

  /** Sends what the handler has written, if the client is still there. */
  send(): void {
    this.#letThrough(this.#atEnd!);
    if (!this.#response.destroyed) this.#response.end(Buffer.concat(this.#chunks));
  }

  /** Drops what the handler has written and set. The response can be used again. */
  drop(): void {
    this.#letThrough(this.#before);
    if (this.#isDestroyed) this.#response.destroy();
  }

  #letThrough(head: Head): void {
    const response = this.#response;
    for (const [name, own] of this.#hidden) {
      if (own === undefined) delete (response as unknown as Record<string, unknown>)[name];
      else Object.defineProperty(response, name, own);
    }
    response.statusCode = head.status;
    response.statusMessage = head.message;
    for (const name of response.getHeaderNames()) {
      if (head.headers[name] === undefined) response.removeHeader(name);
    }
    for (const [name, value] of Object.entries(head.headers)) response.setHeader(name, value!);
    if (!this.#hasClientLeft || response.destroyed) return;
    Object.assign(response, { destroyed: true, _closed: true });
    response.emit("close");
  }

  /** The fields that `node:http` sets, and streams read, when the client leaves and when the response is ended. */
  #state(): PropertyDescriptorMap {
    const set = (isTrue: boolean): void => {
      this.#hasClientLeft ||= isTrue;
    };
    const isDestroyed = { get: () => this.#isDestroyed, set };
    const hasEnded = { get: () => this.#atEnd !== null };
    return {
      destroyed: isDestroyed,
      _closed: isDestroyed,
      headersSent: hasEnded,
      writableEnded: hasEnded,
    };
  }

  #methods(
    ended: (stored: StoredResponse) => void,
    failed: (error: Error) => void,
  ): PropertyDescriptorMap {
    const response = this.#response;
    const { emit } = response;
    return methods({
      write: (...args) => this.#write(args),
      end: (...args) => {
        this.#write(args);
        if (this.#atEnd !== null) return response;
        const { statusCode } = response;
        if (!Number.isInteger(statusCode) || statusCode < 100 || statusCode > 999) {
          throw new RangeError(`the status code of the response is ${statusCode}`);
        }
        this.#atEnd = headOf(response);
        ended(this.#stored(this.#atEnd));
        return response;
      },
      writeHead: (status, ...rest) => {
        if (this.#atEnd !== null) throw new Error("the handler has ended the response");
        response.statusCode = status as number;
        if (typeof rest[0] === "string") response.statusMessage = rest[0];
        setHeaders(response, rest.at(-1));
        return response;
      },
      flushHeaders: () => {},
      destroy: (error) => {
        this.#isDestroyed = true;
        failed((error as Error | undefined) ?? new Error("the handler destroyed the response"));
        return response;
      },
      emit: (event, ...args) =>
        event === "close" ? true : emit.call(response, event as string, ...args),
    });
  }

  /** The arguments of `write` and `end`: chunk, encoding and callback, each of which may be left out. */
  #write(args: unknown[]): boolean {
    const [chunk, encoding] = args;
    if (this.#atEnd === null) {
      if (typeof chunk === "string") {
        const name = typeof encoding === "string" ? (encoding as BufferEncoding) : "utf8";
        this.#chunks.push(Buffer.from(chunk, name));
      } else if (chunk instanceof Uint8Array) this.#chunks.push(Buffer.from(chunk));
    }
    const done = args.find((one) => typeof one === "function") as (() => void) | undefined;
    if (done !== undefined) queueMicrotask(done);
    return true;
  }

  /** Without the headers that were there before the handler: the next response has its own. */
  #stored({ status, headers }: Head): StoredResponse {
    const own = Object.entries(headers)
      .map(([name, value]): Header => [name, textOf(value!)])
      .filter(([name, value]) => String(value) !== String(this.#before.headers[name]));
    return storedResponse(status, own, Buffer.concat(this.#chunks));
  }
}

const headOf = (response: ServerResponse): Head => ({
  status: response.statusCode,
  message: response.statusMessage,
  headers: { ...response.getHeaders() },
});

const textOf = (value: OutgoingHttpHeader): string | string[] =>
  Array.isArray(value) ? value : String(value);

const methods = (given: Record<string, (...args: unknown[]) => unknown>): PropertyDescriptorMap =>
  Object.fromEntries(
    Object.entries(given).map(([name, value]) => [name, { value, writable: true }]),
  );

/** As `writeHead` does with its last argument: an object, a list of names and values in turn, or none. */
function setHeaders(response: ServerResponse, given: unknown): void {
  if (typeof given !== "object" || given === null) return;
  const list: [string, OutgoingHttpHeader][] = Array.isArray(given)
    ? given.flatMap((name, i) => (i % 2 === 0 ? [[name, given[i + 1]]] : []))
    : Object.entries(given);
  for (const [name] of list) if (response.hasHeader(name)) response.removeHeader(name);
  for (const [name, value] of list) response.appendHeader(name, textOf(value));
}
