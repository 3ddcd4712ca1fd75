import type { Event, EventOf, History, OpId } from "./history.js";
import {
  type Access,
  type Belief,
  type Granted,
  isGranted,
  listIn,
  type Operation,
  type Run,
  type TicketProof,
} from "./operations.js";
import { firstIndex, type Span, Spans } from "./spans.js";

/** Groups a history for the rules. `startsMs`: the moment from which times are shown. Default: the first event. */
export function fold(history: History, startsMs?: number): Run {
  const events = inOrder(history);
  const folding = new Folding();
  for (const event of events) folding.add(event);
  return folding.end(events, startsMs ?? events[0]?.atMs ?? 0);
}

/** The run as far as its events have been added, in the order of their times. */
class Folding {
  readonly #operations = new Map<OpId, Operation>();
  readonly #names = new Map<string, Operation[]>();
  readonly #accesses = new Map<string, Access[]>();
  readonly #living = new Map<string, Operation[]>();
  readonly #resizes = new Map<string, EventOf<"resized">[]>();
  readonly #groups = new Map<string, Operation[]>();
  readonly #looks: EventOf<"seen">[] = [];
  readonly #clockSets: EventOf<"clock-set">[] = [];
  readonly #pauses = new Pauses();
  readonly #faults = new Faults();

  add(event: Event): void {
    switch (event.kind) {
      case "asked":
        if (!this.#operations.has(event.op)) this.#begin(event);
        break;
      case "entered":
      case "wrote":
        listIn(this.#accesses, event.resource).push(event);
        break;
      case "seen":
        this.#looks.push(event);
        break;
      case "paused":
        this.#pauses.begin(event);
        break;
      case "resumed":
        this.#pauses.end(keyOf(event), event.atMs);
        break;
      case "killed":
        this.#kill(event);
        break;
      case "injected":
        this.#faults.inject(event);
        break;
      case "healed":
        this.#faults.heal(event);
        break;
      case "resized":
        listIn(this.#resizes, event.name).push(event);
        break;
      case "clock-set":
        this.#clockSets.push(event);
        break;
      case "counted":
      case "left":
      case "wrote-unfenced":
        break;
      default: {
        const op = this.#operations.get(event.op);
        if (op !== undefined) note(op, event);
      }
    }
  }

  end(events: History, startMs: number): Run {
    this.#noteLooks();
    this.#pauses.endAll();
    this.#faults.endAll();
    for (const op of this.#operations.values()) {
      if (!isGranted(op)) continue;
      const revoked = op.revocations.find(({ token }) => token === op.granted.token);
      if (revoked !== undefined) op.revoked = revoked;
      op.beliefs = beliefsOf(op);
    }
    for (const list of this.#accesses.values()) list.sort((a, b) => a.step - b.step);
    return {
      events,
      operations: this.#operations,
      names: this.#names,
      accesses: this.#accesses,
      faults: new Spans(this.#faults.all),
      storeFaultsOf: this.#faults.ofStore(),
      heals: this.#faults.heals,
      clockSets: this.#clockSets,
      pausesOf: spansByClient(this.#pauses.all),
      frozenOf: spansByClient(this.#pauses.frozen),
      after: (atMs) => events[firstIndex(events, (event) => event.atMs > atMs)],
      at: (atMs) => ago(atMs - startMs),
    };
  }

  #begin(asked: EventOf<"asked">): void {
    const group = asked.together === undefined ? [] : listIn(this.#groups, asked.together);
    const op: Operation = {
      asked,
      ticketProofs: [],
      renewals: [],
      kept: [],
      revocations: [],
      resizes: listIn(this.#resizes, asked.name),
      group,
      course: [],
      beliefs: [],
    };
    group.push(op);
    this.#operations.set(asked.op, op);
    listIn(this.#living, asked.client).push(op);
    if (asked.within === undefined) listIn(this.#names, asked.name).push(op);
  }

  #kill(event: EventOf<"killed">): void {
    for (const stalled of [false, true]) this.#pauses.end(keyOf({ ...event, stalled }), event.atMs);
    for (const op of this.#living.get(event.client) ?? []) op.killed = event;
    // A client that takes this label later is another client.
    this.#living.delete(event.client);
  }

  /** A ticket that was seen in the store was queued by then. */
  #noteLooks(): void {
    for (const seen of this.#looks) {
      for (const id of seen.waiters) {
        const op = this.#operations.get(id);
        if (op !== undefined && !(op.queued && op.queued.atMs <= seen.atMs)) op.queued = seen;
      }
    }
  }
}

/** Times in which clients stood still. A client may be paused and its event loop be blocked at the same time. */
class Pauses {
  readonly all = new Map<string, Span[]>();
  /** Those in which the client's clocks stood still too. */
  readonly frozen = new Map<string, Span[]>();
  readonly #open = new Map<string, EventOf<"paused">>();

  begin(event: EventOf<"paused">): void {
    const key = keyOf(event);
    if (!this.#open.has(key)) this.#open.set(key, event);
  }

  end(key: string, toMs: number): void {
    const since = this.#open.get(key);
    if (since === undefined) return;
    this.#open.delete(key);
    const span = { fromMs: since.atMs, toMs };
    listIn(this.all, since.client).push(span);
    if (since.frozen) listIn(this.frozen, since.client).push(span);
  }

  endAll(): void {
    for (const key of [...this.#open.keys()]) this.end(key, Number.POSITIVE_INFINITY);
  }
}

const keyOf = ({ client, stalled = false }: { client: string; stalled?: boolean }): string =>
  `${stalled} ${client}`;

/** Times in which faults were active. */
class Faults {
  readonly all: Span[] = [];
  /** Those that may have cost the store data or its clock; with a name, data of that name alone. */
  readonly #ofStore: (Span & { readonly name?: string | undefined })[] = [];
  /** Heals after which no other fault was active. */
  readonly heals: EventOf<"healed">[] = [];
  readonly #active = new Map<string, EventOf<"injected">>();

  inject(event: EventOf<"injected">): void {
    if (!this.#active.has(event.fault)) this.#active.set(event.fault, event);
  }

  heal(event: EventOf<"healed">): void {
    const injected = this.#active.get(event.fault);
    if (injected !== undefined) this.#end(injected, event.atMs);
    if (this.#active.size === 0) this.heals.push(event);
  }

  endAll(): void {
    for (const injected of [...this.#active.values()]) {
      this.#end(injected, Number.POSITIVE_INFINITY);
    }
  }

  ofStore(): (name: string) => Spans {
    const spansOf = new Map<string, Spans>();
    return (name) => {
      const known = spansOf.get(name);
      if (known !== undefined) return known;
      const spans = new Spans(
        this.#ofStore.filter((one) => one.name === undefined || one.name === name),
      );
      spansOf.set(name, spans);
      return spans;
    };
  }

  #end({ fault, atMs: fromMs, sparesStore, name }: EventOf<"injected">, toMs: number): void {
    this.#active.delete(fault);
    this.all.push({ fromMs, toMs });
    if (sparesStore !== true) this.#ofStore.push({ fromMs, toMs, name });
  }
}

function spansByClient(all: ReadonlyMap<string, Span[]>): (client: string) => Spans {
  const never = new Spans([]);
  const spansOf = new Map([...all].map(([client, spans]) => [client, new Spans(spans)]));
  return (client) => spansOf.get(client) ?? never;
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

/** A time since the start, as text for people: `+1.204 s`. */
function ago(ms: number): string {
  const text = (Math.abs(ms) / 1_000).toFixed(3);
  return `${ms < 0 && Number(text) > 0 ? "-" : "+"}${text} s`;
}
