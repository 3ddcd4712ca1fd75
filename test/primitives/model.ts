/**
 * The promises of the primitives, stated as simply as possible: names with a limit, holders and one
 * queue each; calls that go from name to name. Written from the contract, not from a store's code.
 * Time is a number, and every expiry is noticed at its moment.
 */

/** The limit of a name that is a lock. */
const LOCK = 2 ** 31 - 1;

export interface Call {
  readonly label: string;
  readonly client: number;
  readonly kind: "acquire" | "try" | "all";
  /** Sorted, without duplicates. */
  readonly names: readonly string[];
  readonly permits: number;
  readonly limit: number;
  readonly ttlMs: number;
  readonly atLeastMs: number;
  readonly waitMs: number;
}

export type Outcome =
  | { readonly kind: "pending" | "granted" | "busy" | "aborted" }
  | { readonly kind: "ACQUIRE_TIMEOUT"; readonly name: string; readonly waitMs: number }
  | { readonly kind: "INVALID_ARGUMENT" };

/** A claim on one name: in the queue until it is granted. */
interface Entry {
  readonly call: Call;
  readonly name: string;
  sinceMs: number;
  /** A client that is alive renews it. */
  expiresAtMs: number;
  closedUntilMs: number;
  released: boolean;
}

interface Place {
  limit: number | null;
  holders: Entry[];
  queue: Entry[];
  revoked: string[];
  readonly log: Granted[];
}

/** `floor`: the label of the oldest grant that held the name at that moment. */
export interface Granted {
  readonly label: string;
  readonly floor: string;
}

interface Progress {
  readonly call: Call;
  readonly startedAtMs: number;
  outcome: Outcome;
  /** How many of the names the call holds. A call in one step gets all at once. */
  held: number;
  /** The ticket was dropped, and the client does not know yet. */
  dropped: boolean;
}

/** One name, as inspect shows it. */
export interface NameState {
  readonly limit: number | null;
  readonly holders: readonly {
    label: string;
    permits: number;
    heldMs: number;
    closed: boolean;
  }[];
  readonly waiters: readonly { label: string; permits: number; waitingMs: number }[];
  readonly revoked: readonly string[];
}

export class Model {
  nowMs: number;
  readonly #places: Map<string, Place>;
  readonly #calls = new Map<string, Progress>();
  readonly #dead = new Set<number>();
  /** Steps that follow in the same moment, in order; those in `#last` when nothing else follows. */
  readonly #next: (() => void)[] = [];
  readonly #last: (() => void)[] = [];

  constructor(names: readonly string[], nowMs: number) {
    this.nowMs = nowMs;
    this.#places = new Map(
      names.map((name) => [name, { limit: null, holders: [], queue: [], revoked: [], log: [] }]),
    );
  }

  // Calls of clients.

  begin(call: Call): void {
    const startedAtMs = this.nowMs;
    const progress: Progress = {
      call,
      startedAtMs,
      outcome: { kind: "pending" },
      held: 0,
      dropped: false,
    };
    this.#calls.set(call.label, progress);
    if (call.names.length === 1) this.#step(progress);
    else this.#allAtOnce(progress);
    this.#drain();
  }

  release(label: string): "released" | "lost" {
    const { call } = this.#calls.get(label)!;
    const still = call.names.map((name) => this.#giveBack(label, name, false));
    this.#drain();
    return still.every(Boolean) ? "released" : "lost";
  }

  abort(label: string): void {
    this.#fail(this.#calls.get(label)!, { kind: "aborted" }, this.#next);
    this.#drain();
  }

  /** The client is never heard of again. `receivedAtMs`: when the store last received that claim. */
  crash(client: number, receivedAtMs: (label: string, name: string) => number): void {
    this.#dead.add(client);
    this.#runOut((one) => one.call.client === client, receivedAtMs);
  }

  forceRelease(name: string): readonly string[] {
    const place = this.#places.get(name)!;
    const revoked = place.holders.splice(0).map(({ call }) => call.label);
    place.revoked.push(...revoked);
    this.#settle(name);
    this.#drain();
    return revoked;
  }

  resize(name: string, limit: number): "done" | "a lock" {
    const place = this.#places.get(name)!;
    if (place.limit === LOCK) return "a lock";
    if (place.limit === null) return "done";
    place.limit = limit;
    for (const { call } of place.queue.filter((one) => one.call.permits > limit)) {
      this.#calls.get(call.label)!.dropped = true;
    }
    place.queue = place.queue.filter((one) => one.call.permits <= limit);
    this.#settle(name);
    this.#drain();
    return "done";
  }

  // Replies that reach clients: the run says when, the model says what follows.

  /** A client sends its claim again while it waits. */
  retry(label: string): void {
    const progress = this.#calls.get(label)!;
    if (!progress.dropped) return;
    progress.dropped = false;
    this.#step(progress);
    this.#drain();
  }

  /** A client learns that it no longer holds the name. `receivedAtMs`: when the store last received that claim. */
  learnOfLoss(
    label: string,
    name: string,
    receivedAtMs: (label: string, name: string) => number,
  ): void {
    const progress = this.#calls.get(label)!;
    const { call, held, outcome } = progress;
    if (outcome.kind !== "pending") this.#runOut((one) => one.call.label === label, receivedAtMs);
    if (outcome.kind !== "pending" || call.names.indexOf(name) >= held) return;
    // Nobody has worked under its names yet: the call starts again with all of them.
    this.#dropTicket(progress);
    this.#next.push(() => {
      this.#giveUp(progress);
      progress.held = 0;
      progress.dropped = false;
      this.#next.push(() => {
        if (progress.outcome.kind === "pending") this.#step(progress);
      });
    });
    this.#drain();
  }

  // Time.

  /** The next thing that happens by itself. `tied`: a wait ends in the moment in which a name comes free. */
  next(): { atMs: number; tied: boolean } {
    const entries = [...this.#places.values()].flatMap(({ holders, queue }) => [
      ...holders,
      ...queue,
    ]);
    const endMs = Math.min(...entries.map(endOf));
    const deadlineMs = Math.min(...this.#waiting().map(deadlineOf));
    return {
      atMs: Math.min(endMs, deadlineMs),
      tied: endMs === deadlineMs && endMs < Number.POSITIVE_INFINITY,
    };
  }

  passTo(untilMs: number): void {
    for (let next = this.next().atMs; next <= untilMs; next = this.next().atMs) {
      this.nowMs = next;
      for (const name of this.#places.keys()) this.#settle(name);
      for (const one of this.#waiting()) {
        if (deadlineOf(one) > next) continue;
        const { call, held } = one;
        const waitMs = call.waitMs;
        // The error comes only when the store has dropped the ticket.
        this.#fail(one, { kind: "ACQUIRE_TIMEOUT", name: call.names[held]!, waitMs }, this.#last);
      }
      this.#drain();
    }
    this.nowMs = untilMs;
  }

  // Results.

  outcomes(): ReadonlyMap<string, Outcome> {
    return new Map([...this.#calls].map(([label, { outcome }]) => [label, outcome]));
  }

  /** True while all names of the call are held. */
  holds(label: string): boolean {
    const held = [...this.#places.values()]
      .flatMap(({ holders }) => holders)
      .filter((one) => one.call.label === label && this.#holds(one));
    return held.length === this.#calls.get(label)!.call.names.length;
  }

  /** Every grant of the name that was ever made, in order. */
  grants(name: string): readonly Granted[] {
    return this.#places.get(name)!.log;
  }

  inspect(name: string): NameState {
    const { limit, holders, queue, revoked } = this.#places.get(name)!;
    return {
      limit,
      holders: holders.map((one) => ({
        label: one.call.label,
        permits: one.call.permits,
        heldMs: this.nowMs - one.sinceMs,
        closed: !this.#holds(one),
      })),
      waiters: queue.map((one) => ({
        label: one.call.label,
        permits: one.call.permits,
        waitingMs: this.nowMs - one.sinceMs,
      })),
      revoked,
    };
  }

  // The rules.

  /** Nobody renews these any more. */
  #runOut(
    which: (one: Entry) => boolean,
    receivedAtMs: (label: string, name: string) => number,
  ): void {
    for (const { holders, queue } of this.#places.values()) {
      for (const one of [...holders, ...queue]) {
        if (!which(one) || one.released) continue;
        one.expiresAtMs = receivedAtMs(one.call.label, one.name) + one.call.ttlMs;
      }
    }
  }

  /** Drops expired entries, then grants from the front of the queue while permits suffice. */
  #settle(name: string): void {
    const place = this.#places.get(name)!;
    const there = (one: Entry): boolean => endOf(one) > this.nowMs;
    place.holders = place.holders.filter(there);
    place.queue = place.queue.filter(there);
    for (let first = place.queue[0]; first !== undefined; first = place.queue[0]) {
      if (!fits(place, first.call)) break;
      place.queue.shift();
      this.#grant(place, first);
      const { call } = first;
      if (!this.#dead.has(call.client)) this.#next.push(() => this.#goOn(call.label));
    }
    if (place.holders.length + place.queue.length === 0) place.limit = null;
  }

  #grant(place: Place, entry: Entry): void {
    const first = place.holders.find((one) => this.#holds(one)) ?? entry;
    place.log.push({ label: entry.call.label, floor: first.call.label });
    entry.sinceMs = this.nowMs;
    if (entry.call.atLeastMs > 0) entry.closedUntilMs = this.nowMs + entry.call.atLeastMs;
    place.holders.push(entry);
  }

  #claim(call: Call, name: string, queue: boolean): "granted" | "queued" | "busy" | "mismatch" {
    const place = this.#places.get(name)!;
    if (place.limit !== null && place.limit !== call.limit) return "mismatch";
    const entry: Entry = {
      call,
      name,
      sinceMs: this.nowMs,
      expiresAtMs: Number.POSITIVE_INFINITY,
      closedUntilMs: 0,
      released: false,
    };
    if (place.queue.length === 0 && (place.limit === null || fits(place, call))) {
      place.limit = call.limit;
      this.#grant(place, entry);
      return "granted";
    }
    if (!queue) return "busy";
    place.queue.push(entry);
    return "queued";
  }

  /** True if the label held the name. */
  #giveBack(label: string, name: string, unused: boolean): boolean {
    const place = this.#places.get(name)!;
    const mine = place.holders.find((one) => one.call.label === label && !one.released);
    if (mine !== undefined && !unused && mine.closedUntilMs > this.nowMs) mine.released = true;
    else place.holders = place.holders.filter((one) => one !== mine);
    this.#settle(name);
    return mine !== undefined;
  }

  #allAtOnce(progress: Progress): void {
    const { call } = progress;
    for (const name of call.names) {
      const place = this.#places.get(name)!;
      if (place.limit !== null && place.limit !== call.limit) {
        progress.outcome = { kind: "INVALID_ARGUMENT" };
        return;
      }
      if (place.queue.length > 0 || (place.limit !== null && !fits(place, call))) {
        if (call.waitMs === 0) progress.outcome = { kind: "ACQUIRE_TIMEOUT", name, waitMs: 0 };
        else this.#step(progress);
        return;
      }
    }
    for (const name of call.names) this.#claim(call, name, false);
    progress.held = call.names.length;
    progress.outcome = { kind: "granted" };
  }

  /** Claims the next of the call's names. */
  #step(progress: Progress): void {
    const { call, held } = progress;
    const name = call.names[held]!;
    switch (this.#claim(call, name, call.kind !== "try" && call.waitMs > 0)) {
      case "granted":
        this.#next.push(() => this.#goOn(call.label));
        break;
      case "queued":
        break;
      case "busy":
        progress.outcome =
          call.kind === "try" ? { kind: "busy" } : { kind: "ACQUIRE_TIMEOUT", name, waitMs: 0 };
        break;
      case "mismatch":
        progress.outcome = { kind: "INVALID_ARGUMENT" };
        this.#giveUp(progress);
        break;
    }
  }

  #goOn(label: string): void {
    const progress = this.#calls.get(label)!;
    if (progress.outcome.kind !== "pending") return;
    progress.held++;
    if (progress.held === progress.call.names.length) progress.outcome = { kind: "granted" };
    else this.#step(progress);
  }

  /** The ticket is dropped at once, and then what the call held. */
  #fail(progress: Progress, outcome: Outcome, then: (() => void)[]): void {
    progress.outcome = outcome;
    this.#dropTicket(progress);
    then.push(() => this.#giveUp(progress));
  }

  #dropTicket({ call, held }: Progress): void {
    const name = call.names[held];
    if (name === undefined) return;
    const place = this.#places.get(name)!;
    place.queue = place.queue.filter((one) => one.call.label !== call.label);
    this.#settle(name);
  }

  /** Releases the call's names as unused. */
  #giveUp({ call, held }: Progress): void {
    for (const name of call.names.slice(0, held)) this.#giveBack(call.label, name, true);
  }

  #drain(): void {
    for (let step = this.#take(); step !== undefined; step = this.#take()) step();
  }

  #take(): (() => void) | undefined {
    return this.#next.shift() ?? this.#last.shift();
  }

  #waiting(): Progress[] {
    return [...this.#calls.values()].filter(
      ({ call, outcome }) => outcome.kind === "pending" && !this.#dead.has(call.client),
    );
  }

  /** False if the name is merely kept closed by `atLeast`. */
  #holds(one: Entry): boolean {
    return !one.released && one.expiresAtMs > this.nowMs;
  }
}

const fits = ({ holders, limit }: Place, call: Call): boolean =>
  holders.reduce((sum, one) => sum + one.call.permits, 0) + call.permits <= limit!;

/** The moment from which the entry no longer counts. */
const endOf = (one: Entry): number =>
  Math.max(one.released ? 0 : one.expiresAtMs, one.closedUntilMs);

const deadlineOf = ({ call, startedAtMs }: Progress): number => startedAtMs + call.waitMs;
