import { Code, type EtcdError, explain } from "./errors.js";
import type { GrpcMetadata } from "./grpc.js";
import type { Login } from "./login.js";
import {
  METHODS,
  type WatchAnswer,
  type WatchEvent,
  type WatchRange,
  type WatchRequest,
} from "./messages.js";
import { Stream } from "./streams.js";
import type { Caller } from "./unary.js";

export interface WatchHearing {
  /** The server has it: every event after `revision` will be told. Also after each time it was lost and made again. */
  created(revision: bigint): void;
  /** All events of one or more revisions, in order, never half a revision; `revision` is that of the last. */
  events(events: WatchEvent[], revision: bigint): void;
  /** It can't go on where it was: what was known must be read again, when it is created anew. */
  gap(): void;
  /** It is refused (a right that is lacking), or can't be made for now; it goes on trying. */
  failed?(error: EtcdError): void;
}

export interface Watch {
  cancel(): void;
}

interface Watching {
  readonly range: WatchRange;
  readonly hear: WatchHearing;
  /** Ours, and new each time it is made: nothing of an earlier one is taken for this one's. */
  id: bigint;
  /** Where it begins when it is made again; 0: now. */
  next: bigint;
  refusals: number;
  /** Until a refused one is asked for again. */
  timer: NodeJS.Timeout | undefined;
}

const PAUSE_MS = { first: 20, most: 1_000 };
const REFUSED_MS = { first: 250, most: 30_000 };
/** The first refusal, and then one in so many, may be the token's fault. */
const RENEW_EVERY = 8;
/** Of a refusal that does not say to whom it was. */
const NOBODY = -1n;

/** All watches of a client, on one stream; when that breaks, another is opened and each goes on where it was. */
export class Watches {
  readonly #caller: Caller;
  readonly #login: Login;
  readonly #watches = new Map<bigint, Watching>();
  /** Asked for on this stream and not answered; the answers come in this order. */
  #creating: bigint[] = [];
  #stream: Stream<WatchRequest, WatchAnswer> | null = null;
  #opening = false;
  #timer: NodeJS.Timeout | undefined;
  #failures = 0;
  #lastId = 0n;
  #closed = false;

  constructor(caller: Caller, login: Login) {
    this.#caller = caller;
    this.#login = login;
  }

  watch(range: WatchRange, hear: WatchHearing): Watch {
    const watching: Watching = {
      range,
      hear,
      id: 0n,
      next: range.startRevision ?? 0n,
      refusals: 0,
      timer: undefined,
    };
    this.#add(watching);
    return { cancel: () => this.#cancel(watching) };
  }

  /** The endpoint in use is another: the old one's member may be cut off though its connection lives. */
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

  #create(stream: Stream<WatchRequest, WatchAnswer>, { id, range, next }: Watching): void {
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
      hear: (answer) => this.#hear(answer, metadata),
      broken: (error) => this.#fail(error),
    });
    this.#stream = stream;
    for (const watching of [...this.#watches.values()]) this.#add(watching);
  }

  #fail(error: EtcdError): void {
    for (const { hear } of [...this.#watches.values()]) hear.failed?.(error);
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

  #hear(answer: WatchAnswer, metadata: GrpcMetadata): void {
    const asked = answer.created ? this.#creating.shift() : undefined;
    const id = answer.watchId === NOBODY ? asked : answer.watchId;
    const watching = id === undefined ? undefined : this.#watches.get(id);
    if (watching === undefined) return;
    if (answer.canceled) {
      this.#canceled(watching, answer, metadata);
      return;
    }
    const revision = answer.header?.revision ?? 0n;
    if (answer.created) {
      this.#failures = 0;
      watching.refusals = 0;
      // What begins now has seen all until now; what goes on has not yet.
      if (watching.next === 0n) watching.next = revision + 1n;
      watching.hear.created(revision);
      return;
    }
    const last = answer.events.at(-1);
    // Behind by more than one batch, the header is ahead of the events.
    const seen = last === undefined ? revision : last.kv.modRevision;
    if (seen >= watching.next) watching.next = seen + 1n;
    if (last !== undefined) watching.hear.events(answer.events, seen);
  }

  #canceled(watching: Watching, answer: WatchAnswer, metadata: GrpcMetadata): void {
    if (answer.compactRevision > 0n) {
      watching.next = 0n;
      watching.hear.gap();
      // Unless whoever heard it has cancelled it, or closed the client.
      if (this.#watches.has(watching.id)) this.#add(watching);
      return;
    }
    watching.hear.failed?.(refusal(this.#caller.endpoints.current.address, answer.cancelReason));
    if (!this.#watches.has(watching.id)) return;
    // Some versions say "permission denied" of a token that has run out.
    if (watching.refusals++ % RENEW_EVERY === 0 && this.#login.hasUser) {
      this.#login.renew(metadata);
      this.#reopen();
    } else this.#addLater(watching);
  }

  /** By itself: the others go on. */
  #addLater(watching: Watching): void {
    const pauseMs = Math.min(REFUSED_MS.first * 2 ** watching.refusals, REFUSED_MS.most);
    watching.timer = setTimeout(() => this.#add(watching), pauseMs).unref();
  }
}

function refusal(address: string, reason: string): EtcdError {
  const details = reason.replace(/^rpc error: code = \w+ desc = /, "");
  const code = /permission denied/.test(details) ? Code.PERMISSION_DENIED : Code.UNKNOWN;
  return explain(address, { code, details: details || "the watch was cancelled" });
}
