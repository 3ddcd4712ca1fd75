import { LOCK_LIMIT } from "../../core/store.js";
import type { Event, EventOf, History, OpId } from "./history.js";
import { firstIndex, type Span, Spans } from "./spans.js";

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
  /** Those faults that may have cost the store data or its clock. */
  readonly storeFaults: Spans;
  /** Heals after which no other fault was active. */
  readonly heals: readonly EventOf<"healed">[];
  readonly clockSets: readonly EventOf<"clock-set">[];
  pausesOf(client: string): Spans;
  /** Those pauses of a client in which its clocks stood still. */
  frozenOf(client: string): Spans;
  /** The first event after that moment, which shows that time went on. */
  after(atMs: number): Event | undefined;
  /** A time as text for people. */
  at(atMs: number): string;
}

/** Whether the op claims all permits; false for a semaphore that was resized, where these may be fewer than all. */
export const isExclusive = ({ asked, resizes }: Operation): boolean =>
  asked.permits === asked.limit && (asked.limit === LOCK_LIMIT || resizes.length === 0);
export const isGranted = (op: Operation): op is Granted => op.granted !== undefined;
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

export function fold(history: History, startsMs?: number): Run {
  const events = inOrder(history);
  const operations = new Map<OpId, Operation>();
  const names = new Map<string, Operation[]>();
  const accesses = new Map<string, Access[]>();
  const living = new Map<string, Operation[]>();
  const pauses = new Map<string, Span[]>();
  const frozen = new Map<string, Span[]>();
  const faults: Span[] = [];
  const storeFaults: Span[] = [];
  const heals: EventOf<"healed">[] = [];
  const looks: EventOf<"seen">[] = [];
  const paused = new Map<string, EventOf<"paused">>();
  const active = new Map<string, EventOf<"injected">>();
  const resizes = new Map<string, EventOf<"resized">[]>();
  const groups = new Map<string, Operation[]>();
  const clockSets: EventOf<"clock-set">[] = [];

  const keyOf = ({ client, stalled = false }: { client: string; stalled?: boolean }): string =>
    `${stalled} ${client}`;
  const goOn = (key: string, toMs: number): void => {
    const since = paused.get(key);
    if (since === undefined) return;
    paused.delete(key);
    const { client } = since;
    listIn(pauses, client).push({ fromMs: since.atMs, toMs });
    if (since.frozen) listIn(frozen, client).push({ fromMs: since.atMs, toMs });
  };
  const heal = ({ fault, atMs: fromMs, sparesStore }: EventOf<"injected">, toMs: number): void => {
    active.delete(fault);
    faults.push({ fromMs, toMs });
    if (sparesStore !== true) storeFaults.push({ fromMs, toMs });
  };

  for (const event of events) {
    switch (event.kind) {
      case "asked": {
        if (operations.has(event.op)) break;
        const group = event.together === undefined ? [] : listIn(groups, event.together);
        const op: Operation = {
          asked: event,
          ticketProofs: [],
          renewals: [],
          kept: [],
          revocations: [],
          resizes: listIn(resizes, event.name),
          group,
          course: [],
          beliefs: [],
        };
        group.push(op);
        operations.set(event.op, op);
        listIn(living, event.client).push(op);
        if (event.within === undefined) listIn(names, event.name).push(op);
        break;
      }
      case "entered":
      case "wrote":
        listIn(accesses, event.resource).push(event);
        break;
      case "seen":
        looks.push(event);
        break;
      case "paused":
        if (!paused.has(keyOf(event))) paused.set(keyOf(event), event);
        break;
      case "resumed":
        goOn(keyOf(event), event.atMs);
        break;
      case "killed":
        for (const stalled of [false, true]) goOn(keyOf({ ...event, stalled }), event.atMs);
        for (const op of living.get(event.client) ?? []) op.killed = event;
        // A client that takes this label later is another client.
        living.delete(event.client);
        break;
      case "injected":
        if (!active.has(event.fault)) active.set(event.fault, event);
        break;
      case "healed": {
        const injected = active.get(event.fault);
        if (injected !== undefined) heal(injected, event.atMs);
        if (active.size === 0) heals.push(event);
        break;
      }
      case "resized":
        listIn(resizes, event.name).push(event);
        break;
      case "clock-set":
        clockSets.push(event);
        break;
      case "counted":
      case "left":
      case "wrote-unfenced":
        break;
      default: {
        const op = operations.get(event.op);
        if (op !== undefined) note(op, event);
      }
    }
  }
  for (const seen of looks) {
    for (const id of seen.waiters) {
      const op = operations.get(id);
      if (op !== undefined && !(op.queued && op.queued.atMs <= seen.atMs)) op.queued = seen;
    }
  }
  for (const key of [...paused.keys()]) goOn(key, Number.POSITIVE_INFINITY);
  for (const injected of [...active.values()]) heal(injected, Number.POSITIVE_INFINITY);
  for (const op of operations.values()) {
    if (!isGranted(op)) continue;
    const revoked = op.revocations.find(({ token }) => token === op.granted.token);
    if (revoked !== undefined) op.revoked = revoked;
    op.beliefs = beliefsOf(op);
  }
  for (const list of accesses.values()) list.sort((a, b) => a.step - b.step);

  const startMs = startsMs ?? events[0]?.atMs ?? 0;
  const never = new Spans([]);
  const byClient = (all: ReadonlyMap<string, Span[]>): ((client: string) => Spans) => {
    const spansOf = new Map([...all].map(([client, spans]) => [client, new Spans(spans)]));
    return (client) => spansOf.get(client) ?? never;
  };
  return {
    events,
    operations,
    names,
    accesses,
    faults: new Spans(faults),
    storeFaults: new Spans(storeFaults),
    heals,
    clockSets,
    pausesOf: byClient(pauses),
    frozenOf: byClient(frozen),
    after: (atMs) => events[firstIndex(events, (event) => event.atMs > atMs)],
    at: (atMs) => ago(atMs - startMs),
  };
}

function note(
  op: Operation,
  event: Exclude<EventOf<OfOperation>, EventOf<"asked" | "entered" | "wrote" | "wrote-unfenced">>,
): void {
  switch (event.kind) {
    case "queued":
      op.queued ??= event;
      if (isTicketProof(event)) op.ticketProofs.push(event);
      break;
    case "aborting":
      op.aborting ??= event;
      break;
    case "not-granted":
      op.notGranted ??= event;
      break;
    case "made":
      op.made ??= event;
      break;
    case "kept":
      op.kept.push(event);
      break;
    case "revoked":
      op.revocations.push(event);
      break;
    case "granted":
      if (op.granted === undefined && op.notGranted === undefined) op.granted = event;
      else op.grantedAgain ??= event;
      break;
    case "renewed":
      op.renewals.push(event);
      op.course.push(event);
      break;
    case "looked":
      op.course.push(event);
      break;
    case "lost":
      op.lost ??= event;
      op.course.push(event);
      break;
    case "releasing":
      op.releasing ??= event;
      op.course.push(event);
      break;
    case "released":
      op.released ??= event;
      break;
  }
}

const isTicketProof = (event: EventOf<"queued">): event is TicketProof =>
  event.sentAtMs !== undefined;

type OfOperation = Extract<Event, { op: OpId }>["kind"];

function beliefsOf(op: Granted): Belief[] {
  const { granted, renewals, releasing, lost, killed } = op;
  const endMs = Math.min(
    releasing?.atMs ?? Number.POSITIVE_INFINITY,
    lost?.atMs ?? Number.POSITIVE_INFINITY,
    killed?.atMs ?? Number.POSITIVE_INFINITY,
  );
  const beliefs: Belief[] = [];
  let fromMs = granted.atMs;
  let provedBy: Belief["provedBy"] = granted;
  const close = (): void => {
    const deadlineMs = provedBy.untilMs;
    const toMs = Math.min(deadlineMs, endMs);
    const excludesUntilMs = Math.min(toMs, op.revoked?.sinceMs ?? toMs);
    beliefs.push({ op, fromMs, toMs, deadlineMs, provedBy, excludesUntilMs });
  };
  for (const renewed of renewals) {
    if (renewed.atMs >= endMs) break;
    if (renewed.atMs >= provedBy.untilMs) {
      close();
      fromMs = renewed.atMs;
    }
    provedBy = renewed;
  }
  close();
  return beliefs;
}

/** Sorts by time: reports of several processes may be mixed. The order of one process is kept. */
function inOrder(history: History): History {
  for (let i = 1; i < history.length; i++) {
    if (history[i - 1]!.atMs > history[i]!.atMs) {
      return history.toSorted((a, b) => a.atMs - b.atMs);
    }
  }
  return history;
}

export function listIn<K, V>(map: Map<K, V[]>, key: K): V[] {
  let list = map.get(key);
  if (list === undefined) {
    list = [];
    map.set(key, list);
  }
  return list;
}

/** A time since the start, as text for people: `+1.204 s`. */
function ago(ms: number): string {
  const text = (Math.abs(ms) / 1_000).toFixed(3);
  return `${ms < 0 && Number(text) > 0 ? "-" : "+"}${text} s`;
}
