import { AsyncResource } from "node:async_hooks";
import { onAbort } from "../core/abort.js";
import { contextOf } from "../core/context.js";
import { AcquireTimeoutError, ClosedError, QueueFullError } from "../core/errors.js";
import type { Lease } from "../core/lease.js";
import { LeaseView } from "../core/lease-view.js";
import { type AcquireOptions, acquireOptionsBut } from "../core/options.js";
import { LAST_REPLY_MS } from "../core/reply-timeout.js";
import { type Runtime, systemRuntime } from "../core/runtime.js";
import { resolveCall } from "../core/settings.js";
import {
  checkName,
  checkNumber,
  checkOptions,
  checkSignal,
  type Duration,
  orElse,
  parseDuration,
} from "../core/validate.js";
import { optionsAndFn, workUnder } from "../core/work.js";
import type { Locks } from "../locks.js";
import { inspectName } from "../primitives/inspection.js";

/** Options of `keyedQueue`. Those of `acquire` apply to the lease of a key. */
export interface KeyedQueueOptions
  extends Pick<AcquireOptions, "ttl" | "renew" | "maxHold" | "note" | "abortBefore"> {
  /** The most tasks of a key that wait in this process. Default 1,000. */
  most?: number | undefined;
  /** The most tasks that run under one lease before other processes get their turn. Default 100. */
  turnTasks?: number | undefined;
  /** No task begins under a lease that is held for longer than this. Default 1 s. */
  turnTime?: Duration | undefined;
}

/** Options of `run`. */
export interface QueueRunOptions {
  /** How long the task may wait for its turn; `0`: it runs now, or fails. Default `Infinity`. */
  wait?: Duration | undefined;
  /** Removes the task while it waits; has no effect once it runs. */
  signal?: AbortSignal | undefined;
}

/** Tasks that run in order, one at a time for each key. Tasks of different keys run side by side. */
export interface KeyedQueue<L> extends AsyncDisposable {
  /**
   * Runs `fn` after all earlier tasks of the key, in the asynchronous context of this call, and resolves to its
   * result. `fn` gets the lease of the key, whose listeners are called only while `fn` runs, or null in a queue
   * without locks. Rejects with the error of `fn`; with
   * `LeaseLostError` if the lease was lost while `fn` ran (a task that has not begun is not affected: it gets another
   * lease); with `AcquireTimeoutError` or `StoreUnavailableError` if its turn did not come within `wait`; with
   * `QueueFullError` if `most` tasks of the key wait in this process, or 5,000 waiters in the store; with
   * `ClosedError`, and with the signal's reason. Inside `fn`, do not await another task of the same key, nor `close`:
   * both wait for `fn`.
   */
  run<T>(key: string, fn: (lease: L) => T | Promise<T>): Promise<T>;
  run<T>(
    key: string,
    options: QueueRunOptions | undefined,
    fn: (lease: L) => T | Promise<T>,
  ): Promise<T>;
  /** How many tasks wait in this process, for the key or for all. */
  waiting(key?: string): number;
  /**
   * Takes no more tasks, and resolves when all that were taken have ended. Tasks that have not begun within
   * `grace` (default `Infinity`) are rejected with `ClosedError`.
   */
  close(options?: { grace?: Duration | undefined }): Promise<void>;
}

interface Task {
  /** With `wait: 0`: it runs only if the key is free now. */
  readonly asksOnce: boolean;
  /** Calls `ended` before the caller can learn of the end. */
  readonly run: (lease: Lease | null, ended: () => void) => Promise<void>;
  readonly fail: (error: unknown) => void;
}

interface Lane {
  /** Those that have not begun. */
  readonly tasks: Set<Task>;
  isRunning: boolean;
  /** Aborts when no task waits for the lease any more; null unless the lane waits for it. */
  acquiring: AbortController | null;
  /** The lease under which its tasks run. */
  lease: Lease | null;
  readonly ended: Promise<void>;
}

const LEASE_OPTIONS = acquireOptionsBut("wait", "signal", "mode", "atLeast", "reentrant");

/**
 * Makes a queue whose tasks run in order, one at a time for each key: on all machines that use the same locks, or
 * without locks in this process only. Tasks of one process keep their order; across processes, the store's queue
 * of waiters decides, and a process may run several of its tasks under one lease (`turnTasks`, `turnTime`). The
 * key is the name of the lock, so `locks.withLock` of that name excludes the tasks too.
 *
 * Throws `InvalidArgumentError` for a bad option.
 *
 * @example
 * ```ts
 * import { connect } from "holdfast";
 * import { keyedQueue } from "holdfast/lockfree";
 *
 * const locks = await connect("redis://127.0.0.1:6379");
 * const queue = keyedQueue(locks);
 * await queue.run("account:7", async (lease) => {
 *   await db.book(entry, lease.token);
 * });
 * await queue.close(); // runs what is queued
 * ```
 */
export function keyedQueue(locks: Locks, options?: KeyedQueueOptions): KeyedQueue<Lease>;
export function keyedQueue(
  locks?: undefined,
  options?: Pick<KeyedQueueOptions, "most">,
): KeyedQueue<null>;
export function keyedQueue(
  locks?: Locks,
  options?: KeyedQueueOptions,
): KeyedQueue<Lease> | KeyedQueue<null> {
  // A null that was meant to be a `Locks` must not make a queue of this process alone.
  if (locks !== undefined) contextOf(locks);
  return new LaneQueue(locks ?? null, options) as KeyedQueue<Lease> | KeyedQueue<null>;
}

export class LaneQueue implements KeyedQueue<Lease | null> {
  readonly #locks: Locks | null;
  readonly #runtime: Runtime;
  readonly #lanes = new Map<string, Lane>();
  /** Tasks whose wait is over, and which ask the store for the reason. */
  readonly #timedOut = new Set<Promise<void>>();
  readonly #most: number;
  readonly #turnTasks: number;
  readonly #turnMs: number;
  readonly #leaseOptions: AcquireOptions;
  #isClosed = false;

  constructor(locks: Locks | null, options: KeyedQueueOptions = {}, runtime?: Runtime) {
    this.#locks = locks;
    this.#runtime = runtime ?? (locks === null ? systemRuntime() : contextOf(locks).runtime);
    const known = locks === null ? ["most"] : ["most", "turnTasks", "turnTime", ...LEASE_OPTIONS];
    checkOptions(options, "the options of keyedQueue", known);
    const { most, turnTasks, turnTime, ...rest } = options;
    const rule = { min: 1, max: 1_000_000, integer: true };
    this.#most = checkNumber(orElse(most, 1_000), "most", rule);
    this.#turnTasks = checkNumber(orElse(turnTasks, 100), "turnTasks", rule);
    this.#turnMs = parseDuration(orElse(turnTime, 1_000), "turnTime", { min: 0 });
    if (locks !== null) {
      // Now, and not only when a task acquires.
      const { settings, store } = contextOf(locks);
      resolveCall(rest, settings, store.traits);
    }
    this.#leaseOptions = rest;
  }

  async run<T>(
    key: string,
    optionsOrFn: QueueRunOptions | undefined | ((lease: Lease | null) => T | Promise<T>),
    maybeFn?: (lease: Lease | null) => T | Promise<T>,
  ): Promise<T> {
    const [options, fn] = optionsAndFn(optionsOrFn, maybeFn, "run");
    checkOptions(options, "the options of run", ["wait", "signal"]);
    const signal = checkSignal(options.signal);
    const wait = orElse(options.wait, Number.POSITIVE_INFINITY);
    const waitMs = parseDuration(wait, "wait", { min: 0, infinite: true });
    checkName(key);
    if (this.#isClosed) throw new ClosedError("queue");
    signal?.throwIfAborted();
    const lane = this.#lanes.get(key);
    if (lane !== undefined && lane.tasks.size >= this.#most) {
      throw new QueueFullError(key, lane.tasks.size, "process");
    }
    if (waitMs === 0 && lane !== undefined && (lane.isRunning || lane.tasks.size > 0)) {
      throw new AcquireTimeoutError(key, 0, lane.lease?.holder ?? null);
    }
    // A lane runs its tasks in the flow of the caller that began it: there, a task of another caller could join that
    // caller's lease, and would see its AsyncLocalStorage values.
    const caller = new AsyncResource("holdfast.task", { requireManualDestroy: true });
    return new Promise<T>((resolve, reject) => {
      const task: Task = {
        asksOnce: waitMs === 0,
        run: async (lease, ended) => {
          stopWaiting();
          await caller
            .runInAsyncScope(() => runTask(lease, fn))
            .then(
              (value) => {
                ended();
                resolve(value);
              },
              (error) => {
                ended();
                reject(error);
              },
            );
        },
        fail: (error) => {
          stopWaiting();
          reject(error);
        },
      };
      const leave = (error: unknown): void => {
        if (this.#remove(key, task)) task.fail(error);
      };
      const timer =
        waitMs === 0 || waitMs === Number.POSITIVE_INFINITY
          ? null
          : this.#runtime.clock.after(waitMs, () => this.#timeOut(key, task, waitMs));
      timer?.keepAlive(true);
      const ignoreSignal =
        signal === undefined ? () => {} : onAbort(signal, () => leave(signal.reason));
      const stopWaiting = (): void => {
        timer?.cancel();
        ignoreSignal();
      };
      this.#add(key, task);
    });
  }

  waiting(key?: string): number {
    if (key !== undefined) return this.#lanes.get(key)?.tasks.size ?? 0;
    return [...this.#lanes.values()].reduce((sum, { tasks }) => sum + tasks.size, 0);
  }

  async close(options: { grace?: Duration | undefined } = {}): Promise<void> {
    checkOptions(options, "the options of close", ["grace"]);
    const grace = orElse(options.grace, Number.POSITIVE_INFINITY);
    const graceMs = parseDuration(grace, "grace", { min: 0, infinite: true });
    this.#isClosed = true;
    const { clock } = this.#runtime;
    const drop = (): void => {
      for (const [key, { tasks }] of this.#lanes) {
        for (const task of [...tasks])
          if (this.#remove(key, task)) task.fail(new ClosedError("queue"));
      }
    };
    const timer = graceMs === Number.POSITIVE_INFINITY ? null : clock.after(graceMs, drop);
    timer?.keepAlive(true);
    await Promise.all([...this.#lanes.values()].map(({ ended }) => ended));
    timer?.cancel();
    await Promise.all(this.#timedOut);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #add(key: string, task: Task): void {
    const lane = this.#lanes.get(key);
    if (lane !== undefined) {
      lane.tasks.add(task);
      return;
    }
    let ended!: () => void;
    const added: Lane = {
      tasks: new Set([task]),
      isRunning: false,
      acquiring: null,
      lease: null,
      ended: new Promise((resolve) => {
        ended = resolve;
      }),
    };
    this.#lanes.set(key, added);
    void this.#serve(key, added).then(ended);
  }

  /** False if the task has begun, or has left. */
  #remove(key: string, task: Task): boolean {
    const lane = this.#lanes.get(key);
    if (lane?.tasks.delete(task) !== true) return false;
    if (lane.tasks.size === 0) lane.acquiring?.abort();
    return true;
  }

  /** Runs the tasks of a key until there are none. Never rejects. */
  async #serve(key: string, lane: Lane): Promise<void> {
    for (;;) {
      if (lane.tasks.size === 0) {
        this.#lanes.delete(key);
        return;
      }
      if (this.#locks === null) await this.#runTurn(lane, null);
      else await this.#takeTurn(key, lane, this.#locks);
    }
  }

  async #takeTurn(key: string, lane: Lane, locks: Locks): Promise<void> {
    let lease: Lease;
    const acquiring = new AbortController();
    lane.acquiring = acquiring;
    const [first] = lane.tasks;
    const wait = first!.asksOnce ? 0 : Number.POSITIVE_INFINITY;
    try {
      const { signal } = acquiring;
      lease = await locks.acquire(key, { ...this.#leaseOptions, wait, signal });
    } catch (error) {
      if (acquiring.signal.aborted) return;
      // The reply to a task that asks once is not for those that were added since: they wait.
      if (wait > 0) takeFirst(lane.tasks)?.fail(error);
      else if (lane.tasks.delete(first!)) first!.fail(error);
      return;
    } finally {
      lane.acquiring = null;
    }
    lane.lease = lease;
    await this.#runTurn(lane, lease);
    lane.lease = null;
    await lease.release();
  }

  async #runTurn(lane: Lane, lease: Lease | null): Promise<void> {
    const { clock } = this.#runtime;
    const endsAtMs = clock.elapsedMs() + this.#turnMs;
    for (let tasks = 0; lease === null || tasks < this.#turnTasks; tasks++) {
      // A caller that awaits one task and then adds the next gets it into this turn.
      if (lane.tasks.size === 0 && lease !== null) await new Promise(setImmediate);
      if (lease !== null && tasks > 0 && clock.elapsedMs() >= endsAtMs) return;
      // No task has begun, so none fails: the next turn acquires the name again.
      if (lease !== null && !isProved(lease)) return;
      const task = takeFirst(lane.tasks);
      if (task === null) return;
      lane.isRunning = true;
      await task.run(lease, () => {
        lane.isRunning = false;
      });
    }
  }

  #timeOut(key: string, task: Task, waitMs: number): void {
    const lane = this.#lanes.get(key);
    if (lane === undefined || !this.#remove(key, task)) return;
    if (lane.acquiring === null) {
      task.fail(new AcquireTimeoutError(key, waitMs, lane.lease?.holder ?? null));
      return;
    }
    const failed = this.#whyNotGranted(key, waitMs).then((reason) => {
      task.fail(reason);
      this.#timedOut.delete(failed);
    });
    this.#timedOut.add(failed);
  }

  /** "Held by another" and "the store is down" are different errors: asks the store which it is. */
  async #whyNotGranted(key: string, waitMs: number): Promise<unknown> {
    try {
      const status = await inspectName(contextOf(this.#locks!), key, LAST_REPLY_MS);
      return new AcquireTimeoutError(key, waitMs, status?.holders[0]?.holder ?? null);
    } catch (error) {
      return error;
    }
  }
}

/** Reads the clock, and throws nothing. */
function isProved(lease: Lease): boolean {
  try {
    lease.assertHeld();
    return true;
  } catch {
    return false;
  }
}

/** Runs under a lease that outlives the task. Rejects with the loss if the lease was lost meanwhile. */
async function runTask<T>(
  lease: Lease | null,
  fn: (lease: Lease | null) => T | Promise<T>,
): Promise<T> {
  if (lease === null) return fn(lease);
  const view = new LeaseView(lease);
  const held = {
    signal: lease.signal,
    // Checked before the task left the queue: a second check could fail a task that has not begun.
    assertHeld: () => {},
    release: async () => {
      const result = lease.state === "lost" ? "lost" : "released";
      view.unlisten();
      return result as "lost" | "released";
    },
  };
  return workUnder(held, "throw", async () => fn(view));
}

function takeFirst(tasks: Set<Task>): Task | null {
  for (const task of tasks) {
    tasks.delete(task);
    return task;
  }
  return null;
}
