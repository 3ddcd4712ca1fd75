import { follow, onAbort, unlimitedController } from "../core/abort.js";
import { assertOpen, type Context } from "../core/context.js";
import {
  HoldfastError,
  InvalidArgumentError,
  LeaseLostError,
  StaleTokenError,
} from "../core/errors.js";
import type { HeldLease } from "../core/held-lease.js";
import type { Lease, ReleaseResult } from "../core/lease.js";
import { type AcquireOptions, acquireOptionsBut } from "../core/options.js";
import { type Call, HOLDER_BYTES, resolveCall } from "../core/settings.js";
import {
  checkName,
  checkOptions,
  checkSignal,
  type Duration,
  orElse,
  parseDuration,
} from "../core/validate.js";
import { Waiter } from "../core/waiter.js";
import { checkWork, isAbortOf } from "../core/work.js";
import { inspectName } from "./inspection.js";

/** Options of the lease by which a leader leads. Candidates wait without end. */
export type ElectionOptions = Pick<
  AcquireOptions,
  "ttl" | "maxHold" | "note" | "abortBefore" | "atLeast"
>;

/** A leader as others see it. */
export interface Leader {
  /** A label for people: host, process, and `note`. */
  readonly holder: string;
  /** The fencing token of the term. */
  readonly token: bigint;
}

/** One leader at a time. The election is a lock, and its lease is the leadership. */
export interface Election {
  /** The name that candidates compete for. */
  readonly name: string;
  /**
   * Waits until elected. A second call joins the same candidacy, or returns the same lease. Rejects
   * with the signal's reason, or with an AbortError after `resign`.
   */
  campaign(options?: { signal?: AbortSignal | undefined }): Promise<Lease>;
  /**
   * Ends leadership or candidacy; stops the work of `runAsLeader` first. Returns null when it did not
   * lead. A pending `campaign` rejects with an AbortError.
   */
  resign(): Promise<ReleaseResult | null>;
  /**
   * The present leader, and then each change; null when there is none. A term shorter than `every`
   * (1 s) may be missed. Throws when the store stays unavailable for one ttl.
   */
  observe(options?: {
    every?: Duration | undefined;
    signal?: AbortSignal | undefined;
  }): AsyncIterableIterator<Leader | null>;
  /**
   * Campaigns and runs `fn` as the leader; after a loss, again in the next term. `stop` aborts when
   * leadership is lost or resigned, or `signal` aborts; `fn` must end then, and the next run begins
   * only after that.
   */
  runAsLeader<T>(
    fn: (lease: Lease, stop: AbortSignal) => T | Promise<T>,
    options?: { signal?: AbortSignal | undefined },
  ): Promise<T>;
}

/** Remembers that the store has notified us until that is read. */
class Notification {
  wake: (() => void) | null = null;
  #isNew = false;

  notify(): void {
    this.#isNew = true;
    this.wake?.();
  }

  take(): boolean {
    const isNew = this.#isNew;
    this.#isNew = false;
    this.wake = null;
    return isNew;
  }
}

const OPTIONS = acquireOptionsBut("wait", "signal", "mode", "renew", "reentrant");
const POLL_EVERY_MS = 1_000;

export class StoreElection implements Election {
  readonly name: string;
  readonly #context: Context;
  readonly #call: Call;
  #campaign: Candidacy | null = null;
  #lease: HeldLease | null = null;
  /** The call of `runAsLeader`, over all of its terms. `over` aborts when the caller no longer wants to lead. */
  #running: { readonly ended: Promise<void>; readonly over: AbortController } | null = null;

  constructor(context: Context, name: string, options: ElectionOptions = {}) {
    const { settings, store } = context;
    this.#context = context;
    this.name = checkName(name);
    assertOpen(context);
    checkOptions(options, "the options of a call", OPTIONS);
    const note = orElse(options.note, noteFor(settings.holder, name));
    const call = resolveCall({ ...options, note }, settings, store.traits);
    this.#call = { ...call, waitMs: Number.POSITIVE_INFINITY };
  }

  campaign(options: { signal?: AbortSignal | undefined } = {}): Promise<HeldLease> {
    try {
      checkOptions(options, "the options of campaign", ["signal"]);
      const signal = checkSignal(options.signal);
      signal?.throwIfAborted();
      if (this.#lease !== null && isHeld(this.#lease)) return Promise.resolve(this.#lease);
      // A candidacy that was given up is about to end.
      if (this.#campaign === null || this.#campaign.giveUp.signal.aborted) {
        this.#campaign = this.#begin();
      }
      this.#campaign.callers++;
      return signal === undefined ? this.#campaign.lease : leaseOf(signal, this.#campaign);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  async resign(): Promise<ReleaseResult | null> {
    const resigned = new DOMException("resigned", "AbortError");
    const lease = this.#lease;
    const candidacy = this.#campaign;
    const running = this.#running;
    // All of this comes before any await: this candidate may be elected in the same moment, or lose and campaign
    // again, and no caller may get a lease that is about to be released.
    this.#lease = null;
    running?.over.abort(resigned);
    candidacy?.giveUp.abort(resigned);
    await running?.ended;
    await candidacy?.lease.catch(() => {});
    return lease === null ? null : lease.release();
  }

  async *observe(
    options: { every?: Duration | undefined; signal?: AbortSignal | undefined } = {},
  ): AsyncIterableIterator<Leader | null> {
    checkOptions(options, "the options of observe", ["every", "signal"]);
    const everyMs = parseDuration(orElse(options.every, POLL_EVERY_MS), "every", { min: 1 });
    const signal = checkSignal(options.signal);
    const { closing, runtime } = this.#context;
    let last: bigint | null | undefined;
    let failingSinceMs: number | null = null;
    // The store notifies us where it can. A poll every `everyMs` finds what a notification missed.
    const notification = new Notification();
    const { store, requests } = this.#context;
    const unobserve = store.observe?.(requests.toStoreName(this.name), () => notification.notify());
    try {
      while (!closing.aborted) {
        signal?.throwIfAborted();
        const lookedAtMs = runtime.clock.elapsedMs();
        try {
          const leader = await this.#leader();
          failingSinceMs = null;
          if (last === undefined || last !== (leader?.token ?? null)) {
            last = leader?.token ?? null;
            yield leader;
          }
        } catch (error) {
          if (closing.aborted) return;
          // Neither the pause between two polls nor the consumer's own time is an outage.
          failingSinceMs ??= lookedAtMs;
          const failingMs = runtime.clock.elapsedMs() - failingSinceMs;
          if (!HoldfastError.is(error) || !error.retryable || failingMs > this.#call.ttlMs) {
            throw error;
          }
        }
        await this.#sleep(everyMs, signal, notification);
      }
    } finally {
      unobserve?.();
    }
  }

  async runAsLeader<T>(
    fn: (lease: Lease, stop: AbortSignal) => T | Promise<T>,
    options: { signal?: AbortSignal | undefined } = {},
  ): Promise<T> {
    checkOptions(options, "the options of runAsLeader", ["signal"]);
    checkWork(fn, "runAsLeader");
    const signal = checkSignal(options.signal);
    if (this.#running !== null) {
      throw new InvalidArgumentError(
        "runAsLeader is already running for this election object; wait for its end, or make another election object",
      );
    }
    const over = new AbortController();
    const { promise: ended, resolve: end } = deferred();
    this.#running = { ended, over };
    const undo = follow(over, signal);
    try {
      for (;;) {
        const lease = await this.campaign({ signal: over.signal });
        const term = await this.#serve(lease, fn, over.signal);
        if (term !== "lost") return term.value;
      }
    } finally {
      undo();
      this.#running = null;
      end();
    }
  }

  /** One term. `lost`: it ended with the loss of leadership. */
  async #serve<T>(
    lease: HeldLease,
    fn: (lease: Lease, stop: AbortSignal) => T | Promise<T>,
    over: AbortSignal,
  ): Promise<"lost" | { value: T }> {
    // Since the election, the lease may have been lost or released, or the caller may no longer want to lead.
    if (over.aborted || !isHeld(lease)) {
      await this.#giveBack(lease, () => lease.abandon());
      over.throwIfAborted();
      return "lost";
    }
    const stop = unlimitedController();
    const undo = [lease.signal, over].map((one) => follow(stop, one));
    let serves = true;
    lease.beforeRelease(() => {
      if (serves) stop.abort(new DOMException("leadership was given back", "AbortError"));
    });
    const end = async (): Promise<void> => {
      for (const one of undo) one();
      serves = false;
      await this.#giveBack(lease, () => lease.release());
    };
    let value: T;
    try {
      value = await fn(lease, stop.signal);
    } catch (error) {
      await end();
      if (isLossOf(error, lease)) return "lost";
      throw error;
    }
    await end();
    return lease.state === "lost" ? "lost" : { value };
  }

  /** The reply to the release may be the first notice of a loss. */
  async #giveBack(lease: HeldLease, release: () => Promise<ReleaseResult>): Promise<void> {
    await release();
    // This candidate may have been elected again meanwhile.
    if (this.#lease === lease) this.#lease = null;
  }

  #begin(): Candidacy {
    const giveUp = new AbortController();
    const lease = this.#waitForElection(giveUp.signal).finally(() => {
      if (this.#campaign === candidacy) this.#campaign = null;
    });
    const candidacy: Candidacy = { lease, giveUp, callers: 0 };
    return candidacy;
  }

  async #waitForElection(givenUp: AbortSignal): Promise<HeldLease> {
    const waiter = new Waiter(this.#context, [this.name], { ...this.#call, signal: givenUp });
    const [lease] = (await waiter.acquire())!;
    // The candidacy was given up at the moment of the election.
    if (givenUp.aborted) {
      await lease!.abandon();
      throw givenUp.reason;
    }
    this.#lease = lease!;
    return lease!;
  }

  async #leader(): Promise<Leader | null> {
    const first = (await inspectName(this.#context, this.name))?.holders[0];
    return first === undefined || first.closed
      ? null
      : { holder: first.holder, token: first.token };
  }

  /** Keeps the process alive, as the wait for a lease does. */
  #sleep(ms: number, signal: AbortSignal | undefined, notification: Notification): Promise<void> {
    const { runtime, closing } = this.#context;
    // The consumer of the last leader may have caused any of these.
    if (closing.aborted || signal?.aborted || notification.take()) return Promise.resolve();
    return new Promise((resolve) => {
      const wake = (): void => {
        timer.cancel();
        closing.removeEventListener("abort", wake);
        ignoreSignal?.();
        notification.take();
        resolve();
      };
      notification.wake = wake;
      const timer = runtime.clock.after(ms, wake);
      timer.keepAlive(true);
      closing.addEventListener("abort", wake);
      const ignoreSignal = signal && onAbort(signal, wake);
    });
  }
}

interface Candidacy {
  readonly lease: Promise<HeldLease>;
  readonly giveUp: AbortController;
  callers: number;
}

/** The lease, unless the caller's signal aborts before. A candidacy of several callers ends with the last of them. */
function leaseOf(signal: AbortSignal, candidacy: Candidacy): Promise<HeldLease> {
  return new Promise((resolve, reject) => {
    const leave = (): void => {
      if (--candidacy.callers === 0) candidacy.giveUp.abort(signal.reason);
      else reject(signal.reason);
    };
    candidacy.lease.finally(onAbort(signal, leave)).then(resolve, reject);
    // A subscriber of the event `asked` may have aborted it.
    if (signal.aborted) leave();
  });
}

/**
 * Whether the error was caused by the loss: it was thrown by `assertHeld`, or it is, however wrapped, our own abort
 * or a fence's refusal after the loss.
 */
function isLossOf(error: unknown, lease: HeldLease): boolean {
  if (error instanceof LeaseLostError && error.lockName === lease.name) {
    if (error.token === lease.token && error.reason !== "released") return true;
  }
  // The state goes by the clock: after a stop of the process, the signal aborts only when its timer runs.
  if (lease.state !== "lost") return false;
  for (let one = error; one instanceof Error; one = one.cause) {
    if (isAbortOf(one, lease.signal.reason) || one instanceof StaleTokenError) return true;
  }
  return false;
}

const isHeld = ({ state }: Lease): boolean => state === "held" || state === "jeopardy";

function deferred(): { promise: Promise<void>; resolve: () => void } {
  let resolve!: () => void;
  const promise = new Promise<void>((done) => {
    resolve = done;
  });
  return { promise, resolve };
}

/** `deadlocks` identifies holders by their labels: candidates of one process for several elections need different ones. */
function noteFor(holder: string, name: string): string | undefined {
  const roomBytes = HOLDER_BYTES - Buffer.byteLength(`${holder} ()`);
  const note = `candidate for ${name}`;
  return Buffer.byteLength(note) <= roomBytes ? note : undefined;
}
