import { onAbort, unlimitedController } from "../core/abort.js";
import type { Context } from "../core/commands.js";
import {
  HoldfastError,
  InvalidArgumentError,
  LeaseLostError,
  StaleTokenError,
} from "../core/errors.js";
import type { HeldLease } from "../core/held-lease.js";
import type { Lease, ReleaseResult } from "../core/lease.js";
import type { Locks } from "../core/locks.js";
import {
  type AcquireOptions,
  acquireOptionsBut,
  HOLDER_BYTES,
  resolveCall,
} from "../core/options.js";
import { isAbortOf } from "../core/under.js";
import {
  checkName,
  checkOptions,
  checkSignal,
  type Duration,
  orElse,
  parseDuration,
  show,
} from "../core/validate.js";
import { assertOpen } from "../core/waiter.js";

/** How leadership is held: a lease, without an end to the wait for it. */
export type ElectionOptions = Pick<
  AcquireOptions,
  "ttl" | "maxHold" | "note" | "abortBefore" | "atLeast"
>;

export interface Leader {
  readonly holder: string;
  readonly token: bigint;
}

/** One leader at a time under a name, which is a lock's: its lease is the leadership. */
export interface Election {
  readonly name: string;
  /** Waits until elected. Called again, it is the same candidacy, or the same leadership. */
  campaign(options?: { signal?: AbortSignal | undefined }): Promise<Lease>;
  /**
   * Gives up leadership or candidacy; work of `runAsLeader` is stopped first. Null: it did not lead.
   * A campaign that is given up rejects with an AbortError.
   */
  resign(): Promise<ReleaseResult | null>;
  /** Who leads now, and each change: null when nobody does. A term shorter than `every` may be missed. */
  observe(options?: {
    every?: Duration | undefined;
    signal?: AbortSignal | undefined;
  }): AsyncIterableIterator<Leader | null>;
  /**
   * Runs `fn` while leader, and after a loss again in the next term. `stop` aborts when leadership
   * is lost, given up, or no longer wanted; `fn` must end then, and no other is begun before it has.
   */
  runAsLeader<T>(
    fn: (lease: Lease, stop: AbortSignal) => T | Promise<T>,
    options?: { signal?: AbortSignal | undefined },
  ): Promise<T>;
}

/** Kept until somebody takes it. */
class News {
  wake: (() => void) | null = null;
  #told = false;

  tell(): void {
    this.#told = true;
    this.wake?.();
  }

  take(): boolean {
    const told = this.#told;
    this.#told = false;
    this.wake = null;
    return told;
  }
}

const OPTIONS = acquireOptionsBut("wait", "signal", "mode", "renew", "reentrant");
const LOOK_EVERY_MS = 1_000;

export class StoreElection implements Election {
  readonly name: string;
  readonly #context: Context;
  readonly #locks: Locks;
  readonly #options: AcquireOptions;
  readonly #ttlMs: number;
  #campaign: Candidacy | null = null;
  #lease: HeldLease | null = null;
  /** `runAsLeader`, over all of its terms. `over` aborts when it is no longer wanted. */
  #running: { readonly ended: Promise<void>; readonly over: AbortController } | null = null;

  constructor(context: Context, locks: Locks, name: string, options: ElectionOptions = {}) {
    this.#context = context;
    this.#locks = locks;
    this.name = checkName(name);
    assertOpen(context);
    const { ttlMs } = resolveCall(options, context.settings, context.store.traits, OPTIONS);
    this.#ttlMs = ttlMs;
    const note = orElse(options.note, noteFor(context.settings.holder, name));
    this.#options = { ...options, note, wait: Number.POSITIVE_INFINITY };
  }

  campaign(options: { signal?: AbortSignal | undefined } = {}): Promise<HeldLease> {
    try {
      checkOptions(options, "the options of campaign", ["signal"]);
      const signal = options.signal === undefined ? undefined : checkSignal(options.signal);
      signal?.throwIfAborted();
      if (this.#lease !== null && isHeld(this.#lease)) return Promise.resolve(this.#lease);
      // One that was given up is as good as over.
      if (this.#campaign === null || this.#campaign.giveUp.signal.aborted) {
        this.#campaign = this.#begin();
      }
      this.#campaign.callers++;
      return signal === undefined ? this.#campaign.lease : until(signal, this.#campaign);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  async resign(): Promise<ReleaseResult | null> {
    const resigned = new DOMException("resigned", "AbortError");
    const lease = this.#lease;
    const candidacy = this.#campaign;
    const running = this.#running;
    // Before anything is waited for: it may be elected in the same moment, or lose and stand again,
    // and nobody may be given what is about to be released.
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
    const everyMs = parseDuration(orElse(options.every, LOOK_EVERY_MS), "every", { min: 1 });
    const signal = options.signal === undefined ? undefined : checkSignal(options.signal);
    const { closing, runtime } = this.#context;
    let last: bigint | null | undefined;
    let failingSinceMs: number | null = null;
    // Told by the store where it can; looked for all the same, more seldom than that is needed.
    const news = new News();
    const { store, commands } = this.#context;
    const unobserve = store.observe?.(commands.key(this.name), () => news.tell());
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
          // Neither the pause between two looks nor the consumer's own time is an outage.
          failingSinceMs ??= lookedAtMs;
          const failingMs = runtime.clock.elapsedMs() - failingSinceMs;
          if (!HoldfastError.is(error) || !error.retryable || failingMs > this.#ttlMs) {
            throw error;
          }
        }
        await this.#sleep(everyMs, signal, news);
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
    if (typeof fn !== "function") {
      throw new InvalidArgumentError(`fn is ${show(fn)}; runAsLeader needs a function to run`);
    }
    const signal = options.signal === undefined ? undefined : checkSignal(options.signal);
    if (this.#running !== null) {
      throw new InvalidArgumentError("runAsLeader is at work already: one at a time");
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

  /** One term: `lost` when it ended because leadership did. */
  async #serve<T>(
    lease: HeldLease,
    fn: (lease: Lease, stop: AbortSignal) => T | Promise<T>,
    over: AbortSignal,
  ): Promise<"lost" | { value: T }> {
    // Since it was elected, it may have been lost, given back, or no longer wanted.
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

  /** The answer to the release may be the first that is heard of a loss. */
  async #giveBack(lease: HeldLease, release: () => Promise<ReleaseResult>): Promise<void> {
    await release();
    // Somebody may have been elected again meanwhile.
    if (this.#lease === lease) this.#lease = null;
  }

  #begin(): Candidacy {
    const giveUp = new AbortController();
    const lease = this.#locks
      .acquire(this.name, { ...this.#options, signal: giveUp.signal })
      .then(async (lease) => {
        // It is not re-entrant.
        const elected = lease as HeldLease;
        // Given up in the moment of the election.
        if (giveUp.signal.aborted) {
          await elected.abandon();
          throw giveUp.signal.reason;
        }
        this.#lease = elected;
        return elected;
      })
      .finally(() => {
        if (this.#campaign === candidacy) this.#campaign = null;
      });
    const candidacy: Candidacy = { lease, giveUp, callers: 0 };
    return candidacy;
  }

  async #leader(): Promise<Leader | null> {
    const first = (await this.#locks.inspect(this.name))?.holders[0];
    return first === undefined || first.closed
      ? null
      : { holder: first.holder, token: first.token };
  }

  /** Somebody waits for what comes after it, as for a lease: it keeps the process alive. */
  #sleep(ms: number, signal: AbortSignal | undefined, news: News): Promise<void> {
    const { runtime, closing } = this.#context;
    // By whoever was told of a leader before.
    if (closing.aborted || signal?.aborted || news.take()) return Promise.resolve();
    return new Promise((resolve) => {
      const wake = (): void => {
        timer.cancel();
        closing.removeEventListener("abort", wake);
        ignoreSignal?.();
        news.take();
        resolve();
      };
      news.wake = wake;
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

/** The candidacy of several callers ends with the last of them. */
function until(signal: AbortSignal, candidacy: Candidacy): Promise<HeldLease> {
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

/** What `assertHeld` throws; or, after the loss, our own abort or a fence's refusal, however wrapped. */
function isLossOf(error: unknown, lease: HeldLease): boolean {
  if (error instanceof LeaseLostError && error.lockName === lease.name) {
    if (error.token === lease.token && error.reason !== "released") return true;
  }
  // By the clock: after a stop of the process, the signal aborts only when its timer runs.
  if (lease.state !== "lost") return false;
  for (let one = error; one instanceof Error; one = one.cause) {
    if (isAbortOf(one, lease.signal.reason) || one instanceof StaleTokenError) return true;
  }
  return false;
}

const isHeld = ({ state }: Lease): boolean => state === "held" || state === "jeopardy";

/** Aborts the one with the other; returns how to undo it. */
function follow(controller: AbortController, signal: AbortSignal | undefined): () => void {
  if (signal === undefined) return () => {};
  const abort = (): void => controller.abort(signal.reason);
  if (signal.aborted) abort();
  return onAbort(signal, abort);
}

function deferred(): { promise: Promise<void>; resolve: () => void } {
  let resolve!: () => void;
  const promise = new Promise<void>((done) => {
    resolve = done;
  });
  return { promise, resolve };
}

/** Candidates of one process for several offices are different people, to whoever looks for deadlocks. */
function noteFor(holder: string, name: string): string | undefined {
  const roomBytes = HOLDER_BYTES - Buffer.byteLength(`${holder} ()`);
  const note = `candidate for ${name}`;
  return Buffer.byteLength(note) <= roomBytes ? note : undefined;
}
