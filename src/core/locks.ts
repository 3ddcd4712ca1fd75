import type { EnterableFence } from "../fence/fence.js";
import { Commands, type Context } from "./commands.js";
import {
  AcquireTimeoutError,
  ClosedError,
  InvalidArgumentError,
  LeaseLostError,
} from "./errors.js";
import { HeldLease } from "./held-lease.js";
import type { Lease } from "./lease.js";
import {
  ACQUIRE_OPTIONS,
  type AcquireOptions,
  type LocksOptions,
  refuseIfCannot,
  resolveCall,
  resolveSettings,
} from "./options.js";
import { type Runtime, systemRuntime } from "./runtime.js";
import type { HolderInfo, NameInfo, Store, Traits } from "./store.js";
import {
  checkName,
  checkNumber,
  checkOneOf,
  checkOptions,
  checkText,
  orElse,
  show,
} from "./validate.js";
import { Waiter } from "./waiter.js";
import { Watchdog } from "./watchdog.js";

export interface WithLockOptions extends AcquireOptions {
  /** Entered with the lease before `fn` runs. */
  fence?: EnterableFence | undefined;
  /** What the fence calls it; the lock's name by default. */
  resource?: string | undefined;
  /** When `fn` succeeds but the lease was lost on the way: reject (the default), or return the value. */
  onLost?: "throw" | "return" | undefined;
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
  /** Who holds it and who waits; null when nobody does. */
  inspect(name: string): Promise<NameInfo | null>;
  /** Names in use, in order; at most `limit` (1,000). */
  list(options?: { prefix?: string; limit?: number }): Promise<readonly NameInfo[]>;
  /** Takes the name from whoever holds it; they learn it at their next renewal. Returns who that was. */
  forceRelease(name: string, options: { why: string }): Promise<readonly HolderInfo[]>;
  /** Releases every lease, rejects waiters, leaves no timer or socket. */
  close(): Promise<void>;
}

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
      `the store is ${show(store)}; pass memoryStore(), sqliteStore(…) or the like, or use connect(url)`,
    );
  }
  return new StoreLocks({ ...systemRuntime(), ...runtime }, store, options);
}

class StoreLocks implements Locks {
  readonly #context: Context;
  #closing: Promise<void> | null = null;

  constructor(runtime: Runtime, store: Store, options: LocksOptions) {
    const settings = resolveSettings(options, store.traits);
    const watchdog = new Watchdog(store, runtime);
    const commands = new Commands(store, settings, runtime, watchdog);
    this.#context = { store, settings, runtime, watchdog, commands };
  }

  get traits(): Traits {
    return this.#context.store.traits;
  }

  async acquire(name: string, options?: AcquireOptions): Promise<Lease> {
    const waiter = new Waiter(this.#context, checkName(name), this.#call(options));
    const lease = await waiter.acquire();
    if (lease === null) throw new AcquireTimeoutError(name, 0, waiter.lastHolder);
    return lease;
  }

  async tryAcquire(name: string, options?: Omit<AcquireOptions, "wait">): Promise<Lease | null> {
    if ((options as AcquireOptions | undefined)?.wait !== undefined) {
      throw new InvalidArgumentError("tryAcquire has no option wait: it asks once");
    }
    const call = { ...this.#call(options), waitMs: 0 };
    return new Waiter(this.#context, checkName(name), call).acquire();
  }

  async withLock<T>(
    name: string,
    optionsOrFn: WithLockOptions | undefined | ((lease: Lease) => T | Promise<T>),
    maybeFn?: (lease: Lease) => T | Promise<T>,
  ): Promise<T> {
    const fn = typeof optionsOrFn === "function" ? optionsOrFn : maybeFn;
    const options = typeof optionsOrFn === "function" ? {} : orElse(optionsOrFn, {});
    if (typeof fn !== "function") {
      throw new InvalidArgumentError(`fn is ${show(fn)}; withLock needs a function to run`);
    }
    checkOptions(options, "the options of withLock", [
      ...ACQUIRE_OPTIONS,
      "fence",
      "resource",
      "onLost",
    ]);
    const { fence, resource = name, onLost = "throw", ...acquireOptions } = options;
    checkOneOf(onLost, "onLost", ["throw", "return"]);
    if (fence !== undefined && typeof fence?.enter !== "function") {
      throw new InvalidArgumentError(
        `fence is ${show(fence)}; it must have enter(tx, resource, lease)`,
      );
    }
    if (fence === undefined && options.resource !== undefined) {
      throw new InvalidArgumentError("resource is for a fence, and there is none");
    }
    const lease = await this.acquire(name, acquireOptions);
    let value: T;
    try {
      await fence?.enter(undefined, resource, lease);
      lease.assertHeld();
      value = await fn(lease);
    } catch (error) {
      await lease.release();
      throw lossBehind(error, lease);
    }
    await lease.release();
    const loss = lossOf(lease);
    if (loss === null || onLost === "return") return value;
    throw new LeaseLostError(lease, loss.reason, { value, cause: loss });
  }

  async inspect(name: string): Promise<NameInfo | null> {
    const { store, commands } = this.#context;
    this.#assertOpen();
    const key = commands.key(checkName(name));
    const info = await commands.run("inspect", () => store.inspect(key));
    return info === null ? null : this.#forUsers(info);
  }

  async list(options: { prefix?: string; limit?: number } = {}): Promise<readonly NameInfo[]> {
    const { store, commands } = this.#context;
    this.#assertOpen();
    checkOptions(options, "the options of list", ["prefix", "limit"]);
    const prefix = commands.key(checkText(orElse(options.prefix, ""), "prefix", 0, 255));
    const limit = checkNumber(orElse(options.limit, 1_000), "limit", {
      min: 1,
      max: 100_000,
      integer: true,
    });
    const infos = await commands.run("list", () => store.list(prefix, limit));
    return infos.map((info) => this.#forUsers(info));
  }

  async forceRelease(name: string, options: { why: string }): Promise<readonly HolderInfo[]> {
    const { store, commands, settings } = this.#context;
    this.#assertOpen();
    refuseIfCannot(store.traits, "revoke", "forceRelease");
    checkOptions(orElse(options, { why: "" }), "the options of forceRelease", ["why"]);
    const by = { holder: settings.holder, why: checkText(options?.why, "why", 1, 255) };
    const key = commands.key(checkName(name));
    const holders = await commands.run("revoke", () => store.revoke(key, by));
    return holders.map((holder) => this.#withOffset(holder));
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #close(): Promise<void> {
    const { watchdog, store, commands } = this.#context;
    // A lease that is being woken, and whose listener calls this, is back on the agenda then.
    await null;
    // Waiters first: a lease that is released would be handed to one of them.
    const entries = [...watchdog.agenda.entries()];
    const waiters = entries.filter((entry) => entry instanceof Waiter);
    const leases = entries.filter((entry) => entry instanceof HeldLease);
    await Promise.all([...waiters, ...leases].map((one) => one.close()));
    await commands.close();
    await commands.run("close", () => store.close());
  }

  #call(options: AcquireOptions | undefined): ReturnType<typeof resolveCall> {
    this.#assertOpen();
    return resolveCall(options, this.#context.settings, this.#context.store.traits);
  }

  #assertOpen(): void {
    if (this.#closing !== null) throw new ClosedError();
  }

  #forUsers(info: NameInfo): NameInfo {
    return {
      ...info,
      name: this.#context.commands.nameOf(info.name),
      holders: info.holders.map((holder) => this.#withOffset(holder)),
    };
  }

  #withOffset(holder: HolderInfo): HolderInfo {
    return { ...holder, token: holder.token + this.#context.settings.tokenOffset };
  }
}

function lossOf({ signal }: Lease): LeaseLostError | null {
  return signal.aborted ? (signal.reason as LeaseLostError) : null;
}

/** If what `fn` threw was our own abort, the loss is the news and the error its cause. */
function lossBehind(error: unknown, lease: Lease): unknown {
  const loss = lossOf(lease);
  if (loss === null || error === loss) return error;
  const isAbort = error instanceof Error && (error.name === "AbortError" || error.cause === loss);
  return isAbort ? new LeaseLostError(lease, loss.reason, { cause: error }) : error;
}
