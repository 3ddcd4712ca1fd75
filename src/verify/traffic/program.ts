import { setTimeout as sleep } from "node:timers/promises";
import { HoldfastError } from "../../core/errors.js";
import type { Locks } from "../../core/locks.js";
import type { Random } from "../../core/random.js";
import { seededRandom } from "../../testing/seeded-random.js";
import type { Performer } from "./performer.js";
import type { ContendedName, Names, Options, Program } from "./protocol.js";
import { machineMs } from "./time-line.js";

/** The `Locks` of a worker: a program may close the one that it uses, under those who share it. */
export interface LocksInUse {
  at(index: number): Locks;
  reopen(index: number): Promise<void>;
  /** Nothing new is to be begun, whatever the time. */
  readonly isFinishing: boolean;
}

/** What a program does next. */
type Operation =
  | {
      readonly does: "hold";
      readonly name: Names;
      readonly options: Options;
      readonly holdMs: number;
      readonly abortAfterMs: number | null;
      readonly renewToMs: number | null;
    }
  | { readonly does: "lead"; readonly name: string; readonly forMs: number; readonly ttlMs: number }
  | {
      readonly does: "once";
      readonly name: string;
      readonly everyMs: number;
      readonly ttlMs: number;
    }
  | { readonly does: "reopen" };

/** One operation after another until the time is over. Each is drawn by its number, whatever became of the last. */
export async function perform(
  program: Program,
  performer: Performer,
  locks: LocksInUse,
): Promise<number> {
  const limits = new Map(program.names.map(({ name, permits }) => [name, permits]));
  let number = 0;
  for (; machineMs() < program.untilMs && !locks.isFinishing; number++) {
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
      case "lead": {
        const { name, ttlMs, forMs } = operation;
        const resigns = setTimeout(() => performer.abort(op), forMs);
        const lead = { name, pauseMs: 20, options: { ttl: ttlMs } };
        // How it ended is reported.
        await performer.lead(locks, op, lead).catch(expected);
        clearTimeout(resigns);
        return;
      }
      case "once":
        await performer
          .once(locks, op, {
            name: operation.name,
            every: operation.everyMs,
            ttl: operation.ttlMs,
            workMs: 10,
          })
          .catch(expected);
        return;
      case "reopen":
        // A store that is down can't be opened: the old one stays.
        await this.locks.reopen(this.via).catch(() => {});
    }
  }

  async #hold(
    { name, options, holdMs, abortAfterMs, renewToMs }: Operation & { does: "hold" },
    op: string,
  ): Promise<void> {
    const { performer } = this;
    const aborts =
      abortAfterMs === null ? undefined : setTimeout(() => performer.abort(op), abortAfterMs);
    try {
      await performer.acquire(this.locks.at(this.via), op, name, options);
    } catch (error) {
      expected(error);
      if (options.limit !== undefined) await this.#learnLimit(name as string);
      return;
    } finally {
      clearTimeout(aborts);
    }
    if (renewToMs !== null) performer.renew(op, renewToMs).catch(expected);
    // A resource that can't be used is no reason to keep the lock.
    await performer.write(op, holdMs).catch(() => {});
    performer.look(op);
    await performer.release(op);
  }

  /** Somebody may have resized the semaphore. */
  async #learnLimit(name: string): Promise<void> {
    const status = await this.locks
      .at(this.via)
      .inspect(name)
      .catch(() => null);
    if (status?.limit) this.limits.set(name, status.limit);
  }
}

/** Reported as it ended, if it is an error of ours or an abort; anything else ends the worker. */
function expected(error: unknown): void {
  if (!HoldfastError.is(error) && (error as Error | null)?.name !== "AbortError") throw error;
}

function draw(random: Random, program: Program, limits: ReadonlyMap<string, number>): Operation {
  const { names, ttlsMs, waitMs } = program;
  const chance = (share: number): boolean => random.unit() < share;
  const pick = <T>(from: readonly T[]): T => from[Math.floor(random.unit() * from.length)]!;
  const { name, onceEveryMs } = pick(names);
  const ttlMs = pick(ttlsMs);
  if (chance(0.01)) return { does: "reopen" };
  if (onceEveryMs !== undefined) return { does: "once", name, everyMs: onceEveryMs, ttlMs };
  const limit = limits.get(name)!;
  if (limit === 0 && chance(0.015)) {
    return { does: "lead", name, ttlMs, forMs: 100 + random.unit() * 2 * ttlMs };
  }
  const renewToMs = chance(0.12) ? pick(ttlsMs) : null;
  const others = names.filter((one) => isLock(one) && one.name !== name);
  const isMulti = limit === 0 && others.length > 0 && chance(0.12);
  const mode = drawMode(random, limit, isMulti);
  // Mostly short, so that many take turns; sometimes longer than a ttl, so that renewals count.
  const holdMs = chance(0.05) ? random.unit() * 1.5 * ttlMs : random.unit() ** 3 * 40;
  return {
    does: "hold",
    name: isMulti ? [name, pick(others).name] : name,
    options: {
      ttl: ttlMs,
      wait: chance(0.15) ? 0 : Math.round(100 + random.unit() * waitMs),
      ...mode,
      ...(renewToMs === null ? {} : { longestTtl: Math.max(ttlMs, renewToMs) }),
      ...(chance(0.04) ? { maxHold: Math.round(50 + random.unit() * ttlMs) } : {}),
      ...(chance(0.015) ? { atLeast: Math.round(200 + random.unit() * 800) } : {}),
      ...(chance(0.04) ? { renew: false } : {}),
    },
    holdMs,
    abortAfterMs: chance(0.1) ? random.unit() * 800 : null,
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
