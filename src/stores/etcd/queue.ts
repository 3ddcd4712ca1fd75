import { UnsupportedError } from "../../core/errors.js";
import type { Position } from "../../core/store.js";
import type { Keys } from "./keys.js";
import type { KeyValue, WatchEvent } from "./rpc/messages.js";

/** Raised when an older Holdfast could misread what is kept of a name. */
const FORMAT = 1;

/** What a claim's key says. */
export interface Claimed {
  readonly permits: number;
  readonly limit: number;
  readonly holder: string;
  readonly ttlMs: number;
  readonly atLeastMs: number;
  /** For people: the claimant's own clock, when it asked. */
  readonly atMs: number;
  /** It was let in under another limit, and stays. */
  readonly held?: boolean;
}

export const written = (claimed: Claimed): string => JSON.stringify({ format: FORMAT, ...claimed });

export function readValue<T>(value: string): T {
  let read: { format?: unknown } | null = null;
  try {
    read = JSON.parse(value) as { format?: unknown } | null;
  } catch {
    // Not ours.
  }
  if (read?.format === FORMAT) return read as T;
  if (typeof read?.format === "number") {
    throw new UnsupportedError(
      `a name is kept in format ${read.format}, which this version of Holdfast does not know: use the version that wrote it`,
    );
  }
  throw notOurs();
}

export const notOurs = (): UnsupportedError =>
  new UnsupportedError(
    "a key of Holdfast's prefix holds something that is not Holdfast's: delete it, or use another prefix",
  );

const NUMBERS = ["permits", "limit", "ttlMs", "atLeastMs", "atMs"] as const;

/** A client that may write the prefix may write anything: text among the numbers would reach terminals as it is. */
function readClaimed(value: string): Claimed & { at?: string } {
  const read = readValue<Claimed & { at?: string }>(value);
  const { holder, at } = read;
  const isOurs =
    NUMBERS.every((field) => Number.isFinite(read[field])) &&
    typeof holder === "string" &&
    (at === undefined || isNumeral(at));
  if (isOurs) return read;
  throw notOurs();
}

/** A whole number as it is written in JSON where it may be larger than a number can be. */
export const isNumeral = (value: unknown): value is string =>
  typeof value === "string" && /^\d{1,20}$/.test(value);

/** What is written of a claim, again. */
export const claimedOf = (one: Claimed): Claimed => {
  const { permits, limit, holder, ttlMs, atLeastMs, atMs, held } = one;
  const claimed = { permits, limit, holder, ttlMs, atLeastMs, atMs };
  return held === undefined ? claimed : { ...claimed, held };
};

export const withFormat = (value: object): string => JSON.stringify({ format: FORMAT, ...value });

/** A claim on a name, where it stands. */
export interface Place extends Claimed {
  readonly grantId: string;
  /** When it was created: its place in the queue, and its token. */
  readonly token: bigint;
  readonly modRevision: bigint;
  readonly lease: bigint;
  /** The lease has ended; only `atLeast` closes the name. */
  readonly ended: boolean;
  /** What closes the name by `atLeast`, if it was granted. */
  readonly closure: bigint | null;
}

/**
 * One name at one revision: its claims in the order of their creation. Who holds it follows from
 * that alone: all from the front who fit together. As nobody passes another, a claim that was let in
 * stays in until it goes, and the token is in the order of the grants.
 */
export class Queue {
  readonly #keys: Keys;
  #places = new Map<string, Place>();
  revision = 0n;

  constructor(keys: Keys, kvs: readonly KeyValue[] = [], revision = 0n) {
    this.#keys = keys;
    this.reset(kvs, revision);
  }

  get size(): number {
    return this.#places.size;
  }

  /** As read at a revision; nothing if it is older than what is known, or can't be read. */
  reset(kvs: readonly KeyValue[], revision: bigint): void {
    if (revision < this.revision) return;
    const places = new Map<string, Place>();
    for (const kv of [...kvs].sort(byCreation)) this.#put(kv, places);
    // What closes a name may have been created long after its claim.
    const inOrder = [...places.values()].sort((one, two) => (one.token < two.token ? -1 : 1));
    this.#places = new Map(inOrder.map((place) => [place.grantId, place]));
    this.revision = revision;
  }

  /** Events come in the order of revisions; those that are known are passed over. */
  apply(events: readonly WatchEvent[], revision: bigint): void {
    for (const { type, kv } of events) {
      if (kv.modRevision <= this.revision) continue;
      if (type === "PUT") this.#put(kv, this.#places);
      else this.#delete(kv.key);
    }
    if (revision > this.revision) this.revision = revision;
  }

  get(grantId: string): Place | undefined {
    return this.#places.get(grantId);
  }

  get limit(): number | null {
    for (const { limit } of this.#places.values()) return limit;
    return null;
  }

  /** The one that will be there longest, as a rule. */
  get last(): Place | undefined {
    const places = [...this.#places.values()];
    return places.findLast(({ ended }) => !ended) ?? places.at(-1);
  }

  holders(): Place[] {
    const holders: Place[] = [];
    let inUse = 0;
    for (const place of this.#places.values()) {
      if (!this.#isIn(place, inUse)) break;
      inUse += place.permits;
      holders.push(place);
    }
    return holders;
  }

  waiters(): Place[] {
    return [...this.#places.values()].slice(this.holders().length);
  }

  fits(permits: number): boolean {
    const holders = this.holders();
    const inUse = holders.reduce((sum, one) => sum + one.permits, 0);
    const limit = this.limit ?? Number.POSITIVE_INFINITY;
    return holders.length === this.size && inUse + permits <= limit;
  }

  holds(grantId: string): boolean {
    return this.holders().some((one) => one.grantId === grantId && !one.ended);
  }

  /** By somebody who lives. */
  get isHeld(): boolean {
    return this.holders().some(({ ended }) => !ended);
  }

  /** The lowest token that holds the name. */
  floor(): bigint {
    return this.holders().find(({ ended }) => !ended)!.token;
  }

  /** As somebody at the end, or as the one with this ticket. */
  position(grantId?: string): Position {
    const holders = this.holders();
    const waiters = this.waiters();
    const at = waiters.findIndex((one) => one.grantId === grantId);
    const freeInMs = holders.map(({ ended, ttlMs, atLeastMs }) => (ended ? atLeastMs : ttlMs));
    return {
      ahead: at === -1 ? waiters.length : at,
      freeInMs: Math.min(...freeInMs, Number.POSITIVE_INFINITY),
      holder: holders[0]?.holder ?? null,
    };
  }

  #isIn({ held, closure, permits, limit }: Place, inUse: number): boolean {
    return held === true || closure !== null || inUse + permits <= limit;
  }

  #put(kv: KeyValue, places: Map<string, Place>): void {
    const { grantId, isClosure } = this.#keys.read(kv.key);
    const there = places.get(grantId);
    const { createRevision: token, modRevision, lease } = kv;
    if (!isClosure) {
      const closure = there?.closure ?? null;
      const claimed = readClaimed(kv.value);
      places.set(grantId, {
        ...claimed,
        grantId,
        token,
        modRevision,
        lease,
        ended: false,
        closure,
      });
    } else if (there !== undefined && !there.ended) {
      places.set(grantId, { ...there, closure: lease });
    } else {
      // The claim is gone. It stands where the claim stood; a resize may have changed it.
      const { at, ...claimed } = readClaimed(kv.value);
      const place = at === undefined ? token : BigInt(at);
      places.set(grantId, {
        ...claimed,
        grantId,
        token: place,
        modRevision,
        lease,
        ended: true,
        closure: lease,
      });
    }
  }

  #delete(key: string): void {
    const { grantId, isClosure } = this.#keys.read(key);
    const there = this.#places.get(grantId);
    if (there === undefined) return;
    const closure = isClosure ? null : there.closure;
    const ended = there.ended || !isClosure;
    if (ended && closure === null) this.#places.delete(grantId);
    else this.#places.set(grantId, { ...there, ended, closure });
  }
}

/** Of one revision the claim comes before what closes it: the keys are in that order. */
function byCreation(one: KeyValue, two: KeyValue): number {
  if (one.createRevision !== two.createRevision) {
    return one.createRevision < two.createRevision ? -1 : 1;
  }
  return one.key < two.key ? -1 : 1;
}
