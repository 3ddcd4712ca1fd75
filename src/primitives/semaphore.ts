import type { Context } from "../core/commands.js";
import { AcquireTimeoutError } from "../core/errors.js";
import type { Lease } from "../core/lease.js";
import {
  type AcquireOptions,
  acquireOptionsBut,
  type Call,
  refuseIfCannot,
  resolveCall,
} from "../core/options.js";
import { LOCK_LIMIT } from "../core/store.js";
import { checkOnLost, type OnLost, optionsAndFn, workUnder } from "../core/under.js";
import { checkNumber, checkOptions, orElse } from "../core/validate.js";
import { assertOpen, mismatch, Waiter } from "../core/waiter.js";

export interface PermitOptions extends Omit<AcquireOptions, "mode" | "reentrant"> {
  /** How many to take. Default 1. */
  permits?: number | undefined;
}

export interface WithPermitsOptions extends PermitOptions {
  onLost?: OnLost | undefined;
}

/** So many at a time, instead of one. Each lease holds some permits and has a token of its own. */
export interface Semaphore {
  readonly name: string;
  /** How many there are. */
  readonly permits: number;
  /** Waits; AcquireTimeoutError when too few are free for too long. */
  acquire(options?: PermitOptions): Promise<Lease>;
  /** Asks once; null when too few are free. */
  tryAcquire(options?: Omit<PermitOptions, "wait">): Promise<Lease | null>;
  withPermits<T>(fn: (lease: Lease) => T | Promise<T>): Promise<T>;
  withPermits<T>(
    options: WithPermitsOptions | undefined,
    fn: (lease: Lease) => T | Promise<T>,
  ): Promise<T>;
  /** Changes how many there are, here and in the store. Who holds some keeps them. */
  resize(permits: number): Promise<void>;
}

const OPTIONS = [...acquireOptionsBut("mode", "reentrant"), "permits"];
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
    checkOptions(options, "the options of withPermits", [...OPTIONS, "onLost"]);
    const { onLost, ...rest } = options;
    const checked = checkOnLost(onLost);
    const lease = await this.acquire(rest);
    return workUnder(lease, checked, async () => fn(lease));
  }

  async resize(permits: number): Promise<void> {
    const { store, commands } = this.#context;
    assertOpen(this.#context);
    const limit = checkPermits(permits, "permits", MOST_PERMITS);
    const key = commands.key(this.name);
    const before = await commands.run("resize", () => store.resize(key, limit));
    if (before === LOCK_LIMIT) throw mismatch(this.name, limit, before);
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
