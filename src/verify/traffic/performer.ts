import { setTimeout as sleep } from "node:timers/promises";
import type { LeaseLostError } from "../../core/errors.js";
import type { Events } from "../../core/events.js";
import type { Lease, ReleaseResult } from "../../core/lease.js";
import type { LocksOptions } from "../../core/options.js";
import { isPromise } from "../../core/requests.js";
import {
  type Awaitable,
  type Claim,
  type ClaimAnswer,
  LOCK_LIMIT,
  type RenewAnswer,
  type Renewal,
  type Store,
} from "../../core/store.js";
import type { Locks } from "../../locks.js";
import { delegate } from "../../testing/delegate.js";
import type { EventOf } from "../check/history.js";
import { outcomeOf } from "./outcome.js";
import type { Names, Options } from "./protocol.js";
import type { Register } from "./registers/register.js";
import { report } from "./report.js";
import {
  believes,
  deadlineOf,
  milliseconds,
  type Part,
  partsOf,
  reportRenewed,
  type Taken,
  type Tokens,
} from "./taken.js";
import { machineMs } from "./time-line.js";

/** Takes locks by the `Locks` of one process, and reports the beliefs of that process and their times. */
export class Performer {
  readonly client: string;
  readonly #settings: LocksOptions & { holder: string; namespace: string };
  readonly #register: Register | null;
  readonly #taken = new Map<string, Taken>();
  /** The pending acquires. */
  readonly #waiting = new Map<string, readonly Part[]>();
  readonly #aborters = new Map<string, AbortController>();
  /** The op of each claim, by the label in the store and the name's key there. */
  readonly #asked = new Map<string, string>();
  /** The ops that have a ticket, by its grantId. */
  readonly #tickets = new Map<string, string>();
  /** When the store last replied to renewals. The core handles a reply in the same turn of the event loop. */
  #repliedAtMs = 0;

  constructor(
    client: string,
    settings: LocksOptions & { holder: string; namespace: string },
    register: Register | null,
  ) {
    this.client = client;
    this.#settings = settings;
    this.#register = register;
  }

  get waiting(): number {
    return this.#waiting.size;
  }

  /** Wraps the store: reports a ticket whenever the store replies that it is queued. */
  reportsQueued(store: Store): Store {
    // A claim under a session lives from the session's last proof, not from its own request.
    const provesTicket = store.traits.liveness === "lease";
    const claimed = (claim: Claim, sentAtMs: number, answer: ClaimAnswer): ClaimAnswer => {
      const place = `${claim.holder} ${claim.names[0]}`;
      const op = answer.kind === "queued" ? this.#asked.get(place) : undefined;
      if (op === undefined) return answer;
      if (provesTicket) {
        this.#tickets.set(claim.grantId, op);
        report({ kind: "queued", op, sentAtMs });
      } else {
        this.#asked.delete(place);
        report({ kind: "queued", op });
      }
      return answer;
    };
    const renewed = (
      renewals: readonly Renewal[],
      sentAtMs: number,
      answers: readonly RenewAnswer[],
    ): readonly RenewAnswer[] => {
      this.#repliedAtMs = machineMs();
      for (const [i, { grantId }] of renewals.entries()) {
        const op = this.#tickets.get(grantId);
        const kind = answers[i]?.kind;
        if (kind === "queued" && op !== undefined) report({ kind, op, sentAtMs });
        if (kind === "granted" || kind === "lost") this.#tickets.delete(grantId);
      }
      return answers;
    };
    return {
      ...delegate(store),
      claim: (claim, push) => {
        const sentAtMs = machineMs();
        return whenAnswered(store.claim(claim, push), (one) => claimed(claim, sentAtMs, one));
      },
      renew: (renewals) => {
        const sentAtMs = machineMs();
        return whenAnswered(store.renew(renewals), (all) => renewed(renewals, sentAtMs, all));
      },
      release: (releases) => {
        for (const { grantId } of releases) this.#tickets.delete(grantId);
        return store.release(releases);
      },
    };
  }

  /** Handles the channel `holdfast:renewed`. */
  renewed({ name, token }: Events["renewed"]): void {
    for (const one of this.#taken.values()) {
      if (one.parts.some((part) => part.name === name && part.token === token)) {
        reportRenewed(one, this.#repliedAtMs);
      }
    }
  }

  async acquire(locks: Locks, op: string, name: Names, asWanted: Options): Promise<Tokens> {
    const wanted = { note: op, ...asWanted };
    const { limit, permits, elected, longestTtl: _, ...options } = wanted;
    if (limit === undefined ? permits !== undefined : elected || typeof name !== "string") {
      throw new Error("permits need a limit, and a single name");
    }
    const parts = partsOf(op, name);
    const taken = await this.request(op, parts, wanted, async (signal) => {
      if (typeof name !== "string") {
        return this.#take(locks, op, parts, await locks.acquireAll(name, { ...options, signal }));
      }
      if (elected) {
        const election = locks.election(name, options);
        const resign = async (): Promise<ReleaseResult> => (await election.resign()) ?? "lost";
        return this.#take(locks, op, parts, await election.campaign({ signal }), resign);
      }
      if (limit === undefined) {
        return this.#take(locks, op, parts, await locks.acquire(name, { ...options, signal }));
      }
      const semaphore = locks.semaphore(name, { permits: limit });
      return this.#take(locks, op, parts, await semaphore.acquire({ ...options, permits, signal }));
    });
    return taken.parts.map(({ name, token }) => [name, String(token)]);
  }

  /** Returns whether the name was free. */
  async tryAcquire(locks: Locks, op: string, name: string, options: Options): Promise<boolean> {
    const { limit: _, permits: __, elected: ___, longestTtl: ____, wait: _____, ...rest } = options;
    const wanted = { note: op, ...rest };
    const asked = { ...options, ...wanted, wait: 0 };
    return this.request(op, partsOf(op, name), asked, async (signal) => {
      const lease = await locks.tryAcquire(name, { ...wanted, signal });
      if (lease === null) this.notGranted(op, "busy");
      else this.#take(locks, op, partsOf(op, name), lease);
      return lease !== null;
    });
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
    // A shorter ttl counts from the call.
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
    for (const part of this.#waiting.get(op) ?? []) report({ kind: "aborting", op: part.op });
    this.#aborters.get(op)?.abort();
  }

  /** Aborts all pending acquires. */
  abortAll(): void {
    for (const op of [...this.#aborters.keys()]) this.abort(op);
  }

  /** Works under the lease for `forMs`, with the resource if the worker has one. Returns whether it may go on. */
  async use(op: string, forMs: number): Promise<boolean> {
    if (this.#register !== null) return this.write(op, forMs);
    await sleep(forMs);
    return believes(this.#takenBy(op).held);
  }

  /**
   * A read-modify-write of both numbers of the name. The fenced one follows the protocol of the
   * fence and does not check whether the lease is still held: the fence decides that. The unfenced
   * one is written only if `assertHeld` passes right before. A reader shows its token again instead
   * of writing. A multi-lock uses the resource of its first name.
   */
  async write(op: string, pauseMs: number): Promise<boolean> {
    const register = this.#register;
    if (register === null) throw new Error("the worker was started without a resource");
    const { parts, held } = this.#takenBy(op);
    const { op: partOp, name: resource, token, floor } = parts[0]!;
    const about = { op: partOp, resource, token, floor };
    const enter = async (): Promise<boolean> => {
      const entered = await register.enter(resource, { token, floor });
      if (entered === null) return false;
      report({ kind: "entered", ...about, ...entered });
      return entered.accepted;
    };
    if (!(await enter())) return false;
    const { value: read, unfenced } = await register.read(resource);
    await sleep(pauseMs);
    if (held.mode !== "exclusive") return enter();
    const written = await register.write(resource, { token, floor }, read + 1);
    if (written === null) return false;
    report({ kind: "wrote", ...about, ...written, read, value: read + 1 });
    if (believes(held)) {
      const found = await register.writeUnfenced(resource, unfenced + 1);
      const update = { read: unfenced, found, value: unfenced + 1 };
      report({ kind: "wrote-unfenced", op: partOp, resource, ...update });
    }
    return written.accepted;
  }

  /** Closes these `Locks`, which releases their leases. */
  async close(locks: Locks): Promise<void> {
    for (const one of this.#taken.values()) {
      for (const { op } of one.locks === locks ? one.parts : []) report({ kind: "releasing", op });
    }
    await locks.close();
  }

  /** Reports the grant: from here on the process believes that it holds. */
  #take(
    locks: Locks,
    op: string,
    asked: readonly Part[],
    held: Taken["held"],
    release = () => held.release(),
  ): Taken {
    const parts = asked.map((part) => {
      const { token, floor } = "of" in held ? held.of(part.name) : held;
      return { ...part, token, floor };
    });
    const one = { locks, parts, held, release };
    this.granted(op);
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

  /** Marks the wait of this op as over: a later error is not the end of the wait. */
  granted(op: string): void {
    this.#waiting.delete(op);
  }

  requested(op: string, parts: readonly Part[], options: Options): void {
    this.#waiting.set(op, parts);
    for (const part of parts) this.#reportAsked(part, options);
  }

  /** Calls a method that returns a lease or works under one, and reports the outcome if there is no lease. */
  async request<T>(
    op: string,
    parts: readonly Part[],
    options: Options,
    call: (signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    const aborter = new AbortController();
    this.#aborters.set(op, aborter);
    this.requested(op, parts, options);
    try {
      return await call(aborter.signal);
    } catch (error) {
      this.notGranted(op, outcomeOf(error));
      throw error;
    } finally {
      this.granted(op);
      this.#aborters.delete(op);
      for (const { name } of parts) this.#asked.delete(this.#placeOf(options.note, name));
    }
  }

  notGranted(op: string, outcome: EventOf<"not-granted">["outcome"]): void {
    for (const part of this.#waiting.get(op) ?? []) {
      report({ kind: "not-granted", op: part.op, outcome });
    }
  }

  #reportAsked({ op, name, together, within }: Part, options: Options): void {
    const settings = this.#settings;
    this.#asked.set(this.#placeOf(options.note, name), op);
    const isWhole = options.limit === undefined && options.mode !== "shared";
    const wait = options.elected ? Number.POSITIVE_INFINITY : (options.wait ?? settings.wait);
    report({
      kind: "asked",
      op,
      client: this.client,
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
      ...(within === undefined ? {} : { within }),
    });
  }

  #placeOf(note: string | undefined, name: string): string {
    return `${this.#settings.holder} (${note}) ${this.#settings.namespace}:${name}`;
  }

  /** Works inside a call that releases the lease afterwards by itself. */
  async holdDuring(
    locks: Locks,
    part: Part,
    lease: Lease,
    work: () => Promise<unknown>,
  ): Promise<void> {
    const { op } = part;
    this.#take(locks, op, [part], lease);
    try {
      await work();
      this.look(op);
    } finally {
      report({ kind: "releasing", op });
      this.#taken.delete(op);
    }
  }
}

/** At once, if the store replies at once. */
const whenAnswered = <T>(answer: Awaitable<T>, heard: (answer: T) => T): Awaitable<T> =>
  isPromise(answer) ? answer.then(heard) : heard(answer);
