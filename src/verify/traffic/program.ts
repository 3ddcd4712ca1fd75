import { setTimeout as sleep } from "node:timers/promises";
import { HoldfastError } from "../../core/errors.js";
import type { Random } from "../../core/random.js";
import type { Locks } from "../../locks.js";
import { seededRandom } from "../../testing/seeded-random.js";
import { lead } from "./operations/lead.js";
import { observe } from "./operations/observe.js";
import { once } from "./operations/once.js";
import { withLock } from "./operations/with-lock.js";
import type { Performer } from "./performer.js";
import type { ContendedName, Names, Options, Program } from "./protocol.js";
import { machineMs } from "./time-line.js";

/** The `Locks` of a worker. A program may close its `Locks` while other programs use the same one. */
export interface LocksInUse {
  at(index: number): Locks;
  /** Opens another one and closes the old one, which stays in use if the store is down. */
  reopen(index: number): Promise<void>;
  /** When aborted, no new operation begins, whatever the time. */
  readonly finishing: AbortSignal;
}

/** One operation of a program. */
type Operation =
  | {
      readonly does: "hold";
      readonly name: Names;
      /** `try`: claims once, by `tryAcquire`. */
      readonly by: "acquire" | "try";
      readonly options: Options;
      readonly holdMs: number;
      readonly abortAfterMs: number | null;
      readonly renewToMs: number | null;
    }
  | {
      readonly does: "work";
      readonly name: string;
      readonly options: Options;
      readonly workMs: number;
      readonly abortAfterMs: number | null;
      readonly reentrant: boolean;
    }
  | {
      readonly does: "observe";
      readonly name: string;
      readonly forMs: number;
      readonly everyMs: number;
    }
  | { readonly does: "lead"; readonly name: string; readonly forMs: number; readonly ttlMs: number }
  | {
      readonly does: "once";
      readonly name: string;
      readonly everyMs: number;
      readonly ttlMs: number;
    }
  | { readonly does: "reopen" };

/**
 * Performs one operation after another until the time is over. Each is drawn by its number,
 * independent of the outcome of the last.
 */
export async function perform(
  program: Program,
  performer: Performer,
  locks: LocksInUse,
): Promise<number> {
  const limits = new Map(program.names.map(({ name, permits }) => [name, permits]));
  let number = 0;
  for (; machineMs() < program.untilMs && !locks.finishing.aborted; number++) {
    const random = seededRandom(program.seed + number * 0x9e3779b1);
    const operation = draw(random, program, limits);
    await new Lane(performer, locks, program.via, limits).perform(
      operation,
      `${program.lane}.${number}`,
    );
    await sleep(-Math.log(1 - random.unit()) * program.pauseMs);
  }
  return number;
}

class Lane {
  constructor(
    readonly performer: Performer,
    readonly locks: LocksInUse,
    readonly via: number,
    readonly limits: Map<string, number>,
  ) {}

  async perform(operation: Operation, op: string): Promise<void> {
    const { performer } = this;
    const locks = this.locks.at(this.via);
    switch (operation.does) {
      case "hold":
        return this.#hold(operation, op);
      case "work": {
        const { name, options: wanted, workMs, abortAfterMs, reentrant } = operation;
        const aborts = this.#abortAfter(op, abortAfterMs);
        // The outcome is already reported.
        await withLock(performer, locks, op, name, { wanted, workMs, reentrant }).catch(expected);
        clearTimeout(aborts);
        return;
      }
      case "observe": {
        const { name, forMs, everyMs: every } = operation;
        const signal = AbortSignal.any([AbortSignal.timeout(forMs), this.locks.finishing]);
        await observe(locks, name, { every, signal }).catch(expected);
        return;
      }
      case "lead": {
        const { name, ttlMs, forMs } = operation;
        const resigns = this.#abortAfter(op, forMs);
        const term = { name, pauseMs: 20, options: { ttl: ttlMs } };
        await lead(performer, locks, op, term).catch(expected);
        clearTimeout(resigns);
        return;
      }
      case "once": {
        const { name, everyMs: every, ttlMs: ttl } = operation;
        await once(performer, locks, op, { name, every, ttl, workMs: 10 }).catch(expected);
        return;
      }
      case "reopen":
        await this.locks.reopen(this.via).catch(outage);
    }
  }

  async #hold(
    { name, by, options, holdMs, abortAfterMs, renewToMs }: Operation & { does: "hold" },
    op: string,
  ): Promise<void> {
    const { performer } = this;
    const locks = this.locks.at(this.via);
    const aborts = this.#abortAfter(op, abortAfterMs);
    try {
      if (by === "acquire") await performer.acquire(locks, op, name, options);
      else if (!(await performer.tryAcquire(locks, op, name as string, options))) return;
    } catch (error) {
      expected(error);
      if (options.limit !== undefined) await this.#learnLimit(name as string);
      return;
    } finally {
      clearTimeout(aborts);
    }
    if (renewToMs !== null) performer.renew(op, renewToMs).catch(expected);
    // An unusable resource is no reason to keep the lock.
    await performer.use(op, holdMs).catch(() => {});
    performer.look(op);
    await performer.release(op);
  }

  #abortAfter(op: string, afterMs: number | null): NodeJS.Timeout | undefined {
    return afterMs === null ? undefined : setTimeout(() => this.performer.abort(op), afterMs);
  }

  /** Reads the limit again: the operator may have resized the semaphore. */
  async #learnLimit(name: string): Promise<void> {
    const status = await this.locks
      .at(this.via)
      .inspect(name)
      .catch(() => null);
    if (status?.limit) this.limits.set(name, status.limit);
  }
}

/** Accepts our own errors and aborts, which are already reported. Any other error ends the worker. */
function expected(error: unknown): void {
  if (!HoldfastError.is(error) && (error as Error | null)?.name !== "AbortError") throw error;
}

/** Accepts that the store did not reply, which a fault may cause. */
function outage(error: unknown): void {
  if (!HoldfastError.is(error) || error.code !== "STORE_UNAVAILABLE") throw error;
}

function draw(random: Random, program: Program, limits: ReadonlyMap<string, number>): Operation {
  const { names, ttlsMs, waitMs, refuses = [] } = program;
  const { expiringShare = 0.025, longestHoldTtls = 1.5 } = program;
  const chance = (share: number): boolean => random.unit() < share;
  const pick = <T>(from: readonly T[]): T => from[Math.floor(random.unit() * from.length)]!;
  const { name, onceEveryMs } = pick(names);
  // Mostly a lease is held for a moment, so that many take turns; sometimes for longer than a ttl, so that
  // renewals count, or until it expires under those that wait.
  const expires = chance(expiringShare);
  const isLong = expires || chance(0.025);
  const ttlMs = expires ? Math.min(...ttlsMs) : pick(ttlsMs);
  if (chance(0.01)) return { does: "reopen" };
  if (onceEveryMs !== undefined) return { does: "once", name, everyMs: onceEveryMs, ttlMs };
  const limit = limits.get(name)!;
  if (limit === 0 && chance(0.015)) {
    return { does: "lead", name, ttlMs, forMs: 100 + random.unit() * 2 * ttlMs };
  }
  if (limit === 0 && chance(0.01)) {
    const everyMs = Math.round(50 + random.unit() * 500);
    return { does: "observe", name, everyMs, forMs: Math.round(100 + random.unit() * ttlMs) };
  }
  const renewToMs = chance(0.12) ? pick(ttlsMs) : null;
  const others = names.filter((one) => isLock(one) && one.name !== name);
  const isMulti = limit === 0 && others.length > 0 && chance(0.12);
  const drawn = drawMode(random, limit, isMulti);
  const mode = refuses.includes("shared") && drawn.mode === "shared" ? {} : drawn;
  const longMs = (expires ? 1 + 0.2 * random.unit() : longestHoldTtls * random.unit()) * ttlMs;
  const holdMs = isLong ? longMs : random.unit() ** 3 * 40;
  const abortAfterMs = chance(0.1) ? random.unit() * 800 : null;
  const options: Options = {
    ttl: ttlMs,
    wait: chance(0.15) ? 0 : Math.round(100 + random.unit() * waitMs),
    ...mode,
    ...(renewToMs === null ? {} : { longestTtl: Math.max(ttlMs, renewToMs) }),
    ...(chance(0.04) ? { maxHold: Math.round(50 + random.unit() * ttlMs) } : {}),
    ...(chance(0.015) && !refuses.includes("at-least")
      ? { atLeast: Math.round(200 + random.unit() * 800) }
      : {}),
    ...(expires || chance(0.04) ? { renew: false } : {}),
  };
  if (limit === 0 && !isMulti && !mode.elected && renewToMs === null && chance(0.25)) {
    return { does: "work", name, options, workMs: holdMs, abortAfterMs, reentrant: chance(0.4) };
  }
  const isTried = options.wait === 0 && limit === 0 && !isMulti && !mode.elected && chance(0.5);
  return {
    does: "hold",
    name: isMulti ? [name, pick(others).name] : name,
    by: isTried ? "try" : "acquire",
    options,
    holdMs,
    abortAfterMs,
    renewToMs,
  };
}

function drawMode(random: Random, limit: number, isMulti: boolean): Options {
  if (limit > 0) return { limit, permits: 1 + Math.floor(random.unit() * limit) };
  const which = random.unit();
  if (which < 0.25) return { mode: "shared" };
  return !isMulti && which < 0.3 ? { elected: true } : {};
}

const isLock = ({ permits, onceEveryMs }: ContendedName): boolean =>
  permits === 0 && onceEveryMs === undefined;
