import type { Caller } from "./caller.js";
import { Code, type EtcdError, toEtcdError } from "./errors.js";
import type { GrpcMetadata } from "./grpc.js";
import type { Login } from "./login.js";
import {
  METHODS,
  type WatchEvent,
  type WatchRange,
  type WatchReply,
  type WatchRequest,
} from "./messages.js";
import { Stream } from "./streams.js";

export interface WatchListener {
  /** The server watches: every event after `revision` will be received. Also each time the watch is made again. */
  created(revision: bigint): void;
  /** All events of one or more revisions, in order, never half a revision; `revision` is that of the last. */
  events(events: WatchEvent[], revision: bigint): void;
  /** Events were missed: read the keys again when the watch is back. */
  gap(): void;
  /** The watch is refused (a right is missing), or can't be made for now; it is retried. */
  failed?(error: EtcdError): void;
}

export interface Watch {
  cancel(): void;
}

interface Watching {
  readonly range: WatchRange;
  readonly listener: WatchListener;
  /** Chosen by the client, and new each time: replies to an earlier watch are not mistaken for this one's. */
  id: bigint;
  /** The revision at which it begins when it is made again; 0: now. */
  next: bigint;
  refusals: number;
  /** Retries a refused watch. */
  timer: NodeJS.Timeout | undefined;
}

const PAUSE_MS = { first: 20, most: 1_000 };
const REFUSED_MS = { first: 250, most: 30_000 };
/** The token is renewed at the first refusal, and then at one in this many. */
const RENEW_EVERY = 8;
/** The id in a refusal that does not name its watch. */
const NO_WATCH = -1n;

/** All watches of a client, on one stream. When that breaks, another is opened, and each goes on where it was. */
export class Watches {
  readonly #caller: Caller;
  readonly #login: Login;
  readonly #watches = new Map<bigint, Watching>();
  /** Requested on this stream and not answered; the replies come in this order. */
  #creating: bigint[] = [];
  #stream: Stream<WatchRequest, WatchReply> | null = null;
  #opening = false;
  #timer: NodeJS.Timeout | undefined;
  #failures = 0;
  #lastId = 0n;
  #closed = false;

  constructor(caller: Caller, login: Login) {
    this.#caller = caller;
    this.#login = login;
  }

  watch(range: WatchRange, listener: WatchListener): Watch {
    const watching: Watching = {
      range,
      listener,
      id: 0n,
      next: range.startRevision ?? 0n,
      refusals: 0,
      timer: undefined,
    };
    this.#add(watching);
    return { cancel: () => this.#cancel(watching) };
  }

  /** The client uses another endpoint now: the old member may be cut off though its connection lives. */
  moved(): void {
    if (this.#stream !== null) this.#reopen();
  }

  close(): void {
    this.#closed = true;
    for (const { timer } of this.#watches.values()) clearTimeout(timer);
    this.#watches.clear();
    this.#drop();
    clearTimeout(this.#timer);
  }

  #add(watching: Watching): void {
    clearTimeout(watching.timer);
    this.#watches.delete(watching.id);
    watching.id = ++this.#lastId;
    this.#watches.set(watching.id, watching);
    if (this.#stream !== null) this.#create(this.#stream, watching);
    else if (this.#timer === undefined) this.#open();
  }

  #create(stream: Stream<WatchRequest, WatchReply>, { id, range, next }: Watching): void {
    this.#creating.push(id);
    const { key, rangeEnd, prevKv } = range;
    stream.send({
      // Progress: so that an idle watch does not fall behind what is compacted.
      create: { key, rangeEnd, prevKv, startRevision: next, progressNotify: true, watchId: id },
    });
  }

  #cancel(watching: Watching): void {
    if (!this.#watches.delete(watching.id)) return;
    clearTimeout(watching.timer);
    if (this.#watches.size === 0) this.#drop();
    else this.#stream?.send({ cancel: { watchId: watching.id } });
  }

  #drop(): void {
    this.#stream?.close();
    this.#stream = null;
    this.#creating = [];
  }

  #open(): void {
    const { metadata } = this.#login;
    if (metadata !== null) {
      this.#openWith(metadata);
      return;
    }
    if (this.#opening) return;
    this.#opening = true;
    this.#login
      .ready()
      .finally(() => {
        this.#opening = false;
      })
      .then(
        (fresh) => this.#openWith(fresh),
        (error) => this.#fail(error),
      );
  }

  #openWith(metadata: GrpcMetadata): void {
    if (this.#closed || this.#stream !== null || this.#watches.size === 0) return;
    const stream = new Stream(this.#caller, this.#login, metadata, METHODS.watch, {
      received: (reply) => this.#received(reply, metadata),
      broken: (error) => this.#fail(error),
    });
    this.#stream = stream;
    for (const watching of [...this.#watches.values()]) this.#add(watching);
  }

  #fail(error: EtcdError): void {
    for (const { listener } of [...this.#watches.values()]) listener.failed?.(error);
    this.#reopen();
  }

  #reopen(): void {
    this.#drop();
    if (this.#closed || this.#timer !== undefined || this.#watches.size === 0) return;
    const pauseMs = Math.min(PAUSE_MS.first * 2 ** this.#failures++, PAUSE_MS.most);
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      this.#open();
    }, pauseMs).unref();
  }

  #received(reply: WatchReply, metadata: GrpcMetadata): void {
    const created = reply.created ? this.#creating.shift() : undefined;
    const id = reply.watchId === NO_WATCH ? created : reply.watchId;
    const watching = id === undefined ? undefined : this.#watches.get(id);
    if (watching === undefined) return;
    if (reply.canceled) {
      this.#canceled(watching, reply, metadata);
      return;
    }
    const revision = reply.header?.revision ?? 0n;
    if (reply.created) {
      this.#failures = 0;
      watching.refusals = 0;
      // A watch that begins now has missed nothing; one that goes on still has to catch up.
      if (watching.next === 0n) watching.next = revision + 1n;
      watching.listener.created(revision);
      return;
    }
    const last = reply.events.at(-1);
    // If the watch is behind by more than one batch, the header is ahead of the events.
    const seen = last === undefined ? revision : last.kv.modRevision;
    if (seen >= watching.next) watching.next = seen + 1n;
    if (last !== undefined) watching.listener.events(reply.events, seen);
  }

  #canceled(watching: Watching, reply: WatchReply, metadata: GrpcMetadata): void {
    if (reply.compactRevision > 0n) {
      watching.next = 0n;
      watching.listener.gap();
      // The listener may have cancelled the watch, or closed the client.
      if (this.#watches.has(watching.id)) this.#add(watching);
      return;
    }
    watching.listener.failed?.(refusal(this.#caller.endpoints.current.address, reply.cancelReason));
    if (!this.#watches.has(watching.id)) return;
    // Some versions say "permission denied" for a token that has expired.
    if (watching.refusals++ % RENEW_EVERY === 0 && this.#login.hasUser) {
      this.#login.renew(metadata);
      this.#reopen();
    } else this.#addLater(watching);
  }

  /** Retries one refused watch; the others go on. */
  #addLater(watching: Watching): void {
    const pauseMs = Math.min(REFUSED_MS.first * 2 ** watching.refusals, REFUSED_MS.most);
    watching.timer = setTimeout(() => this.#add(watching), pauseMs).unref();
  }
}

function refusal(address: string, reason: string): EtcdError {
  const details = reason.replace(/^rpc error: code = \w+ desc = /, "");
  const code = /permission denied/.test(details) ? Code.PERMISSION_DENIED : Code.UNKNOWN;
  return toEtcdError(address, { code, details: details || "the watch was cancelled" });
}
