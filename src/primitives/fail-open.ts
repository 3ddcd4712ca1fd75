import { unlimitedController } from "../core/abort.js";
import { reasonOf } from "../core/cause.js";
import type { Context } from "../core/context.js";
import { HoldfastError, InvalidArgumentError, LeaseLostError } from "../core/errors.js";
import { emit } from "../core/events.js";
import type { Lease, LeaseState, ReleaseResult } from "../core/lease.js";
import type { OnUnavailable } from "../core/options.js";
import { type Call, checkOnUnavailable, type Settings } from "../core/settings.js";
import { type ClaimMode, modeOf } from "../core/store.js";
import { show } from "../core/validate.js";
import type { EnterableFence } from "../fence/fence.js";

interface FenceOptions {
  readonly fence?: EnterableFence | undefined;
  readonly resource?: string | undefined;
}

interface FailOpenOptions extends FenceOptions {
  readonly onUnavailable?: OnUnavailable | undefined;
}

/**
 * Whether a call throws or runs without the lock when the store is unavailable. A fence needs a
 * token, so it refuses `"run"`.
 */
export function checkFailOpen(settings: Settings, options: FailOpenOptions): OnUnavailable {
  const { onUnavailable, fence } = options;
  const checked = checkOnUnavailable(onUnavailable, settings.onUnavailable, settings.purpose);
  checkFence(options);
  if (fence === undefined || checked === "throw") return checked;
  throw new InvalidArgumentError(
    'a fence needs a token, and with onUnavailable: "run" there may be none; set onUnavailable: "throw" for this call',
  );
}

/** Throws InvalidArgumentError for a fence that can't be entered, and for a resource without a fence. */
export function checkFence({ fence, resource }: FenceOptions): void {
  if (fence === undefined && resource !== undefined) {
    throw new InvalidArgumentError("the option resource needs the option fence");
  }
  if (fence !== undefined && typeof fence?.enter !== "function") {
    throw new InvalidArgumentError(
      `fence is ${show(fence)}; it must have enter(tx, resource, lease)`,
    );
  }
}

/**
 * Whether the store can't be used for now. A refusal for good does not count: running without the lock would hide a
 * mistake.
 */
export const isUnavailable = (error: unknown): error is HoldfastError =>
  HoldfastError.is(error) && error.code === "STORE_UNAVAILABLE" && error.retryable;

/** Stands in for the lease of work that runs without the lock. */
export function unprotectedLease(
  { settings, store }: Context,
  name: string,
  call: Call,
  cause: Error,
): Lease {
  const { holder } = call;
  const mode = modeOf(call);
  emit("unprotected", settings.logger, () => {
    return { store: store.traits.store, name, mode, holder, cause: reasonOf(cause) };
  });
  return new UnprotectedLease({ name, holder, mode }, cause);
}

/**
 * The lease that `fn` gets when it runs without the lock. Its fields say that it is not protected,
 * and its token is below all others.
 */
class UnprotectedLease implements Lease {
  readonly name: string;
  readonly holder: string;
  readonly mode: ClaimMode;
  readonly token = 0n;
  readonly floor = 0n;
  readonly permits = 1;
  readonly state: LeaseState = "lost";
  readonly remainingMs = 0;
  /** Never aborts, because there is no lease to lose. */
  readonly signal: AbortSignal = unlimitedController().signal;
  readonly #cause: Error;

  constructor(of: { name: string; holder: string; mode: ClaimMode }, cause: Error) {
    this.name = of.name;
    this.holder = of.holder;
    this.mode = of.mode;
    this.#cause = cause;
  }

  assertHeld(): void {
    throw new LeaseLostError(this, "expired", {
      detail: 'it never was one: the store was unavailable, and onUnavailable is "run"',
      cause: this.#cause,
    });
  }

  on(): this {
    return this;
  }

  off(): this {
    return this;
  }

  async renew(): Promise<void> {
    this.assertHeld();
  }

  async release(): Promise<ReleaseResult> {
    return "lost";
  }

  async [Symbol.asyncDispose](): Promise<void> {}

  sequencer(): string {
    this.assertHeld();
    return "";
  }

  toJSON(): ReturnType<Lease["toJSON"]> {
    const { name, holder, mode } = this;
    return { name, token: "0", floor: "0", holder, mode };
  }
}
