import { setTimeout as sleep, setImmediate as turn } from "node:timers/promises";
import { isPromise } from "../../core/commands.js";
import type { LeaseLostError } from "../../core/errors.js";
import type { Events } from "../../core/events.js";
import type { Lease, ReleaseResult } from "../../core/lease.js";
import type { Locks } from "../../core/locks.js";
import type { LocksOptions } from "../../core/options.js";
import { type Claim, type ClaimAnswer, LOCK_LIMIT, type Store } from "../../core/store.js";
import { type Duration, parseDuration } from "../../core/validate.js";
import type { Fenced } from "../../fence/fence.js";
import type { MultiLease } from "../../primitives/multi.js";
import { slackOf } from "../../primitives/once.js";
import { delegate } from "../../testing/delegate.js";
import { type EventOf, opFor } from "../check/history.js";
import type { Counter } from "./counter.js";
import { outcomeOf } from "./outcome.js";
import type { Lead, Loop, Names, Once, Options } from "./protocol.js";
import { report } from "./report.js";
import { machineMs } from "./time-line.js";

/** One name of an acquire: an op of the history. */
interface Part {
  readonly op: string;
  readonly name: string;
  /** Of several names: the acquire. */
  readonly together?: string;
}

/** What came of an acquire: a lease, or several as one. */
interface Taken {
  readonly locks: Locks;
  readonly parts: readonly (Part & Fenced)[];
  readonly held: Lease | MultiLease;
  release(): Promise<ReleaseResult>;
}

/** Takes locks by the `Locks` of one process, and reports what that process believes and when. */
export class Performer {
  readonly #client: string;
  readonly #settings: LocksOptions & { holder: string; namespace: string };
  readonly #counter: Counter | null;
  readonly #taken = new Map<string, Taken>();
  /** The acquires that wait. */
  readonly #asking = new Map<string, readonly Part[]>();
  readonly #aborters = new Map<string, AbortController>();
  /** By the label in the store and the name's key there: the op that a ticket would be of. */
  readonly #asked = new Map<string, string>();
  #loops = 0;

  constructor(
    client: string,
    settings: LocksOptions & { holder: string; namespace: string },
    counter: Counter | null,
  ) {
    this.#client = client;
    this.#settings = settings;
    this.#counter = counter;
  }

  get waiting(): number {
    return this.#asking.size;
  }

  /** The same store; it reports that a ticket stands once the store has answered so. */
  reportsQueued(store: Store): Store {
    const heard = (claim: Claim, answer: ClaimAnswer): ClaimAnswer => {
      const place = `${claim.holder} ${claim.names[0]}`;
      const op = answer.kind === "queued" ? this.#asked.get(place) : undefined;
      if (op !== undefined) {
        this.#asked.delete(place);
        report({ kind: "queued", op });
      }
      return answer;
    };
    return {
      ...delegate(store),
      claim: (claim, push) => {
        const answer = store.claim(claim, push);
        return isPromise(answer) ? answer.then((one) => heard(claim, one)) : heard(claim, answer);
      },
    };
  }

  /** For the channel `holdfast:renewed`. */
  renewed({ name, token }: Events["renewed"]): void {
    for (const one of this.#taken.values()) {
      if (one.parts.some((part) => part.name === name && part.token === token)) {
        reportRenewed(one);
      }
    }
  }

  async acquire(locks: Locks, op: string, name: Names, asWanted: Options): Promise<Tokens> {
    const wanted = { note: op, ...asWanted };
    const { limit, permits, elected, longestTtl: _, ...options } = wanted;
    if (limit === undefined ? permits !== undefined : elected || typeof name !== "string") {
      throw new Error("permits are of a limit, and of one semaphore");
    }
    const { parts } = await this.#askBy(op, partsOf(op, name), wanted, async (signal) => {
      if (typeof name !== "string") {
        return this.#take(locks, op, name, await locks.acquireAll(name, { ...options, signal }));
      }
      if (elected) {
        const election = locks.election(name, options);
        const resign = async (): Promise<ReleaseResult> => (await election.resign()) ?? "lost";
        return this.#take(locks, op, name, await election.campaign({ signal }), resign);
      }
      if (limit === undefined) {
        return this.#take(locks, op, name, await locks.acquire(name, { ...options, signal }));
      }
      const semaphore = locks.semaphore(name, { permits: limit });
      return this.#take(locks, op, name, await semaphore.acquire({ ...options, permits, signal }));
    });
    return parts.map(({ name, token }) => [name, String(token)]);
  }

  async release(op: string): Promise<ReleaseResult> {
    const { parts, release } = this.#takenBy(op);
    for (const { op } of parts) report({ kind: "releasing", op });
    const result = await release();
    this.#taken.delete(op);
    for (const { op } of parts) report({ kind: "released", op, result });
    return result;
  }

  async renew(op: string, ttlMs: number): Promise<void> {
    const one = this.#takenBy(op);
    const renewing = one.held.renew(ttlMs);
    // A shorter one counts from the call.
    reportRenewed(one);
    await renewing;
  }

  look(op: string): boolean {
    const { parts, held } = this.#takenBy(op);
    const atMs = machineMs();
    const isHeld = believes(held);
    for (const { op } of parts) report({ kind: "looked", op, held: isHeld }, atMs);
    return isHeld;
  }

  abort(op: string): void {
    for (const part of this.#asking.get(op) ?? []) report({ kind: "aborting", op: part.op });
    this.#aborters.get(op)?.abort();
  }

  /** Aborts everything that still waits. */
  abortAll(): void {
    for (const op of [...this.#aborters.keys()]) this.abort(op);
  }

  /**
   * A read-modify-write of both numbers of the name. The fenced one follows the protocol of the
   * fence and does not ask whether the lease is still held: that is the fence's business. The
   * unfenced one is written only if `assertHeld` passes right before. A reader shows its token again
   * instead of writing; of several names the first is the resource's.
   */
  async write(op: string, pauseMs: number): Promise<boolean> {
    const counter = this.#counter;
    if (counter === null) throw new Error("the worker was started without a resource");
    const { parts, held } = this.#takenBy(op);
    const { op: partOp, name: resource, token, floor } = parts[0]!;
    const about = { op: partOp, resource, token, floor };
    const enter = async (): Promise<boolean> => {
      const entered = await counter.enter(resource, { token, floor });
      report({ kind: "entered", ...about, ...entered });
      return entered.accepted;
    };
    if (!(await enter())) return false;
    const { value: read, unfenced } = await counter.read(resource);
    await sleep(pauseMs);
    if (held.mode !== "exclusive") return enter();
    const written = await counter.write(resource, { token, floor }, read + 1);
    report({ kind: "wrote", ...about, ...written, read, value: read + 1 });
    if (believes(held)) {
      const found = await counter.writeUnfenced(resource, unfenced + 1);
      const update = { read: unfenced, found, value: unfenced + 1 };
      report({ kind: "wrote-unfenced", op: partOp, resource, ...update });
    }
    return written.accepted;
  }

  async loop(locks: Locks, wanted: Loop): Promise<number> {
    const { name, holdMs, options = {}, writes = false } = wanted;
    const { forMs = Number.POSITIVE_INFINITY, rounds = Number.POSITIVE_INFINITY } = wanted;
    const untilMs = performance.now() + forMs;
    const number = ++this.#loops;
    let granted = 0;
    for (let i = 0; i < rounds && performance.now() < untilMs; i++) {
      const op = `${this.#client}.loop${number}.${i}`;
      try {
        await this.acquire(locks, op, name, options);
      } catch {
        // Reported; a store that is down is asked again in a moment.
        await sleep(10);
        continue;
      }
      granted++;
      if (writes) await this.write(op, holdMs);
      else await (holdMs > 0 ? sleep(holdMs) : turn());
      this.look(op);
      await this.release(op);
    }
    return granted;
  }

  /** How many terms it had; each is an op of its own. */
  async lead(locks: Locks, op: string, { name, pauseMs, options = {} }: Lead): Promise<number> {
    const wanted = { note: op, ...options };
    const election = locks.election(name, wanted);
    const campaign = { ...wanted, elected: true };
    let terms = 0;
    const nextTerm = (): readonly Part[] => [{ op: `${op}.${terms + 1}`, name }];
    const serve = async (lease: Lease, stop: AbortSignal): Promise<void> => {
      const own = `${op}.${++terms}`;
      this.#asking.delete(op);
      await this.#under(locks, own, name, lease, async () => {
        while (!stop.aborted) {
          // Once it is refused another one leads, and its own loss is about to be told.
          if (!(await this.write(own, pauseMs))) await aborted(stop);
        }
      });
      if (lease.signal.aborted) this.#ask(op, nextTerm(), campaign);
    };
    await this.#askBy(op, nextTerm(), campaign, async (signal) => {
      await election.runAsLeader(serve, { signal }).catch((error) => {
        if (!signal.aborted) throw error;
        this.#notGranted(op, "aborted");
      });
    });
    return terms;
  }

  /** Whether it ran. */
  async once(locks: Locks, op: string, { name, workMs, ...options }: Once): Promise<boolean> {
    const { every, slack, ...rest } = options;
    const everyMs = milliseconds(every);
    const atLeast = everyMs - (slack === undefined ? slackOf(everyMs) : milliseconds(slack));
    const asks = { ...rest, note: op, wait: 0, atLeast };
    return this.#askBy(op, partsOf(op, name), asks, async (signal) => {
      const { ran } = await locks.once(name, { ...options, note: op, signal }, (lease) =>
        this.#under(locks, op, name, lease, () => sleep(workMs)),
      );
      this.#notGranted(op, "busy");
      return ran;
    });
  }

  /** Closes these `Locks`, which gives back what they hold. */
  async close(locks: Locks): Promise<void> {
    for (const one of this.#taken.values()) {
      for (const { op } of one.locks === locks ? one.parts : []) report({ kind: "releasing", op });
    }
    await locks.close();
  }

  /** From here on it believes that it holds. */
  #take(
    locks: Locks,
    op: string,
    name: Names,
    held: Taken["held"],
    release = () => held.release(),
  ): Taken {
    const parts = partsOf(op, name).map((part) => {
      const { token, floor } = "of" in held ? held.of(part.name) : held;
      return { ...part, token, floor };
    });
    const one = { locks, parts, held, release };
    this.#asking.delete(op);
    this.#taken.set(op, one);
    const { atMs, untilMs } = deadlineOf(held);
    for (const { op, token, floor } of parts) {
      report({ kind: "granted", op, token, floor, untilMs }, atMs);
    }
    const { signal } = held;
    const lost = (): void => {
      const { reason, lockName } = signal.reason as LeaseLostError;
      for (const { op, name } of parts) {
        report({ kind: "lost", op, reason: name === lockName ? reason : "together" });
      }
    };
    if (signal.aborted) lost();
    else signal.addEventListener("abort", lost, { once: true });
    return one;
  }

  #takenBy(op: string): Taken {
    const one = this.#taken.get(op);
    if (one === undefined) throw new Error(`${op} has no lease`);
    return one;
  }

  #ask(op: string, parts: readonly Part[], options: Options): void {
    this.#asking.set(op, parts);
    for (const part of parts) this.#reportAsked(part, options);
  }

  /** Asks by a call that ends in a lease, or holds one in between, and tells when none came of it. */
  async #askBy<T>(
    op: string,
    parts: readonly Part[],
    options: Options,
    call: (signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    const aborter = new AbortController();
    this.#aborters.set(op, aborter);
    this.#ask(op, parts, options);
    try {
      return await call(aborter.signal);
    } catch (error) {
      this.#notGranted(op, outcomeOf(error));
      throw error;
    } finally {
      this.#asking.delete(op);
      this.#aborters.delete(op);
      for (const { name } of parts) this.#asked.delete(this.#placeOf(options.note, name));
    }
  }

  #notGranted(op: string, outcome: EventOf<"not-granted">["outcome"]): void {
    for (const part of this.#asking.get(op) ?? []) {
      report({ kind: "not-granted", op: part.op, outcome });
    }
  }

  #reportAsked({ op, name, together }: Part, options: Options): void {
    const settings = this.#settings;
    this.#asked.set(this.#placeOf(options.note, name), op);
    const isWhole = options.limit === undefined && options.mode !== "shared";
    const wait = options.elected ? Number.POSITIVE_INFINITY : (options.wait ?? settings.wait);
    report({
      kind: "asked",
      op,
      client: this.#client,
      name,
      permits: isWhole ? LOCK_LIMIT : (options.permits ?? 1),
      limit: options.limit ?? LOCK_LIMIT,
      ttlMs: milliseconds(options.ttl ?? settings.ttl ?? "30s"),
      waitMs: milliseconds(wait ?? "10s"),
      ...(options.longestTtl === undefined
        ? {}
        : { longestTtlMs: milliseconds(options.longestTtl) }),
      ...(options.maxHold === undefined ? {} : { maxHoldMs: milliseconds(options.maxHold) }),
      ...(options.atLeast === undefined ? {} : { atLeastMs: milliseconds(options.atLeast) }),
      ...(options.renew === false ? { renew: false } : {}),
      ...(together === undefined ? {} : { together }),
    });
  }

  #placeOf(note: string | undefined, name: string): string {
    return `${this.#settings.holder} (${note}) ${this.#settings.namespace}:${name}`;
  }

  /** Work in the hands of something that releases the lease by itself, afterwards. */
  async #under(
    locks: Locks,
    op: string,
    name: string,
    lease: Lease,
    work: () => Promise<unknown>,
  ): Promise<void> {
    this.#take(locks, op, name, lease);
    try {
      await work();
      this.look(op);
    } finally {
      report({ kind: "releasing", op });
      this.#taken.delete(op);
    }
  }
}

/** Names, each with its token. */
export type Tokens = readonly (readonly [name: string, token: string])[];

/** A lease's deadline on the time line, read in one piece: a stop in between would move it. */
function deadlineOf(held: Taken["held"]): { atMs: number; untilMs: number } {
  for (;;) {
    const atMs = machineMs();
    const untilMs = atMs + held.remainingMs;
    if (untilMs === atMs || machineMs() - atMs < 0.5) return { atMs, untilMs };
  }
}

/** Several are good for as long as the first of them that ends. */
function reportRenewed({ parts, held }: Taken): void {
  const { atMs, untilMs } = deadlineOf(held);
  if (untilMs <= atMs) return;
  for (const { op } of parts) report({ kind: "renewed", op, untilMs }, atMs);
}

function believes(held: Taken["held"]): boolean {
  try {
    held.assertHeld();
    return true;
  } catch {
    return false;
  }
}

const milliseconds = (duration: Duration): number =>
  parseDuration(duration, "the duration", { min: 0, infinite: true });

const partsOf = (op: string, name: Names): readonly Part[] =>
  typeof name === "string"
    ? [{ op, name }]
    : [...new Set(name)].sort().map((one) => ({ op: opFor(op, one), name: one, together: op }));

const aborted = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", () => resolve(), { once: true });
  });
