import { LOCK_LIMIT } from "../../core/store.js";
import type { Event, EventOf, History, OpId } from "./history.js";
import type { Span, Spans } from "./spans.js";

/** An interval in which a client believes that it holds the name; `toMs` itself is not part of it. */
export interface Belief extends Span {
  readonly op: Operation;
  /** The client's own deadline; `toMs` is earlier if the client released, was notified of a loss, or died. */
  readonly deadlineMs: number;
  /** The event that set the deadline. */
  readonly provedBy: EventOf<"granted" | "renewed">;
  /** The belief excludes others until then: a forced release admits them before the holder knows. */
  readonly excludesUntilMs: number;
}

export type TicketProof = EventOf<"queued"> & { readonly sentAtMs: number };

/** One acquire and its lease. For fields of one event, the first event of that kind counts. */
export interface Operation {
  readonly asked: EventOf<"asked">;
  queued?: EventOf<"queued" | "seen">;
  /** The replies by which the store promised to keep the ticket, in order; empty if they are not reported. */
  readonly ticketProofs: TicketProof[];
  aborting?: EventOf<"aborting">;
  notGranted?: EventOf<"not-granted">;
  made?: EventOf<"made">;
  granted?: EventOf<"granted">;
  /** A grant after the acquire had ended. */
  grantedAgain?: EventOf<"granted">;
  readonly renewals: EventOf<"renewed">[];
  /** How long the store kept the grant, where the store is observed. */
  readonly kept: EventOf<"kept">[];
  /**
   * Forced releases of all grants of this op: a ticket may be granted, revoked, and queued again
   * before its client learns of it.
   */
  readonly revocations: EventOf<"revoked">[];
  /** The forced release of the lease itself. */
  revoked?: EventOf<"revoked">;
  /** Resizes of the op's name. */
  readonly resizes: readonly EventOf<"resized">[];
  /** All ops of the same multi-lock, this one included. */
  readonly group: readonly Operation[];
  /** The client's reports on its lease, in the order in which it made them. */
  readonly course: EventOf<"renewed" | "looked" | "lost" | "releasing">[];
  lost?: EventOf<"lost">;
  releasing?: EventOf<"releasing">;
  released?: EventOf<"released">;
  /** The death of its client, at whatever point of the op. */
  killed?: EventOf<"killed">;
  /** One belief, unless the lease was renewed after its deadline. */
  beliefs: readonly Belief[];
}

/** An operation that was granted. */
export type Granted = Operation & { readonly granted: EventOf<"granted"> };

export type Access = EventOf<"entered" | "wrote">;

/** A history grouped by operations, names and resources, for the rules. */
export interface Run {
  readonly events: History;
  readonly operations: ReadonlyMap<OpId, Operation>;
  /** Operations by name, in the order of their requests; without re-entries. */
  readonly names: ReadonlyMap<string, readonly Operation[]>;
  /** Accesses by resource, in the resource's own order. */
  readonly accesses: ReadonlyMap<string, readonly Access[]>;
  readonly faults: Spans;
  /** Those faults that may have cost the store its clock, or data of this name. */
  storeFaultsOf(name: string): Spans;
  /** Heals after which no other fault was active. */
  readonly heals: readonly EventOf<"healed">[];
  readonly clockSets: readonly EventOf<"clock-set">[];
  pausesOf(client: string): Spans;
  /** The pauses of a client in which its clocks stood still. */
  frozenOf(client: string): Spans;
  /** The first event after the moment: it shows that the history goes on. */
  after(atMs: number): Event | undefined;
  /** A time as text for people. */
  at(atMs: number): string;
}

/** Whether the op claims all permits. After a resize, all permits of a semaphore may be more than it claimed. */
export const isExclusive = ({ asked, resizes }: Operation): boolean =>
  asked.permits === asked.limit && (asked.limit === LOCK_LIMIT || resizes.length === 0);
export const isGranted = (op: Operation): op is Granted => op.granted !== undefined;
/** The client and the op, for messages. */
export const who = ({ asked }: Operation): string => `${asked.client} (${asked.op})`;

/** Whether the two fit within the limit of their name together. */
export function fitTogether({ asked }: Operation, other: Operation): boolean {
  const limits = other.resizes.map(({ limit }) => limit);
  return asked.permits + other.asked.permits <= Math.max(other.asked.limit, ...limits);
}

/** The store's own event for the grant that the client received, where the store is observed. */
export const madeFor = ({ made, granted }: Operation): EventOf<"made"> | undefined =>
  made !== undefined && made.token === granted?.token ? made : undefined;

/** The longest time for which the store may keep the op's grant. */
export const longestTtlMs = ({ asked }: Operation): number => asked.longestTtlMs ?? asked.ttlMs;

/** The event that ended the wait, if there is one. */
export const endOfWait = (
  op: Operation,
): EventOf<"granted"> | EventOf<"not-granted"> | EventOf<"killed"> | undefined =>
  op.granted ?? op.notGranted ?? op.killed;

/** The events that show that the client believed at that moment. */
export function proof({ asked, granted, renewals }: Granted, atMs: number): Event[] {
  if (granted.untilMs > atMs) return [asked, granted];
  const renewed = renewals.findLast((one) => one.atMs <= atMs);
  return renewed === undefined ? [asked, granted] : [asked, granted, renewed];
}

export function listIn<K, V>(map: Map<K, V[]>, key: K): V[] {
  let list = map.get(key);
  if (list === undefined) {
    list = [];
    map.set(key, list);
  }
  return list;
}
