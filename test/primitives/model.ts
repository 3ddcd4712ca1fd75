/**
 * What the primitives promise, said as simply as possible: names with a limit, holders and one queue
 * each; asks that go from name to name. It is written from the contract, not from a store's code.
 * Time is a number, and every expiry is seen at its moment.
 */

/** The limit of a name that is a lock. */
const LOCK = 2 ** 31 - 1;

export interface Ask {
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
  readonly ask: Ask;
  readonly name: string;
  sinceMs: number;
  /** A living client renews it. */
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

/** `floor`: who, of those that held the name at that moment, was granted it first. */
export interface Granted {
  readonly label: string;
  readonly floor: string;
}

interface Progress {
  readonly ask: Ask;
  readonly startedAtMs: number;
  outcome: Outcome;
  /** How many of the names it has. Those of an ask in one step are had at once. */
  held: number;
  /** Its ticket was dropped, and it does not know yet. */
  dropped: boolean;
}

/** One name, as people see it. */
export interface Seen {
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
  readonly #asks = new Map<string, Progress>();
  readonly #dead = new Set<number>();
  /** What follows in the same moment, one step each, in order; `#last` when nothing else follows. */
  readonly #next: (() => void)[] = [];
  readonly #last: (() => void)[] = [];

  constructor(names: readonly string[], nowMs: number) {
    this.nowMs = nowMs;
    this.#places = new Map(
      names.map((name) => [name, { limit: null, holders: [], queue: [], revoked: [], log: [] }]),
    );
  }

  // What clients do.

  ask(ask: Ask): void {
    const startedAtMs = this.nowMs;
    const progress: Progress = {
      ask,
      startedAtMs,
      outcome: { kind: "pending" },
      held: 0,
      dropped: false,
    };
    this.#asks.set(ask.label, progress);
    if (ask.names.length === 1) this.#step(progress);
    else this.#allAtOnce(progress);
    this.#drain();
  }

  release(label: string): "released" | "lost" {
    const { ask } = this.#asks.get(label)!;
    const still = ask.names.map((name) => this.#giveBack(label, name, false));
    this.#drain();
    return still.every(Boolean) ? "released" : "lost";
  }

  abort(label: string): void {
    this.#fail(this.#asks.get(label)!, { kind: "aborted" }, this.#next);
    this.#drain();
  }

  /** It is never heard of again. `heardAtMs`: when the store last heard of that claim. */
  crash(client: number, heardAtMs: (label: string, name: string) => number): void {
    this.#dead.add(client);
    this.#runOut((one) => one.ask.client === client, heardAtMs);
  }

  forceRelease(name: string): readonly string[] {
    const place = this.#places.get(name)!;
    const revoked = place.holders.splice(0).map(({ ask }) => ask.label);
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
    for (const { ask } of place.queue.filter((one) => one.ask.permits > limit)) {
      this.#asks.get(ask.label)!.dropped = true;
    }
    place.queue = place.queue.filter((one) => one.ask.permits <= limit);
    this.#settle(name);
    this.#drain();
    return "done";
  }

  // What clients learn on their way: when is seen on the wire, what comes of it is said here.

  /** A client asks the store again about one that waits. */
  asksAgain(label: string): void {
    const progress = this.#asks.get(label)!;
    if (!progress.dropped) return;
    progress.dropped = false;
    this.#step(progress);
    this.#drain();
  }

  /** A client hears that it no longer holds the name. `heardAtMs`: when the store last heard of that claim. */
  learnsOfLoss(
    label: string,
    name: string,
    heardAtMs: (label: string, name: string) => number,
  ): void {
    const progress = this.#asks.get(label)!;
    const { ask, held, outcome } = progress;
    if (outcome.kind !== "pending") this.#runOut((one) => one.ask.label === label, heardAtMs);
    if (outcome.kind !== "pending" || ask.names.indexOf(name) >= held) return;
    // Nobody has worked under its names yet: it asks for all of them again.
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

  /** When something happens by itself next. `tied`: a wait ends in the moment in which something comes free. */
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
        const { ask, held } = one;
        const waitMs = ask.waitMs;
        // It says so only when the store has let its ticket go.
        this.#fail(one, { kind: "ACQUIRE_TIMEOUT", name: ask.names[held]!, waitMs }, this.#last);
      }
      this.#drain();
    }
    this.nowMs = untilMs;
  }

  // What there is to see.

  outcomes(): ReadonlyMap<string, Outcome> {
    return new Map([...this.#asks].map(([label, { outcome }]) => [label, outcome]));
  }

  /** All of its names, still. */
  holds(label: string): boolean {
    const held = [...this.#places.values()]
      .flatMap(({ holders }) => holders)
      .filter((one) => one.ask.label === label && this.#holds(one));
    return held.length === this.#asks.get(label)!.ask.names.length;
  }

  /** Every grant of the name that was ever made, in order. */
  grants(name: string): readonly Granted[] {
    return this.#places.get(name)!.log;
  }

  see(name: string): Seen {
    const { limit, holders, queue, revoked } = this.#places.get(name)!;
    return {
      limit,
      holders: holders.map((one) => ({
        label: one.ask.label,
        permits: one.ask.permits,
        heldMs: this.nowMs - one.sinceMs,
        closed: !this.#holds(one),
      })),
      waiters: queue.map((one) => ({
        label: one.ask.label,
        permits: one.ask.permits,
        waitingMs: this.nowMs - one.sinceMs,
      })),
      revoked,
    };
  }

  // The rules.

  /** They are not renewed any more. */
  #runOut(
    which: (one: Entry) => boolean,
    heardAtMs: (label: string, name: string) => number,
  ): void {
    for (const { holders, queue } of this.#places.values()) {
      for (const one of [...holders, ...queue]) {
        if (!which(one) || one.released) continue;
        one.expiresAtMs = heardAtMs(one.ask.label, one.name) + one.ask.ttlMs;
      }
    }
  }

  /** Drops what has run out, then grants from the front of the queue while it fits. */
  #settle(name: string): void {
    const place = this.#places.get(name)!;
    const there = (one: Entry): boolean => endOf(one) > this.nowMs;
    place.holders = place.holders.filter(there);
    place.queue = place.queue.filter(there);
    for (let first = place.queue[0]; first !== undefined; first = place.queue[0]) {
      if (!fits(place, first.ask)) break;
      place.queue.shift();
      this.#grant(place, first);
      const { ask } = first;
      if (!this.#dead.has(ask.client)) this.#next.push(() => this.#goOn(ask.label));
    }
    if (place.holders.length + place.queue.length === 0) place.limit = null;
  }

  #grant(place: Place, entry: Entry): void {
    const first = place.holders.find((one) => this.#holds(one)) ?? entry;
    place.log.push({ label: entry.ask.label, floor: first.ask.label });
    entry.sinceMs = this.nowMs;
    if (entry.ask.atLeastMs > 0) entry.closedUntilMs = this.nowMs + entry.ask.atLeastMs;
    place.holders.push(entry);
  }

  #claim(ask: Ask, name: string, queue: boolean): "granted" | "queued" | "busy" | "mismatch" {
    const place = this.#places.get(name)!;
    if (place.limit !== null && place.limit !== ask.limit) return "mismatch";
    const entry: Entry = {
      ask,
      name,
      sinceMs: this.nowMs,
      expiresAtMs: Number.POSITIVE_INFINITY,
      closedUntilMs: 0,
      released: false,
    };
    if (place.queue.length === 0 && (place.limit === null || fits(place, ask))) {
      place.limit = ask.limit;
      this.#grant(place, entry);
      return "granted";
    }
    if (!queue) return "busy";
    place.queue.push(entry);
    return "queued";
  }

  /** True if it was there. */
  #giveBack(label: string, name: string, unused: boolean): boolean {
    const place = this.#places.get(name)!;
    const mine = place.holders.find((one) => one.ask.label === label && !one.released);
    if (mine !== undefined && !unused && mine.closedUntilMs > this.nowMs) mine.released = true;
    else place.holders = place.holders.filter((one) => one !== mine);
    this.#settle(name);
    return mine !== undefined;
  }

  #allAtOnce(progress: Progress): void {
    const { ask } = progress;
    for (const name of ask.names) {
      const place = this.#places.get(name)!;
      if (place.limit !== null && place.limit !== ask.limit) {
        progress.outcome = { kind: "INVALID_ARGUMENT" };
        return;
      }
      if (place.queue.length > 0 || (place.limit !== null && !fits(place, ask))) {
        if (ask.waitMs === 0) progress.outcome = { kind: "ACQUIRE_TIMEOUT", name, waitMs: 0 };
        else this.#step(progress);
        return;
      }
    }
    for (const name of ask.names) this.#claim(ask, name, false);
    progress.held = ask.names.length;
    progress.outcome = { kind: "granted" };
  }

  /** Asks for the next of its names. */
  #step(progress: Progress): void {
    const { ask, held } = progress;
    const name = ask.names[held]!;
    switch (this.#claim(ask, name, ask.kind !== "try" && ask.waitMs > 0)) {
      case "granted":
        this.#next.push(() => this.#goOn(ask.label));
        break;
      case "queued":
        break;
      case "busy":
        progress.outcome =
          ask.kind === "try" ? { kind: "busy" } : { kind: "ACQUIRE_TIMEOUT", name, waitMs: 0 };
        break;
      case "mismatch":
        progress.outcome = { kind: "INVALID_ARGUMENT" };
        this.#giveUp(progress);
        break;
    }
  }

  #goOn(label: string): void {
    const progress = this.#asks.get(label)!;
    if (progress.outcome.kind !== "pending") return;
    progress.held++;
    if (progress.held === progress.ask.names.length) progress.outcome = { kind: "granted" };
    else this.#step(progress);
  }

  /** Its ticket goes at once, and then what it held. */
  #fail(progress: Progress, outcome: Outcome, then: (() => void)[]): void {
    progress.outcome = outcome;
    this.#dropTicket(progress);
    then.push(() => this.#giveUp(progress));
  }

  #dropTicket({ ask, held }: Progress): void {
    const name = ask.names[held];
    if (name === undefined) return;
    const place = this.#places.get(name)!;
    place.queue = place.queue.filter((one) => one.ask.label !== ask.label);
    this.#settle(name);
  }

  /** Nobody has worked under what it held. */
  #giveUp({ ask, held }: Progress): void {
    for (const name of ask.names.slice(0, held)) this.#giveBack(ask.label, name, true);
  }

  #drain(): void {
    for (let step = this.#take(); step !== undefined; step = this.#take()) step();
  }

  #take(): (() => void) | undefined {
    return this.#next.shift() ?? this.#last.shift();
  }

  #waiting(): Progress[] {
    return [...this.#asks.values()].filter(
      ({ ask, outcome }) => outcome.kind === "pending" && !this.#dead.has(ask.client),
    );
  }

  /** Not merely closed by `atLeast`. */
  #holds(one: Entry): boolean {
    return !one.released && one.expiresAtMs > this.nowMs;
  }
}

const fits = ({ holders, limit }: Place, ask: Ask): boolean =>
  holders.reduce((sum, one) => sum + one.ask.permits, 0) + ask.permits <= limit!;

/** When nothing is left of it. */
const endOf = (one: Entry): number =>
  Math.max(one.released ? 0 : one.expiresAtMs, one.closedUntilMs);

const deadlineOf = ({ ask, startedAtMs }: Progress): number => startedAtMs + ask.waitMs;
