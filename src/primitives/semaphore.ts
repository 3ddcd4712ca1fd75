import { limitMismatch } from "../core/acquisition.js";
import { assertOpen, type Context } from "../core/context.js";
import { AcquireTimeoutError } from "../core/errors.js";
import type { Lease } from "../core/lease.js";
import { type AcquireOptions, acquireOptionsBut } from "../core/options.js";
import { type Call, refuseIfCannot, resolveCall } from "../core/settings.js";
import { LOCK_LIMIT } from "../core/store.js";
import { checkNumber, checkOptions, orElse } from "../core/validate.js";
import { Waiter } from "../core/waiter.js";
import { checkOnLost, type OnLost, optionsAndFn, workUnder } from "../core/work.js";
import type { EnterableFence } from "../fence/fence.js";
import { checkFence } from "./fail-open.js";

/** Options of one acquire of permits. */
export interface PermitOptions extends Omit<AcquireOptions, "mode" | "reentrant"> {
  /** How many permits to take. Default 1. */
  permits?: number | undefined;
}

/** Options of `withPermits`. */
export interface WithPermitsOptions extends PermitOptions {
  /** Entered with the lease before `fn` runs. Default: no fence. Holders of permits do not refuse each other. */
  fence?: EnterableFence | undefined;
  /** The fence's name for the resource. Default: the semaphore's name. */
  resource?: string | undefined;
  /** When `fn` succeeds but the lease was lost on the way: reject, or return the value. Default `"throw"`. */
  onLost?: OnLost | undefined;
}

/** A lock with several permits. Each lease holds some of them and has its own token. */
export interface Semaphore {
  /** The name of the semaphore. */
  readonly name: string;
  /** How many permits there are. */
  readonly permits: number;
  /**
   * Waits for permits. Rejects with `AcquireTimeoutError` when too few are free for `wait`, and with
   * `InvalidArgumentError` when the name is in use with another number of permits.
   */
  acquire(options?: PermitOptions): Promise<Lease>;
  /** Claims once. Returns null when too few permits are free. */
  tryAcquire(options?: Omit<PermitOptions, "wait">): Promise<Lease | null>;
  /** Acquires permits, runs `fn`, and releases. Rejects as `withLock` does. */
  withPermits<T>(fn: (lease: Lease) => T | Promise<T>): Promise<T>;
  withPermits<T>(
    options: WithPermitsOptions | undefined,
    fn: (lease: Lease) => T | Promise<T>,
  ): Promise<T>;
  /** Changes how many permits there are, here and in the store. Holders keep theirs. */
  resize(permits: number): Promise<void>;
}

const OPTIONS = [...acquireOptionsBut("mode", "reentrant"), "permits"];
const WITH_PERMITS_OPTIONS = [...OPTIONS, "fence", "resource", "onLost"];
const TRY_OPTIONS = OPTIONS.filter((option) => option !== "wait");
const MOST_PERMITS = LOCK_LIMIT - 1;

export class StoreSemaphore implements Semaphore {
  readonly name: string;
  readonly #context: Context;
  #limit: number;

  constructor(context: Context, name: string, permits: unknown) {
    refuseIfCannot(context.store.traits, "permits", "semaphores");
    this.#context = context;
    this.name = name;
    this.#limit = checkPermits(permits, "permits", MOST_PERMITS);
  }

  get permits(): number {
    return this.#limit;
  }

  async acquire(options: PermitOptions = {}): Promise<Lease> {
    const waiter = new Waiter(this.#context, [this.name], this.#call(options, OPTIONS));
    const leases = await waiter.acquire();
    if (leases === null) throw new AcquireTimeoutError(this.name, 0, waiter.busy.holder);
    return leases[0]!;
  }

  async tryAcquire(options: Omit<PermitOptions, "wait"> = {}): Promise<Lease | null> {
    const call = { ...this.#call(options, TRY_OPTIONS), waitMs: 0 };
    const leases = await new Waiter(this.#context, [this.name], call).acquire();
    return leases?.[0] ?? null;
  }

  async withPermits<T>(
    optionsOrFn: WithPermitsOptions | undefined | ((lease: Lease) => T | Promise<T>),
    maybeFn?: (lease: Lease) => T | Promise<T>,
  ): Promise<T> {
    const [options, fn] = optionsAndFn(optionsOrFn, maybeFn, "withPermits");
    checkOptions(options, "the options of withPermits", WITH_PERMITS_OPTIONS);
    checkFence(options);
    const { fence, resource = this.name, onLost, ...rest } = options;
    const checked = checkOnLost(onLost);
    const lease = await this.acquire(rest);
    const enter = async (): Promise<void> => fence?.enter(undefined, resource, lease);
    return workUnder(lease, checked, async () => fn(lease), fence && enter);
  }

  async resize(permits: number): Promise<void> {
    const { requests } = this.#context;
    assertOpen(this.#context);
    const limit = checkPermits(permits, "permits", MOST_PERMITS);
    const key = requests.toStoreName(this.name);
    const before = await requests.run("resize", (store) => store.resize(key, limit));
    if (before === LOCK_LIMIT) throw limitMismatch(this.name, limit, before);
    this.#limit = limit;
  }

  #call(given: PermitOptions, known: readonly string[]): Call {
    const { settings, store } = this.#context;
    assertOpen(this.#context);
    checkOptions(given, "the options of a call", known);
    const { permits, ...options } = given;
    return {
      ...resolveCall(options, settings, store.traits),
      permits: checkPermits(orElse(permits, 1), "permits", this.#limit),
      limit: this.#limit,
    };
  }
}

const checkPermits = (value: unknown, what: string, max: number): number =>
  checkNumber(value, what, { min: 1, max, integer: true });
