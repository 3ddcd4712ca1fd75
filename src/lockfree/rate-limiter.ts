import { follow } from "../core/abort.js";
import { assertOpen, type Context, contextOf } from "../core/context.js";
import { HoldfastError, InvalidArgumentError, RateLimitedError } from "../core/errors.js";
import { pause } from "../core/pause.js";
import { type MeterTake, MOST_METER_PRODUCT } from "../core/records.js";
import { LAST_REPLY_MS, startReplyTimeout } from "../core/reply-timeout.js";
import {
  checkName,
  checkNumber,
  checkOneOf,
  checkOptions,
  checkSignal,
  type Duration,
  orElse,
  parseDuration,
} from "../core/validate.js";
import type { Locks } from "../locks.js";
import { LaneQueue } from "./keyed-queue.js";
import { NamespaceRecords } from "./records.js";

/** The numbers of a limiter. All who use the name give the same. */
export interface RateLimiterOptions {
  /** How many units come back in each `per`, evenly. */
  limit: number;
  /** The period of `limit`. */
  per: Duration;
  /** How many units can be taken at once after a quiet time. Default: `limit`. */
  burst?: number | undefined;
  /** When the store can't be used: reject (fail closed), or allow (fail open). Default `"throw"`. */
  onUnavailable?: "throw" | "allow" | undefined;
}

/** Whether units were taken. */
export interface TakeResult {
  /** False: nothing was taken. */
  readonly allowed: boolean;
  /** Whole units that are left. */
  readonly remaining: number;
  /** When the same call can succeed, if nobody else takes; 0 if it was allowed. */
  readonly retryAfterMs: number;
  /** When the limiter has its whole burst again, if nobody takes. */
  readonly fullInMs: number;
  /** The store could not be used, and `onUnavailable` is `"allow"`: nothing was counted. */
  readonly unavailable: boolean;
}

/** Limits how often something happens, on all machines together. */
export interface RateLimiter {
  /** The name that all who share the limit give. */
  readonly name: string;
  /**
   * Takes `units` (1) if there are as many, in one request. 0 takes nothing and shows what is there. Rejects
   * with `StoreUnavailableError` unless `onUnavailable` is `"allow"`: then units may have been taken.
   */
  take(units?: number): Promise<TakeResult>;
  /**
   * Waits until it has taken the units. Callers of one limiter object are served in order. Rejects with
   * `RateLimitedError` as soon as it is known that they don't come within `wait` (default: that of the `Locks`),
   * with the signal's reason, with `QueueFullError` if 10,000 calls wait already, and as `take`.
   */
  waitFor(
    units?: number,
    options?: { wait?: Duration | undefined; signal?: AbortSignal | undefined },
  ): Promise<TakeResult>;
}

type MeterNumbers = Omit<MeterTake, "key" | "units">;

const OPTIONS = ["limit", "per", "burst", "onUnavailable"];
const MOST_UNITS = 1_000_000_000;
/** The most calls of `waitFor` that wait in one process. */
const MOST_WAITING = 10_000;
/** Why a call leaves the line. */
const BEHIND = new Error("its wait is over");

/**
 * Makes a limiter of `limit` units in each `per`, with a burst. The store counts by its own clock, exactly, in
 * one request for each call. Throws `InvalidArgumentError` for numbers that it can't count exactly, and
 * `UnsupportedError` on a store without meters.
 *
 * @example
 * ```ts
 * import { connect } from "holdfast";
 * import { rateLimiter } from "holdfast/lockfree";
 *
 * const locks = await connect("redis://127.0.0.1:6379");
 * const limiter = rateLimiter(locks, "mail", { limit: 100, per: "1m", burst: 20 });
 * const { allowed, retryAfterMs } = await limiter.take(1);
 * if (!allowed) console.log(`try again in ${retryAfterMs} ms`);
 * await limiter.waitFor(1, { wait: "5s" });
 * ```
 */
export function rateLimiter(locks: Locks, name: string, options: RateLimiterOptions): RateLimiter {
  return new MeterLimiter(locks, name, options);
}

class MeterLimiter implements RateLimiter {
  readonly name: string;
  readonly #context: Context;
  readonly #records: NamespaceRecords;
  readonly #meter: MeterNumbers;
  readonly #failsOpen: boolean;
  #queue: LaneQueue | null = null;
  /** When the store was asked for a caller that waits; null when it has replied. */
  #askedAtMs: number | null = null;
  /** The first in line waits for its units. */
  #isPausing = false;
  /** Calls whose wait is over, and whose turn may come with the next reply. */
  readonly #overdue = new Set<() => void>();
  /** When the limiter has its whole burst again, as the store last replied to a caller that waits. */
  #fullAtMs = 0;

  constructor(locks: Locks, name: string, options: RateLimiterOptions) {
    this.#context = contextOf(locks);
    this.#records = new NamespaceRecords(this.#context, "rateLimiter");
    this.name = checkName(name);
    checkOptions(options, "the options of rateLimiter", OPTIONS);
    this.#meter = meterOf(options);
    const onUnavailable = orElse(options.onUnavailable, "throw");
    this.#failsOpen = checkOneOf(onUnavailable, "onUnavailable", ["throw", "allow"]) === "allow";
  }

  take(units = 1): Promise<TakeResult> {
    return this.#take(units);
  }

  async #take(units: number, timeoutMs?: number): Promise<TakeResult> {
    const { limit, perUs, burst } = this.#meter;
    const take = { key: this.name, units: this.#checkUnits(units), limit, perUs, burst };
    try {
      const { allowed, remaining, retryAfterUs, fullInUs } = await this.#records.take(
        take,
        timeoutMs,
      );
      const [retryAfterMs, fullInMs] = [retryAfterUs / 1_000, fullInUs / 1_000];
      return { allowed, remaining, retryAfterMs, fullInMs, unavailable: false };
    } catch (error) {
      return this.#allowIfOutage(error);
    }
  }

  async waitFor(
    units = 1,
    options: { wait?: Duration | undefined; signal?: AbortSignal | undefined } = {},
  ): Promise<TakeResult> {
    this.#checkUnits(units);
    checkOptions(options, "the options of waitFor", ["wait", "signal"]);
    const signal = checkSignal(options.signal);
    const { settings, runtime, requests } = this.#context;
    const wait = orElse<Duration>(options.wait, settings.defaults.waitMs);
    const waitMs = parseDuration(wait, "wait", { min: 0, infinite: true });
    // One caller of this process asks the store, and the others wait behind it.
    this.#queue ??= new LaneQueue(null, { most: MOST_WAITING }, runtime);
    const { clock } = runtime;
    const endsAtMs = clock.elapsedMs() + waitMs;
    const turn = new AbortController();
    const ignoreSignal = follow(turn, signal);
    let stopTimeout = (): void => {};
    const giveUpIn = (ms: number): void => {
      stopTimeout = startReplyTimeout(clock, ms, giveUp);
    };
    const replyMs = waitMs === 0 ? requests.claimTimeoutMs(0) : LAST_REPLY_MS;
    let latestMs = Number.POSITIVE_INFINITY;
    // The wait is over. The reply to the call in front may be about to arrive, and make this one the first: it waits for
    // that, but for no longer than `replyMs` in all, because many calls with slow replies may be in front.
    const giveUp = (): void => {
      const nowMs = clock.elapsedMs();
      latestMs = Math.min(latestMs, nowMs + replyMs);
      const leftMs = Math.min(LAST_REPLY_MS - this.#silentMs(), latestMs - nowMs);
      if (this.#isPausing || leftMs <= 0) turn.abort(BEHIND);
      else {
        this.#overdue.add(giveUp);
        giveUpIn(leftMs);
      }
    };
    const stopWaiting = (): void => {
      stopTimeout();
      this.#overdue.delete(giveUp);
      ignoreSignal();
    };
    if (waitMs !== Number.POSITIVE_INFINITY) giveUpIn(waitMs);
    try {
      return await this.#queue.run(this.name, { signal: turn.signal }, () => {
        stopWaiting();
        return this.#takeUntil(endsAtMs, units, replyMs, signal);
      });
    } catch (error) {
      if (error !== BEHIND) throw error;
      return this.#giveUpBehind(units);
    } finally {
      stopWaiting();
    }
  }

  /** `replyMs`: how long the store has for a reply when the wait is over. */
  async #takeUntil(
    endsAtMs: number,
    units: number,
    replyMs: number,
    signal: AbortSignal | undefined,
  ): Promise<TakeResult> {
    const { clock } = this.#context.runtime;
    for (;;) {
      const askedAtMs = clock.elapsedMs();
      this.#askedAtMs = askedAtMs;
      const timeoutMs = Math.max(endsAtMs - askedAtMs, replyMs);
      const result = await this.#take(units, timeoutMs).finally(() => {
        this.#askedAtMs = null;
      });
      if (result.allowed) return result;
      const { retryAfterMs, fullInMs } = result;
      const nowMs = clock.elapsedMs();
      this.#fullAtMs = nowMs + fullInMs;
      if (retryAfterMs > endsAtMs - nowMs) {
        throw new RateLimitedError(this.name, units, retryAfterMs);
      }
      this.#isPausing = true;
      for (const giveUp of this.#overdue) giveUp();
      await this.#pause(retryAfterMs, signal).finally(() => {
        this.#isPausing = false;
      });
    }
  }

  /** Ends with the signal, and when the `Locks` closes. */
  async #pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
    const { runtime, closing } = this.#context;
    const end = new AbortController();
    const undo = [follow(end, signal), follow(end, closing)];
    try {
      await pause(runtime.clock, ms, end.signal);
    } catch (error) {
      assertOpen(this.#context);
      throw error;
    } finally {
      for (const ignore of undo) ignore();
    }
  }

  /** Ends a wait that times out while an earlier caller still waits for its units or for the store. */
  #giveUpBehind(units: number): TakeResult {
    const { runtime, requests } = this.#context;
    const nowMs = runtime.clock.elapsedMs();
    const silentMs = this.#silentMs();
    if (silentMs >= LAST_REPLY_MS) {
      return this.#allowIfOutage(requests.noReplyError("take from a meter", silentMs));
    }
    const { limit, perUs, burst } = this.#meter;
    const unitMs = perUs / 1_000 / limit;
    const retryAfterMs = Math.max(0, this.#fullAtMs - nowMs - (burst - units) * unitMs);
    throw new RateLimitedError(this.name, units, retryAfterMs, true);
  }

  /** How long the first in line has had no reply. */
  #silentMs(): number {
    const nowMs = this.#context.runtime.clock.elapsedMs();
    return nowMs - (this.#askedAtMs ?? nowMs);
  }

  #checkUnits(units: number): number {
    return checkNumber(units, "units", { min: 0, max: this.#meter.burst, integer: true });
  }

  #allowIfOutage(error: unknown): TakeResult {
    const isOutage = HoldfastError.is(error) && error.code === "STORE_UNAVAILABLE";
    if (!isOutage || !this.#failsOpen) throw error;
    const { burst } = this.#meter;
    return { allowed: true, remaining: burst, retryAfterMs: 0, fullInMs: 0, unavailable: true };
  }
}

/** The numbers by which a store counts. Throws InvalidArgumentError for numbers that it can't count exactly. */
export function meterOf({ limit, per, burst }: RateLimiterOptions): MeterNumbers {
  const rule = { min: 1, max: MOST_UNITS, integer: true };
  const meter = {
    limit: checkNumber(limit, "limit", rule),
    perUs: Math.round(parseDuration(per, "per", { min: 1 }) * 1_000),
    burst: checkNumber(orElse(burst, limit), "burst", rule),
  };
  const most = Math.floor(MOST_METER_PRODUCT / meter.perUs);
  if (meter.limit + meter.burst <= most) return meter;
  throw new InvalidArgumentError(
    `limit and burst are ${meter.limit + meter.burst} together; for a period of ${meter.perUs / 1_000} ms they must be at most ${most}, ` +
      "so that every store counts exactly: choose a shorter period with a smaller limit, or let a unit stand for more",
  );
}
