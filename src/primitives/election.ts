import type { Context } from "../core/commands.js";
import { HoldfastError, InvalidArgumentError } from "../core/errors.js";
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
  /** Gives up leadership or candidacy; work of `runAsLeader` is stopped first. Null: there was none. */
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

const OPTIONS = acquireOptionsBut("wait", "signal", "mode", "renew", "reentrant");
const LOOK_EVERY_MS = 1_000;

export class StoreElection implements Election {
  readonly name: string;
  readonly #context: Context;
  readonly #locks: Locks;
  readonly #options: AcquireOptions;
  #campaign: { readonly lease: Promise<Lease>; readonly giveUp: AbortController } | null = null;
  #lease: Lease | null = null;
  /** What `runAsLeader` is at. */
  #running: { readonly ended: Promise<void>; readonly stop: AbortController } | null = null;

  constructor(context: Context, locks: Locks, name: string, options: ElectionOptions = {}) {
    this.#context = context;
    this.#locks = locks;
    this.name = checkName(name);
    assertOpen(context);
    resolveCall(options, context.settings, context.store.traits, OPTIONS);
    const note = orElse(options.note, noteFor(context.settings.holder, name));
    this.#options = { ...options, note, wait: Number.POSITIVE_INFINITY };
  }

  campaign(options: { signal?: AbortSignal | undefined } = {}): Promise<Lease> {
    try {
      checkOptions(options, "the options of campaign", ["signal"]);
      const signal = options.signal === undefined ? undefined : checkSignal(options.signal);
      signal?.throwIfAborted();
      if (this.#lease !== null && isHeld(this.#lease)) return Promise.resolve(this.#lease);
      this.#campaign ??= this.#begin();
      return signal === undefined ? this.#campaign.lease : this.#until(signal, this.#campaign);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  async resign(): Promise<ReleaseResult | null> {
    const resigned = new DOMException("resigned", "AbortError");
    const lease = this.#lease;
    const candidacy = this.#campaign;
    this.#running?.stop.abort(resigned);
    await this.#running?.ended;
    candidacy?.giveUp.abort(resigned);
    // It may have been elected in the same moment.
    await candidacy?.lease.catch(() => {});
    const held = this.#lease ?? lease;
    this.#lease = null;
    return held === null ? null : held.release();
  }

  async *observe(
    options: { every?: Duration | undefined; signal?: AbortSignal | undefined } = {},
  ): AsyncIterableIterator<Leader | null> {
    checkOptions(options, "the options of observe", ["every", "signal"]);
    const everyMs = parseDuration(orElse(options.every, LOOK_EVERY_MS), "every", { min: 1 });
    const signal = options.signal === undefined ? undefined : checkSignal(options.signal);
    const { closing, runtime, settings } = this.#context;
    let last: bigint | null | undefined;
    let answeredAtMs = runtime.clock.elapsedMs();
    while (!closing.aborted) {
      signal?.throwIfAborted();
      try {
        const leader = await this.#leader();
        answeredAtMs = runtime.clock.elapsedMs();
        if (last === undefined || last !== (leader?.token ?? null)) {
          last = leader?.token ?? null;
          yield leader;
        }
      } catch (error) {
        if (closing.aborted) return;
        // What was last said is as old as a lease can be: it may no longer be so.
        const oldMs = runtime.clock.elapsedMs() - answeredAtMs;
        if (!HoldfastError.is(error) || !error.retryable || oldMs > settings.defaults.ttlMs) {
          throw error;
        }
      }
      await this.#sleep(everyMs, signal);
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
    for (;;) {
      const lease = await this.campaign(options);
      const term = await this.#serve(lease, fn, options.signal);
      if (term !== "lost") return term.value;
    }
  }

  /** One term: `lost` when it ended because leadership did. */
  async #serve<T>(
    lease: Lease,
    fn: (lease: Lease, stop: AbortSignal) => T | Promise<T>,
    signal: AbortSignal | undefined,
  ): Promise<"lost" | { value: T }> {
    if (this.#running !== null) {
      throw new InvalidArgumentError("runAsLeader is at work already: one at a time");
    }
    const stop = new AbortController();
    const { promise: ended, resolve: end } = deferred();
    this.#running = { ended, stop };
    const undo = [lease.signal, signal].map((one) => follow(stop, one));
    try {
      const value = await fn(lease, stop.signal);
      return lease.signal.aborted ? "lost" : { value };
    } catch (error) {
      if (lease.signal.aborted && isAbortOf(error, lease.signal.reason)) return "lost";
      throw error;
    } finally {
      for (const one of undo) one();
      await lease.release();
      this.#lease = null;
      this.#running = null;
      end();
    }
  }

  #begin(): { lease: Promise<Lease>; giveUp: AbortController } {
    const giveUp = new AbortController();
    const lease = this.#locks
      .acquire(this.name, { ...this.#options, signal: giveUp.signal })
      .then((elected) => {
        this.#lease = elected;
        return elected;
      })
      .finally(() => {
        this.#campaign = null;
      });
    return { lease, giveUp };
  }

  /** The candidacy of several callers ends with the last of them; here it ends with this one. */
  async #until(
    signal: AbortSignal,
    { lease, giveUp }: { lease: Promise<Lease>; giveUp: AbortController },
  ): Promise<Lease> {
    const undo = follow(giveUp, signal);
    return lease.finally(undo);
  }

  async #leader(): Promise<Leader | null> {
    const first = (await this.#locks.inspect(this.name))?.holders[0];
    return first === undefined || first.closed
      ? null
      : { holder: first.holder, token: first.token };
  }

  /** Somebody waits for what comes after it, as for a lease: it keeps the process alive. */
  #sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
    const { runtime, closing } = this.#context;
    return new Promise((resolve) => {
      const wake = (): void => {
        timer.cancel();
        closing.removeEventListener("abort", wake);
        signal?.removeEventListener("abort", wake);
        resolve();
      };
      const timer = runtime.clock.after(ms, wake);
      timer.keepAlive(true);
      closing.addEventListener("abort", wake);
      signal?.addEventListener("abort", wake);
    });
  }
}

const isHeld = ({ state }: Lease): boolean => state === "held" || state === "jeopardy";

/** Aborts the one with the other; returns how to undo it. */
function follow(controller: AbortController, signal: AbortSignal | undefined): () => void {
  if (signal === undefined) return () => {};
  const abort = (): void => controller.abort(signal.reason);
  if (signal.aborted) abort();
  else signal.addEventListener("abort", abort, { once: true });
  return () => signal.removeEventListener("abort", abort);
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
