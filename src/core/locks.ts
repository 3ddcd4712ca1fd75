import type { EnterableFence } from "../fence/fence.js";
import { type Deadlock, findDeadlocks, inBoth } from "../primitives/deadlocks.js";
import { type Election, type ElectionOptions, StoreElection } from "../primitives/election.js";
import {
  acquireAll,
  MULTI_OPTIONS,
  type MultiLease,
  type MultiOptions,
} from "../primitives/multi.js";
import { type OnceOptions, type OnceResult, once } from "../primitives/once.js";
import { join, shareWithin } from "../primitives/reentry.js";
import { type Semaphore, StoreSemaphore } from "../primitives/semaphore.js";
import { unlimitedController } from "./abort.js";
import { reasonOf } from "./cause.js";
import type { Clock, Timer } from "./clock.js";
import { Commands, type Context } from "./commands.js";
import { AcquireTimeoutError, HoldfastError, InvalidArgumentError } from "./errors.js";
import { emit } from "./events.js";
import { closeOnExit } from "./exit.js";
import { HeldLease } from "./held-lease.js";
import type { Lease } from "./lease.js";
import { holderOf, type NameStatus, statusOf } from "./name-status.js";
import {
  ACQUIRE_OPTIONS,
  type AcquireOptions,
  type Call,
  checkOnUnavailable,
  defaultHolder,
  type LocksOptions,
  type OnUnavailable,
  refuseIfCannot,
  resolveCall,
  resolveSettings,
} from "./options.js";
import { type Runtime, systemRuntime } from "./runtime.js";
import { type HolderInfo, modeOf, type NameInfo, type Store, type Traits } from "./store.js";
import { checkOnLost, type OnLost, optionsAndFn, workUnder } from "./under.js";
import { UnprotectedLease } from "./unprotected.js";
import {
  checkName,
  checkNumber,
  checkOptions,
  checkText,
  type Duration,
  orElse,
  parseDuration,
  show,
} from "./validate.js";
import { assertOpen, Waiter } from "./waiter.js";
import { Watchdog } from "./watchdog.js";

export interface WithLockOptions extends AcquireOptions {
  /** Entered with the lease before `fn` runs. */
  fence?: EnterableFence | undefined;
  /** What the fence calls it; the lock's name by default. */
  resource?: string | undefined;
  /** When `fn` succeeds but the lease was lost on the way: reject (the default), or return the value. */
  onLost?: OnLost | undefined;
  onUnavailable?: OnUnavailable | undefined;
}

export interface ListOptions {
  prefix?: string | undefined;
  limit?: number | undefined;
}

export interface WithAllOptions extends MultiOptions {
  onLost?: OnLost | undefined;
}

export interface Locks extends AsyncDisposable {
  readonly traits: Traits;
  /** Waits for the name; AcquireTimeoutError when it stays busy. */
  acquire(name: string, options?: AcquireOptions): Promise<Lease>;
  /** Asks once; null when busy. */
  tryAcquire(name: string, options?: Omit<AcquireOptions, "wait">): Promise<Lease | null>;
  withLock<T>(name: string, fn: (lease: Lease) => T | Promise<T>): Promise<T>;
  withLock<T>(
    name: string,
    options: WithLockOptions | undefined,
    fn: (lease: Lease) => T | Promise<T>,
  ): Promise<T>;
  /** All of the names or none, within one wait, without ever waiting in a circle. */
  acquireAll(names: readonly string[], options?: MultiOptions): Promise<MultiLease>;
  withAll<T>(names: readonly string[], fn: (lease: MultiLease) => T | Promise<T>): Promise<T>;
  withAll<T>(
    names: readonly string[],
    options: WithAllOptions | undefined,
    fn: (lease: MultiLease) => T | Promise<T>,
  ): Promise<T>;
  /** So many at a time, instead of one. */
  semaphore(name: string, options: { permits: number }): Semaphore;
  /** One leader at a time. */
  election(name: string, options?: ElectionOptions): Election;
  /** Runs `fn` unless somebody, anywhere, has begun it within the period. */
  once<T>(
    name: string,
    options: OnceOptions,
    fn: (lease: Lease) => T | Promise<T>,
  ): Promise<OnceResult<T>>;
  /** Who holds it, who waits, and who was made to give it up lately; null when there is nothing to tell. */
  inspect(name: string): Promise<NameStatus | null>;
  /** Names in use, in order; at most `limit` (1,000). */
  list(options?: ListOptions): Promise<readonly NameStatus[]>;
  /** Who waits in a circle, each for what the next one holds; by the labels of holders. */
  deadlocks(): Promise<readonly Deadlock[]>;
  /** Takes the name from whoever holds it; they learn it at their next renewal. Returns who that was. */
  forceRelease(name: string, options: { why: string }): Promise<readonly HolderInfo[]>;
  /**
   * Releases every lease, rejects waiters, leaves no timer or socket. Work under a lease is told by
   * its signal, and has `grace` (0) to end before its name is given back. A later call with a
   * shorter `grace` shortens it.
   */
  close(options?: { grace?: Duration | undefined }): Promise<void>;
}

/** As many names as are looked at for deadlocks. */
const MOST_NAMES = 100_000;

export function createLocks(store: Store, options: LocksOptions = {}): Locks {
  return createLocksOn(systemRuntime(), store, options);
}

/** With time or chance of one's own: for tests. */
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
  readonly #staysOnExit: () => void;
  readonly #grace: Grace;
  #closing: Promise<void> | null = null;

  constructor(runtime: Runtime, store: Store, options: LocksOptions) {
    const settings = resolveSettings(options, store.traits, defaultHolder(++made));
    const watchdog = new Watchdog(store, runtime);
    const commands = new Commands(store, settings, runtime, watchdog);
    const closing = this.#closer.signal;
    this.#context = { store, settings, runtime, watchdog, commands, closing };
    this.#grace = new Grace(runtime.clock);
    const exit = settings.releaseOnExit;
    this.#staysOnExit =
      exit === null
        ? () => {}
        : closeOnExit({
            signals: exit.signals,
            close: (hurry) => this.close({ grace: hurry ? 0 : exit.graceMs }),
          });
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
      throw new InvalidArgumentError("tryAcquire has no option wait: it asks once");
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
    const { fence, resource = name, onLost, onUnavailable, ...rest } = options;
    const whenLost = checkOnLost(onLost);
    const unavailable = this.#checkFailOpen(onUnavailable, fence, options.resource);
    let lease: Lease;
    try {
      lease = await this.acquire(name, rest);
    } catch (error) {
      if (unavailable === "run" && isUnavailable(error))
        return fn(this.#unprotected(name, rest, error));
      throw error;
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
    const [given, fn] = optionsAndFn(optionsOrFn, maybeFn, "withAll");
    checkOptions(given, "the options of withAll", [...MULTI_OPTIONS, "onLost"]);
    const { onLost, ...rest } = given;
    const whenLost = checkOnLost(onLost);
    const lease = await this.acquireAll(names, rest);
    return workUnder(lease, whenLost, async () => fn(lease));
  }

  semaphore(name: string, options: { permits: number }): Semaphore {
    checkOptions(options, "the options of semaphore", ["permits"]);
    return new StoreSemaphore(this.#context, checkName(name), options.permits);
  }

  election(name: string, options?: ElectionOptions): Election {
    return new StoreElection(this.#context, this, name, options);
  }

  async once<T>(
    name: string,
    options: OnceOptions,
    fn: (lease: Lease) => T | Promise<T>,
  ): Promise<OnceResult<T>> {
    return once(this.#context, name, options, fn);
  }

  async inspect(name: string): Promise<NameStatus | null> {
    const { store, commands } = this.#context;
    assertOpen(this.#context);
    const key = commands.key(checkName(name));
    const info = await commands.run("inspect", () => store.inspect(key));
    return info === null ? null : this.#statusOf({ ...info, name });
  }

  async list(options: ListOptions = {}): Promise<readonly NameStatus[]> {
    assertOpen(this.#context);
    checkOptions(options, "the options of list", ["prefix", "limit"]);
    const prefix = checkText(orElse(options.prefix, ""), "prefix", 0, 255);
    const limit = checkNumber(orElse(options.limit, 1_000), "limit", {
      min: 1,
      max: MOST_NAMES,
      integer: true,
    });
    return (await this.#list(prefix, limit)).map((info) => this.#statusOf(info));
  }

  async deadlocks(): Promise<readonly Deadlock[]> {
    assertOpen(this.#context);
    const first = await this.#list("", MOST_NAMES);
    if ((await findDeadlocks(first)).length === 0) return [];
    // A list may be of several moments.
    const second = await this.#list("", MOST_NAMES);
    return findDeadlocks(await inBoth(first, second));
  }

  async forceRelease(name: string, options: { why: string }): Promise<readonly HolderInfo[]> {
    const { store, commands, settings } = this.#context;
    assertOpen(this.#context);
    refuseIfCannot(store.traits, "revoke", "forceRelease");
    checkOptions(orElse(options, { why: "" }), "the options of forceRelease", ["why"]);
    const by = { holder: settings.holder, why: checkText(options?.why, "why", 1, 255) };
    const key = commands.key(checkName(name));
    const holders = await commands.run("revoke", () => store.revoke(key, by));
    const revoked = holders.map((holder) => holderOf(holder, settings.tokenOffset));
    for (const { holder, token } of revoked) {
      emit("revoked", settings.logger, () => ({
        name,
        token,
        holder,
        by: by.holder,
        why: by.why,
      }));
    }
    return revoked;
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
    const { watchdog, store, commands } = this.#context;
    this.#staysOnExit();
    // From here on no waiter accepts a grant.
    this.#closer.abort();
    // A lease that is being woken, and whose listener calls this, is back on the agenda then.
    await null;
    const entries = [...watchdog.agenda.entries()];
    // Waiters first: a lease that is released would be handed to one of them, for nothing.
    for (const entry of entries) if (entry instanceof Waiter) entry.close();
    const leases = entries.filter((entry) => entry instanceof HeldLease);
    await Promise.all(leases.map((lease) => lease.close(this.#grace)));
    this.#grace.endWithin(0);
    await commands.close();
    await commands.run("close", () => store.close());
  }

  #call(name: string, options: AcquireOptions | undefined): Call {
    assertOpen(this.#context);
    checkName(name);
    return resolveCall(options, this.#context.settings, this.#context.store.traits);
  }

  #checkFailOpen(
    onUnavailable: OnUnavailable | undefined,
    fence: EnterableFence | undefined,
    resource: string | undefined,
  ): OnUnavailable {
    const { settings } = this.#context;
    const checked = checkOnUnavailable(onUnavailable, settings.onUnavailable, settings.purpose);
    if (fence === undefined) {
      if (resource === undefined) return checked;
      throw new InvalidArgumentError("resource is for a fence, and there is none");
    }
    if (typeof fence?.enter !== "function") {
      throw new InvalidArgumentError(
        `fence is ${show(fence)}; it must have enter(tx, resource, lease)`,
      );
    }
    if (checked === "throw") return checked;
    throw new InvalidArgumentError(
      'a fence needs a token, and with onUnavailable "run" there may be none; say onUnavailable: "throw" for this call',
    );
  }

  #unprotected(name: string, options: AcquireOptions, cause: Error): Lease {
    const { settings, store } = this.#context;
    const call = resolveCall(options, settings, store.traits);
    const { holder } = call;
    emit("unprotected", settings.logger, () => ({ name, holder, cause: reasonOf(cause) }));
    return new UnprotectedLease({ name, holder, mode: modeOf(call) }, cause);
  }

  async #list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    const { store, commands } = this.#context;
    const infos = await commands.run("list", () => store.list(commands.key(prefix), limit));
    return infos.map((info) => ({ ...info, name: commands.nameOf(info.name) }));
  }

  #statusOf(info: NameInfo): NameStatus {
    return statusOf(info, this.#context.settings.tokenOffset);
  }
}

/** How long work may go on while its locks close. */
class Grace {
  readonly over: Promise<void>;
  readonly #clock: Clock;
  #endsAtMs = Number.POSITIVE_INFINITY;
  #timer: Timer | null = null;
  #end!: () => void;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.over = new Promise((resolve) => {
      this.#end = resolve;
    });
  }

  get ms(): number {
    return Math.max(0, this.#endsAtMs - this.#clock.elapsedMs());
  }

  /** Unless it ends earlier. */
  endWithin(ms: number): void {
    const endsAtMs = this.#clock.elapsedMs() + ms;
    // After the machine slept, the end may be over though its timer has yet to fire: 0 cancels that too.
    if (endsAtMs >= this.#endsAtMs && ms > 0) return;
    this.#endsAtMs = Math.min(endsAtMs, this.#endsAtMs);
    this.#timer?.cancel();
    if (ms === 0) this.#end();
    else {
      this.#timer = this.#clock.after(ms, this.#end);
      this.#timer.keepAlive(true);
    }
  }
}

const WITH_LOCK_OPTIONS = [...ACQUIRE_OPTIONS, "fence", "resource", "onLost", "onUnavailable"];

const isUnavailable = (error: unknown): error is HoldfastError =>
  HoldfastError.is(error) && error.code === "STORE_UNAVAILABLE" && error.retryable;
