import { unlimitedController } from "./core/abort.js";
import { Agenda } from "./core/agenda.js";
import { assertOpen, type Context, registerContext } from "./core/context.js";
import { AcquireTimeoutError, InvalidArgumentError } from "./core/errors.js";
import { closeOnExit } from "./core/exit.js";
import { Grace } from "./core/grace.js";
import { HeldLease } from "./core/held-lease.js";
import type { Lease } from "./core/lease.js";
import type { NameStatus } from "./core/name-status.js";
import {
  ACQUIRE_OPTIONS,
  type AcquireOptions,
  type LocksOptions,
  type OnUnavailable,
} from "./core/options.js";
import { Requests } from "./core/requests.js";
import { type Runtime, systemRuntime } from "./core/runtime.js";
import { type Call, defaultHolder, resolveCall, resolveSettings } from "./core/settings.js";
import { type HolderInfo, modeOf, type Store, type Traits } from "./core/store.js";
import { checkName, checkOptions, type Duration, parseDuration, show } from "./core/validate.js";
import { Waiter } from "./core/waiter.js";
import { Watchdog } from "./core/watchdog.js";
import { checkOnLost, type OnLost, optionsAndFn, workUnder } from "./core/work.js";
import type { EnterableFence } from "./fence/fence.js";
import type { Deadlock } from "./primitives/deadlocks.js";
import { type Election, type ElectionOptions, StoreElection } from "./primitives/election.js";
import { checkFailOpen, isUnavailable, unprotectedLease } from "./primitives/fail-open.js";
import {
  forceRelease,
  inspectName,
  type ListOptions,
  listDeadlocks,
  listNames,
} from "./primitives/inspection.js";
import {
  acquireAll,
  type MultiLease,
  type MultiOptions,
  type WithAllOptions,
  withAll,
} from "./primitives/multi.js";
import { type OnceOptions, type OnceResult, once } from "./primitives/once.js";
import { join, shareWithin } from "./primitives/reentry.js";
import { type Semaphore, StoreSemaphore } from "./primitives/semaphore.js";

/** Options of `withLock`. */
export interface WithLockOptions extends AcquireOptions {
  /** Entered with the lease before `fn` runs. Default: no fence. */
  fence?: EnterableFence | undefined;
  /** The fence's name for the resource. Default: the lock's name, without the namespace. */
  resource?: string | undefined;
  /** When `fn` succeeds but the lease was lost on the way: reject, or return the value. Default `"throw"`. */
  onLost?: OnLost | undefined;
  /** When the store is unavailable: reject, or run `fn` without the lock. Default: that of the `Locks`. */
  onUnavailable?: OnUnavailable | undefined;
}

/**
 * Locks on one store. Every method throws or rejects with `InvalidArgumentError` for a bad argument,
 * `UnsupportedError` where the store can't do it, `StoreUnavailableError` when the store can't be
 * used, and `ClosedError` after `close`.
 */
export interface Locks extends AsyncDisposable {
  /** The properties of the store, and what it can't do. */
  readonly traits: Traits;

  /**
   * Waits for the name and returns a lease, which is renewed until it is released or lost. Rejects
   * with `AcquireTimeoutError` when the name stays busy for `wait` (10 s), with `QueueFullError` when
   * too many wait already, and with the signal's reason when `signal` aborts.
   *
   * @example
   * await using lease = await locks.acquire("order:123", { ttl: "30s", wait: "10s" });
   * await db.save(order, lease.token, { signal: lease.signal });
   */
  acquire(name: string, options?: AcquireOptions): Promise<Lease>;

  /**
   * Claims once. Returns null when the name is busy.
   *
   * @example
   * const lease = await locks.tryAcquire("nightly-report");
   * if (lease !== null) await lease.release(); // this process was the first
   */
  tryAcquire(name: string, options?: Omit<AcquireOptions, "wait">): Promise<Lease | null>;

  /**
   * Acquires the name, runs `fn`, and releases. Rejects as `acquire` does, with the error of `fn`, or
   * with `LeaseLostError` when the lease was lost before `fn` ended, unless `onLost` is `"return"`.
   *
   * @example
   * await locks.withLock("order:123", { wait: "10s" }, async (lease) => {
   *   await db.save(order, lease.token, { signal: lease.signal });
   * });
   */
  withLock<T>(name: string, fn: (lease: Lease) => T | Promise<T>): Promise<T>;
  withLock<T>(
    name: string,
    options: WithLockOptions | undefined,
    fn: (lease: Lease) => T | Promise<T>,
  ): Promise<T>;

  /**
   * Acquires all of the names (at most 256) or none, within one `wait`. Calls never wait for each
   * other in a circle, in whatever order they give their names. Rejects as `acquire` does.
   *
   * @example
   * await using leases = await locks.acquireAll(["inventory:1", "payment:9"]);
   * await db.pay(leases.of("payment:9").token);
   */
  acquireAll(names: readonly string[], options?: MultiOptions): Promise<MultiLease>;

  /** Acquires all of the names, runs `fn`, and releases. Rejects as `withLock` does. */
  withAll<T>(names: readonly string[], fn: (lease: MultiLease) => T | Promise<T>): Promise<T>;
  withAll<T>(
    names: readonly string[],
    options: WithAllOptions | undefined,
    fn: (lease: MultiLease) => T | Promise<T>,
  ): Promise<T>;

  /**
   * A lock that has `permits` holders at a time, instead of one. All who use the name must give the
   * same number.
   *
   * @example
   * const gpus = locks.semaphore("gpu", { permits: 4 });
   * await using lease = await gpus.acquire({ permits: 2 });
   */
  semaphore(name: string, options: { permits: number }): Semaphore;

  /**
   * An election of one leader at a time.
   *
   * @example
   * const election = locks.election("scheduler");
   * await election.runAsLeader(async (lease, stop) => schedule(stop));
   */
  election(name: string, options?: ElectionOptions): Election;

  /**
   * Runs `fn` unless a run of it, on any machine, has begun within the period `every`. The result
   * says whether `fn` ran.
   *
   * @example
   * const result = await locks.once("daily-report", { every: "24h" }, async () => report());
   * if (!result.ran) scheduleAgain(result.nextInMs);
   */
  once<T>(
    name: string,
    options: OnceOptions,
    fn: (lease: Lease) => T | Promise<T>,
  ): Promise<OnceResult<T>>;

  /** Holders, waiters and recent forced releases of a name; null when there are none. */
  inspect(name: string): Promise<NameStatus | null>;

  /** Names in use, in order of their UTF-8 bytes; at most `limit` (1,000). */
  list(options?: ListOptions): Promise<readonly NameStatus[]>;

  /**
   * Circles of holders that wait for each other, by their labels. Rejects with `UnsupportedError` on a store that
   * does not know who waits (`traits.fair` is false).
   */
  deadlocks(): Promise<readonly Deadlock[]>;

  /**
   * Takes the name from all its holders, and returns them. They are notified at their next renewal.
   * `why` is shown to them and in `inspect`.
   */
  forceRelease(name: string, options: { why: string }): Promise<readonly HolderInfo[]>;

  /**
   * Releases every lease, rejects waiters, leaves no timer or socket. Work under a lease is notified
   * by its signal, and has `grace` (0) to end before its name is released. A later call with a
   * shorter `grace` shortens it.
   */
  close(options?: { grace?: Duration | undefined }): Promise<void>;
}

/**
 * Locks on a store that you have made. `connect` makes locks from a URL. Throws
 * `InvalidArgumentError` for a bad option, and `UnsupportedError` when the store can't serve the
 * `purpose`.
 *
 * @example
 * const locks = createLocks(redisStore(client), { ttl: "30s" });
 * await locks.withLock("order:123", async (lease) => save(order, lease.token));
 * await locks.close();
 */
export function createLocks(store: Store, options: LocksOptions = {}): Locks {
  return createLocksOn(systemRuntime(), store, options);
}

/** Like `createLocks`, with your own clock or randomness, for tests. */
export function createLocksOn(
  runtime: Partial<Runtime>,
  store: Store,
  options: LocksOptions = {},
): Locks {
  if (store === null || typeof store !== "object" || typeof store.claim !== "function") {
    throw new InvalidArgumentError(
      `the store is ${typeof store === "string" ? "a string" : show(store)}; pass memoryStore(), sqliteStore(…) or the like; for a URL use await connect(url)`,
    );
  }
  return new StoreLocks({ ...systemRuntime(), ...runtime }, store, options);
}

/** `Locks` made in this thread. */
let made = 0;

class StoreLocks implements Locks {
  readonly #context: Context;
  readonly #closer = unlimitedController();
  readonly #ignoreExit: () => void;
  readonly #grace: Grace;
  #closing: Promise<void> | null = null;

  constructor(runtime: Runtime, store: Store, options: LocksOptions) {
    const settings = resolveSettings(options, store.traits, defaultHolder(++made));
    const agenda = new Agenda(runtime.clock, () => watchdog.sendDue());
    const requests = new Requests(store, settings, runtime, agenda);
    const watchdog = new Watchdog(requests, runtime);
    this.#context = {
      store,
      settings,
      runtime,
      agenda,
      requests,
      watchdog,
      closing: this.#closer.signal,
      waiters: new Set(),
    };
    this.#grace = new Grace(runtime.clock);
    const exit = settings.releaseOnExit;
    this.#ignoreExit =
      exit === null
        ? () => {}
        : closeOnExit({
            signals: exit.signals,
            close: (isIdle) => this.close({ grace: isIdle ? 0 : exit.graceMs }),
          });
    store.open?.();
    registerContext(this, this.#context);
  }

  get traits(): Traits {
    return this.#context.store.traits;
  }

  async acquire(name: string, options?: AcquireOptions): Promise<Lease> {
    const call = this.#call(name, options);
    const joined = call.reentrant ? join(this, name, modeOf(call), call.signal) : null;
    if (joined !== null) return joined;
    const waiter = new Waiter(this.#context, [name], call);
    const leases = await waiter.acquire();
    if (leases === null) throw new AcquireTimeoutError(name, 0, waiter.busy.holder);
    return leases[0]!;
  }

  async tryAcquire(name: string, options?: Omit<AcquireOptions, "wait">): Promise<Lease | null> {
    if ((options as AcquireOptions | undefined)?.wait !== undefined) {
      throw new InvalidArgumentError("tryAcquire has no option wait: it claims once");
    }
    const call = { ...this.#call(name, options), waitMs: 0 };
    const joined = call.reentrant ? join(this, name, modeOf(call), call.signal) : null;
    if (joined !== null) return joined;
    const leases = await new Waiter(this.#context, [name], call).acquire();
    return leases?.[0] ?? null;
  }

  async withLock<T>(
    name: string,
    optionsOrFn: WithLockOptions | undefined | ((lease: Lease) => T | Promise<T>),
    maybeFn?: (lease: Lease) => T | Promise<T>,
  ): Promise<T> {
    const [options, fn] = optionsAndFn(optionsOrFn, maybeFn, "withLock");
    checkOptions(options, "the options of withLock", WITH_LOCK_OPTIONS);
    const { fence, resource = name, onLost, onUnavailable: _, ...rest } = options;
    const whenLost = checkOnLost(onLost);
    const { settings, store } = this.#context;
    const whenUnavailable = checkFailOpen(settings, options);
    let lease: Lease;
    try {
      lease = await this.acquire(name, rest);
    } catch (error) {
      if (whenUnavailable === "throw" || !isUnavailable(error)) throw error;
      const call = resolveCall(rest, settings, store.traits);
      return fn(unprotectedLease(this.#context, name, call, error));
    }
    return workUnder(
      lease,
      whenLost,
      async () =>
        // A lease that was joined is shared already.
        rest.reentrant === true && lease instanceof HeldLease
          ? shareWithin(this, lease, async () => fn(lease))
          : fn(lease),
      fence === undefined ? undefined : async () => fence.enter(undefined, resource, lease),
    );
  }

  async acquireAll(names: readonly string[], options?: MultiOptions): Promise<MultiLease> {
    return acquireAll(this.#context, names, options);
  }

  async withAll<T>(
    names: readonly string[],
    optionsOrFn: WithAllOptions | undefined | ((lease: MultiLease) => T | Promise<T>),
    maybeFn?: (lease: MultiLease) => T | Promise<T>,
  ): Promise<T> {
    return withAll(this.#context, names, optionsOrFn, maybeFn);
  }

  semaphore(name: string, options: { permits: number }): Semaphore {
    checkOptions(options, "the options of semaphore", ["permits"]);
    return new StoreSemaphore(this.#context, checkName(name), options.permits);
  }

  election(name: string, options?: ElectionOptions): Election {
    return new StoreElection(this.#context, name, options);
  }

  async once<T>(
    name: string,
    options: OnceOptions,
    fn: (lease: Lease) => T | Promise<T>,
  ): Promise<OnceResult<T>> {
    return once(this.#context, name, options, fn);
  }

  async inspect(name: string): Promise<NameStatus | null> {
    return inspectName(this.#context, name);
  }

  async list(options?: ListOptions): Promise<readonly NameStatus[]> {
    return listNames(this.#context, options);
  }

  async deadlocks(): Promise<readonly Deadlock[]> {
    return listDeadlocks(this.#context);
  }

  async forceRelease(name: string, options: { why: string }): Promise<readonly HolderInfo[]> {
    return forceRelease(this.#context, name, options);
  }

  close(options: { grace?: Duration | undefined } = {}): Promise<void> {
    try {
      checkOptions(options, "the options of close", ["grace"]);
      const graceMs =
        options.grace === undefined ? null : parseDuration(options.grace, "grace", { min: 0 });
      if (this.#closing === null || graceMs !== null) this.#grace.endWithin(graceMs ?? 0);
      this.#closing ??= this.#close();
      return this.#closing;
    } catch (error) {
      return Promise.reject(error);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #close(): Promise<void> {
    const { agenda, requests, waiters } = this.#context;
    this.#ignoreExit();
    // From here on no waiter accepts a grant.
    this.#closer.abort();
    // In a turn of its own: a listener may have called this while its lease is woken, and off the agenda.
    await null;
    // Waiters first: a released lease would be granted to one of them, for nothing. The last waiter first: a
    // ticket that is dropped may grant to those behind it.
    for (const waiter of [...waiters].reverse()) waiter.close();
    await Promise.all([...agenda.entries()].map((entry) => entry.close(this.#grace)));
    this.#grace.endWithin(0);
    await requests.close();
    await requests.run("close", (store) => store.close());
  }

  #call(name: string, options: AcquireOptions | undefined): Call {
    assertOpen(this.#context);
    checkName(name);
    return resolveCall(options, this.#context.settings, this.#context.store.traits);
  }
}

const WITH_LOCK_OPTIONS = [...ACQUIRE_OPTIONS, "fence", "resource", "onLost", "onUnavailable"];
