import type { Random } from "../../core/random.js";
import { LOCK_LIMIT, type Traits } from "../../core/store.js";

/** A random sequence of steps. The same program runs on the rule and on the store. */
export interface Program {
  readonly steps: readonly Step[];
  /** Whether all pushes of a step are awaited before the next step. Otherwise requests overtake pushes. */
  readonly awaitPushes: boolean;
}

export type Step =
  /** Requests that are sent in one turn of the event loop. */
  | { readonly do: "requests"; readonly requests: readonly Request[] }
  | { readonly do: "renew"; readonly renewals: readonly ProgramRenewal[] }
  | { readonly do: "revoke"; readonly name: number }
  | { readonly do: "resize"; readonly name: number; readonly limit: number };

export type Request =
  | (Claimant & {
      readonly do: "claim";
      readonly seq: number;
      readonly permits: number;
      readonly limit: number;
      readonly ttl: Time;
      readonly atLeast: Time | "none";
      readonly queue: boolean;
    })
  | (Claimant & { readonly do: "release"; readonly unused: boolean });

type ProgramRenewal = Claimant & { readonly seq: number; readonly ttl: Time };

/** The parts of a grantId. */
export interface Claimant {
  readonly id: number;
  /** Index of the name. */
  readonly name: number;
  /** The claim is for both names at once. */
  readonly both: boolean;
}

type Time = keyof typeof TIMES_MS;

/**
 * The clocks of the rule and of the store differ. So a lease either ends right after the step that
 * requested it, or outlasts the program. `middle` ends before a ticket of `long` is renewed.
 */
export const TIMES_MS = { short: 1, middle: 600_000, long: 3_600_000 };

/** Longer than `short` on any clock, also one that counts whole milliseconds. */
export const SHORT_IS_OVER_MS = 4;

export const NAMES = 2;
/** The ids are 0 to 7. In a program with one contended lock, all of them claim it, so that many wait. */
export const IDS = 8;
const MIXED_IDS = 6;
const HIGHEST_SEQ = 4;

type Numbers = Pick<Request & { do: "claim" }, "permits" | "limit">;

const EXCLUSIVE: Numbers = { permits: LOCK_LIMIT, limit: LOCK_LIMIT };
const SHARED: Numbers = { permits: 1, limit: LOCK_LIMIT };
const SEMAPHORE: readonly Numbers[] = [1, 2, 3].map((permits) => ({ permits, limit: 3 }));
const OTHER_LIMITS: readonly Numbers[] = [1, 2].map((limit) => ({ permits: 1, limit }));

/** The limits of programs for a store. */
export interface Scope {
  /** The traits of the clients' store. */
  readonly traits: Traits;
  /** The highest number of requests in one turn of the event loop. */
  readonly atOnce: number;
  /** Whether leases may end during the program. */
  readonly timePasses: boolean;
}

/** Draws steps of every kind on two names. */
export function mixedProgram(random: Random, scope: Scope): Program {
  return new Draw(random, scope).mixed();
}

/**
 * Draws single requests on one lock for which many wait. No grantId is revoked, because it would
 * get no grant any more.
 */
export function contendedProgram(random: Random, scope: Scope): Program {
  return new Draw(random, scope).contended();
}

class Draw {
  readonly #random: Random;
  readonly #scope: Scope;
  readonly #numbers: readonly Numbers[];
  /** Claimants that probably hold a name or wait for it, in order: the first probably holds. */
  #claimants: Claimant[] = [];
  #closesLater = false;
  /** True in some programs only, because a closed name and a revoked grantId get no grants. */
  readonly #closes: boolean;
  readonly #revokes: boolean;

  constructor(random: Random, scope: Scope) {
    this.#random = random;
    this.#scope = scope;
    this.#closes = this.#can("at-least") && this.#isOneIn(2);
    this.#revokes = this.#can("revoke") && this.#isOneIn(2);
    // One set for the whole program, so that claims of the same kind meet more often.
    this.#numbers = this.#pick(this.#sets());
  }

  mixed(): Program {
    let previous: Step | undefined;
    const steps = this.#many(8, 30, () => {
      previous = this.#step(previous);
      return previous;
    });
    return { steps, awaitPushes: this.#scope.atOnce === 1 || this.#isOneIn(2) };
  }

  contended(): Program {
    const steps = this.#many(20, 40, (): Step => {
      const here = { name: 0, both: false };
      const kind = this.#below(15);
      if (kind < 3) {
        const renewal = { ...here, id: this.#below(IDS), seq: this.#seq(), ttl: this.#lasting() };
        return { do: "renew", renewals: [renewal] };
      }
      if (kind < 7) {
        const release = { ...this.#release(), ...here, unused: true };
        return { do: "requests", requests: [release] };
      }
      const claim = this.#claim({ ...here, id: this.#below(IDS) });
      const numbers = this.#can("shared") && this.#isOneIn(2) ? SHARED : EXCLUSIVE;
      const contended = { ...numbers, atLeast: "none", ttl: this.#lasting(), queue: true } as const;
      return { do: "requests", requests: [{ ...claim, ...contended }] };
    });
    return { steps, awaitPushes: true };
  }

  #sets(): readonly (readonly Numbers[])[] {
    const lock = this.#can("shared") ? [EXCLUSIVE, SHARED] : [EXCLUSIVE];
    if (!this.#can("permits")) return [lock];
    return [
      lock,
      lock,
      SEMAPHORE,
      [...SEMAPHORE, ...OTHER_LIMITS],
      [...lock, ...SEMAPHORE, ...OTHER_LIMITS],
    ];
  }

  #step(previous: Step | undefined): Step {
    const name = this.#name();
    const kind = this.#below(16);
    if (kind === 0 && this.#revokes) return { do: "revoke", name };
    // A holder has just expired, and its waiter is not granted yet: a good moment for a revocation.
    if (previous !== undefined && endsSoon(previous) && this.#revokes && this.#isOneIn(2)) {
      return { do: "revoke", name: this.#isOneIn(4) ? name : 0 };
    }
    // Seldom, because resizing a lock changes nothing.
    if (kind === 1 && this.#can("permits") && (this.#hasPermits || this.#isOneIn(4))) {
      return { do: "resize", name, limit: 1 + this.#below(4) };
    }
    if (kind < 4) return { do: "renew", renewals: this.#renewals() };
    return { do: "requests", requests: this.#requests() };
  }

  get #hasPermits(): boolean {
    return this.#numbers.some(({ limit }) => limit !== LOCK_LIMIT);
  }

  #renewals(): readonly ProgramRenewal[] {
    const drawn = this.#many(1, 4, () => ({
      ...this.#earlierClaimant(),
      seq: this.#seq(),
      // Only this can end a lease for which others already wait.
      ttl: this.#time(3),
    }));
    if (this.#scope.atOnce > 1) return drawn;
    return drawn.filter((one, i) => drawn.findIndex((other) => isSame(one, other)) === i);
  }

  /**
   * Only the last request of a turn may end within the turn: on a busy machine, a millisecond may
   * pass between two requests.
   */
  #requests(): readonly Request[] {
    const count = this.#closesLater ? 1 : 1 + this.#below(this.#scope.atOnce);
    const requests = Array.from({ length: count }, (_, i): Request => {
      const one = this.#request();
      if (one.do === "release" || i === count - 1) return one;
      const lasting = (time: Time): Time => (time === "short" ? "long" : time);
      const atLeast = one.atLeast === "none" ? "none" : lasting(one.atLeast);
      return { ...one, ttl: lasting(one.ttl), atLeast };
    });
    this.#closesLater ||= closesWhenGranted({ do: "requests", requests });
    return requests;
  }

  #request(): Request {
    return this.#below(3) < 2 ? this.#claim(this.#claimant()) : this.#release();
  }

  #release(): Request & { do: "release" } {
    const claimant = this.#earlierClaimant();
    this.#claimants = this.#claimants.filter((one) => !isSame(one, claimant));
    return { do: "release", ...claimant, unused: this.#isOneIn(2) };
  }

  #claim(claimant: Claimant): Request & { do: "claim" } {
    const ttl = this.#time(5);
    const canQueue = this.#scope.traits.waiting === "pushed" && !claimant.both;
    const queue = canQueue && !this.#isOneIn(4);
    const isKnown = this.#claimants.some((one) => isSame(one, claimant));
    const isFree = !this.#claimants.some(({ name, both }) => both || name === claimant.name);
    if (!isKnown && (queue || isFree)) this.#claimants.push(claimant);
    return {
      do: "claim",
      ...claimant,
      ...this.#pick(this.#numbers),
      seq: this.#seq(),
      ttl,
      atLeast: this.#atLeast(ttl),
      queue,
    };
  }

  #claimant(): Claimant {
    return {
      id: this.#below(MIXED_IDS),
      name: this.#name(),
      both: this.#can("many-names") && this.#isOneIn(5),
    };
  }

  /** Mostly the first name, so that claims meet. */
  #name(): number {
    return this.#isOneIn(3) ? this.#below(NAMES) : 0;
  }

  /** Mostly a claimant that holds or waits: other requests find nothing. */
  #earlierClaimant(): Claimant {
    const [first] = this.#claimants;
    if (first === undefined || this.#isOneIn(4)) return this.#claimant();
    return this.#isOneIn(2) ? first : this.#pick(this.#claimants);
  }

  #seq(): number {
    return 1 + this.#below(HIGHEST_SEQ);
  }

  #time(shortOneIn: number): Time {
    return this.#scope.timePasses && this.#isOneIn(shortOneIn) ? "short" : this.#lasting();
  }

  #lasting(): Time {
    return this.#can("own-ttl") && this.#isOneIn(2) ? "middle" : "long";
  }

  /** More often with a short ttl, so that the lease expires while the name stays closed. */
  #atLeast(ttl: Time): Time | "none" {
    if (!this.#closes || !this.#isOneIn(ttl === "short" ? 2 : 5)) return "none";
    return this.#scope.timePasses && this.#isOneIn(2) ? "short" : "long";
  }

  #can(feature: keyof Traits["cannot"]): boolean {
    return this.#scope.traits.cannot[feature] === undefined;
  }

  #many<T>(atLeast: number, atMost: number, draw: () => T): T[] {
    return Array.from({ length: atLeast + this.#below(atMost - atLeast + 1) }, draw);
  }

  #pick<T>(from: readonly T[]): T {
    return from[this.#below(from.length)]!;
  }

  #isOneIn(count: number): boolean {
    return this.#below(count) === 0;
  }

  #below(end: number): number {
    return Math.floor(this.#random.unit() * end);
  }
}

const isSame = (a: Claimant, b: Claimant): boolean =>
  a.id === b.id && a.name === b.name && a.both === b.both;

/** Whether a lease or ticket of the step expires right after it. */
export function endsSoon(step: Step): boolean {
  switch (step.do) {
    case "renew":
      return step.renewals.some(({ ttl }) => ttl === "short");
    case "requests":
      return step.requests.some(
        (one) => one.do === "claim" && (one.ttl === "short" || one.atLeast === "short"),
      );
    default:
      return false;
  }
}

/** Whether a ticket of this step closes the name for a moment when it is granted, in whatever step. */
export const closesWhenGranted = (step: Step): boolean =>
  step.do === "requests" &&
  step.requests.some((one) => one.do === "claim" && one.queue && one.atLeast === "short");

/** Programs with a part of this one left out, beginning with the largest parts. */
export function* shorterPrograms({ steps, awaitPushes }: Program): Generator<Program> {
  for (let size = Math.ceil(steps.length / 2); size >= 1; size = size === 1 ? 0 : size >> 1) {
    for (let at = 0; at < steps.length && size < steps.length; at += size) {
      yield { awaitPushes, steps: steps.toSpliced(at, size) };
    }
  }
  for (const [i, step] of steps.entries()) {
    for (const smaller of smallerSteps(step)) {
      yield { awaitPushes, steps: steps.with(i, smaller) };
    }
  }
}

function smallerSteps(step: Step): readonly Step[] {
  const without = <T>(all: readonly T[]): T[][] =>
    all.length < 2 ? [] : all.map((_, i) => all.toSpliced(i, 1));
  switch (step.do) {
    case "requests":
      return without(step.requests).map((requests) => ({ do: "requests", requests }));
    case "renew":
      return without(step.renewals).map((renewals) => ({ do: "renew", renewals }));
    default:
      return [];
  }
}

/** A step as one line for people. */
export function describeStep(step: Step): string {
  switch (step.do) {
    case "requests":
      return step.requests.map(describeRequest).join(" | ");
    case "renew":
      return `renew ${step.renewals
        .map((one) => `${describeClaimant(one)} (seq ${one.seq}, ttl ${one.ttl})`)
        .join(", ")}`;
    case "revoke":
      return `revoke ${nameOf(step.name)}`;
    case "resize":
      return `resize ${nameOf(step.name)} to ${step.limit}`;
  }
}

function describeRequest(one: Request): string {
  if (one.do === "release") {
    return `release ${describeClaimant(one)}${one.unused ? " (unused)" : ""}`;
  }
  const limit = one.limit === LOCK_LIMIT ? "a lock" : one.limit;
  const permits = one.permits === LOCK_LIMIT ? "all" : one.permits;
  const more = [`seq ${one.seq}`, `${permits} of ${limit}`, `ttl ${one.ttl}`];
  if (one.atLeast !== "none") more.push(`atLeast ${one.atLeast}`);
  if (one.queue) more.push("queue");
  return `claim ${describeClaimant(one)} (${more.join(", ")})`;
}

const describeClaimant = ({ id, name, both }: Claimant): string =>
  `${both ? "both names" : nameOf(name)} as grant ${id}`;

/** The last part of a name. */
export const nameOf = (index: number): string => String.fromCharCode("a".charCodeAt(0) + index);
