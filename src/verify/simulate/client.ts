import type { LeaseLostError } from "../../core/errors.js";
import type { EventName } from "../../core/events.js";
import type { Lease, ReleaseResult } from "../../core/lease.js";
import type { Runtime } from "../../core/runtime.js";
import { LOCK_LIMIT, type Store } from "../../core/store.js";
import type { Fenced } from "../../fence/fence.js";
import { createLocksOn, type Locks } from "../../locks.js";
import type { MultiLease } from "../../primitives/multi.js";
import { type Event, opFor } from "../check/history.js";
import { outcomeOf } from "../traffic/outcome.js";
import type { EventWithoutTime } from "../traffic/time-line.js";
import { noteFor } from "./observe.js";
import type { SimulatedProcess } from "./process.js";
import type { Resource } from "./resource.js";
import type { Task } from "./schedule.js";

/** The parts of the simulation that a client uses. */
export interface Surroundings {
  readonly name: string;
  readonly runtime: Runtime;
  readonly store: Store;
  readonly abortBefore: boolean;
  readonly commandTimeoutMs: number;
  /** The resources, by the number of their name. */
  readonly resources: readonly Resource[];
  /** The present number of permits of a name, as all programs know it; 0 if the name is a lock. */
  permitsOf(name: number): number;
  record(event: Event): void;
  /** Whether other clients of the same process are not closed yet. */
  isShared(): boolean;
  /** Reports a rejection that must never happen. */
  wrong(error: unknown): void;
}

/** The fields of the logger's line. */
interface Renewed {
  readonly name: string;
  readonly token: string;
}

/** One name of an acquire, with its op in the history. */
interface Part {
  readonly op: string;
  readonly name: string;
  readonly resource: Resource;
}

/** The result of an acquire: one lease, or several as one. */
interface Acquired {
  readonly held: Lease | MultiLease;
  release(): Promise<ReleaseResult | null>;
}

interface Taken extends Acquired {
  readonly parts: readonly Part[];
  /** How long its machine had been frozen in total when the acquire began. */
  readonly frozenBeforeMs: number;
  /** The deadline that was last recorded. */
  untilMs: number;
  lost: boolean;
}

/**
 * A program with its own `Locks` on a simulated process. It takes locks as its tasks say, and
 * records what it believes.
 */
export class Client {
  readonly name: string;
  readonly process: SimulatedProcess;
  readonly #around: Surroundings;
  readonly #locks: Locks;
  /** Leases by name and token, as events name them. */
  readonly #taken = new Map<string, Taken>();
  #tasks = 0;
  #waiting = 0;
  #closing: "no" | "yes" | "done" = "no";

  constructor(process: SimulatedProcess, around: Surroundings) {
    this.name = around.name;
    this.process = process;
    this.#around = around;
    this.#locks = createLocksOn(around.runtime, around.store, {
      holder: around.name,
      commandTimeout: around.commandTimeoutMs,
      // A free name is claimed well within the time that L1 allows.
      poll: { max: 500 },
      ...(around.abortBefore ? {} : { abortBefore: 0 }),
      // Each task has its own; the default is too long for some stores.
      ttl: 1_000,
      logger: {
        debug: (_, fields) => {
          const logged = fields as { event: EventName } & Renewed;
          if (logged.event === "renewed") this.#renewed(logged);
        },
        info: () => {},
        warn: () => {},
      },
    });
  }

  get isIdle(): boolean {
    return this.process.isDead || this.#tasks === 0;
  }

  get isClosed(): boolean {
    return this.process.isDead || this.#closing === "done";
  }

  start(task: Task, op: string): void {
    this.#tasks++;
    const performed = task.terms === undefined ? this.#perform(task, op) : this.#campaign(task, op);
    performed.then(
      () => this.#tasks--,
      (error) => this.#around.wrong(error),
    );
  }

  close(graceMs = 0): void {
    if (this.#closing !== "no" || this.process.isDead) return;
    this.#closing = "yes";
    // `close` releases its leases, and a later release by a task finds that done. With a grace, the
    // task's own release comes first, or the lease ends as `lost`.
    for (const { parts } of graceMs > 0 ? [] : this.#taken.values()) {
      this.#recordFor(parts, { kind: "releasing" });
    }
    const closed = (): void => {
      this.#closing = "done";
      const timers = this.#around.isShared() ? 0 : this.process.timers;
      this.#record({
        kind: "left",
        client: this.name,
        waiters: this.#waiting,
        timers,
        sockets: 0,
      });
    };
    // In a turn of its own, so that acquires whose wait ended at the same moment have settled.
    const inTurn = (): void => void this.process.later(0, closed);
    this.#locks.close({ grace: graceMs }).then(inTurn, (error) => this.#around.wrong(error));
  }

  /** The observer records the effect at the store, so a missing reply does not matter here. */
  forceRelease(name: number): void {
    if (this.#closing !== "no") return;
    this.#locks.forceRelease(nameOf(name), { why: "simulated" }).catch(() => {});
  }

  resize(name: number, permits: number): void {
    if (this.#closing !== "no") return;
    this.#locks
      .semaphore(nameOf(name), { permits })
      .resize(permits)
      .catch(() => {});
  }

  /** Campaigns again after each lost term, up to `terms` terms. */
  async #campaign(task: Task, op: string): Promise<void> {
    for (let term = 1; term <= task.terms!; term++) {
      if ((await this.#perform(task, `${op}.${term}`)) !== "lost") return;
    }
  }

  /** One acquire, from the request to the end of its lease. */
  async #perform(task: Task, op: string): Promise<"lost" | "done"> {
    const parts = this.#partsOf(task, op);
    const { frozenMs } = this.process;
    const aborter = this.#aborter(parts, task.abortAfterMs);
    const limit = this.#limitFor(task);
    const permits = Math.min(task.permits ?? (task.shared ? 1 : limit), limit);
    for (const part of parts) {
      this.#record({
        kind: "asked",
        op: part.op,
        client: this.name,
        name: part.name,
        permits,
        limit,
        ttlMs: task.ttlMs,
        longestTtlMs: Math.max(task.ttlMs, task.renewToMs ?? 0),
        ...(task.maxHoldMs === undefined ? {} : { maxHoldMs: task.maxHoldMs }),
        ...(task.atLeastMs === undefined ? {} : { atLeastMs: task.atLeastMs }),
        ...(task.renew === undefined ? {} : { renew: task.renew }),
        waitMs: task.terms === undefined ? task.waitMs : Number.POSITIVE_INFINITY,
        ...(parts.length === 1 ? {} : { together: op }),
      });
    }
    let taken: Taken;
    this.#waiting++;
    try {
      const note = noteFor(op, parts.length > 1);
      const acquired = await this.#acquire(task, { limit, permits }, note, aborter.signal);
      taken = this.#take(parts, acquired, frozenMs);
    } catch (error) {
      this.#recordFor(parts, { kind: "not-granted", outcome: outcomeOf(error) });
      return "done";
    } finally {
      this.#waiting--;
      aborter.cancel();
    }
    await this.#use(task, taken);
    this.#recordFor(parts, { kind: "releasing" });
    const result = (await taken.release()) ?? "lost";
    this.#recordFor(parts, { kind: "released", result });
    return taken.lost ? "lost" : "done";
  }

  /** Acquires by the method for the task's kind of lock. */
  async #acquire(
    task: Task,
    { limit, permits }: { limit: number; permits: number },
    note: string,
    signal: AbortSignal,
  ): Promise<Acquired> {
    const name = nameOf(task.name);
    const leading = { note, ttl: task.ttlMs, maxHold: task.maxHoldMs, atLeast: task.atLeastMs };
    if (task.terms !== undefined) {
      const election = this.#locks.election(name, leading);
      return { held: await election.campaign({ signal }), release: () => election.resign() };
    }
    const options = { ...leading, renew: task.renew, wait: task.waitMs, signal };
    const mode = task.shared ? "shared" : "exclusive";
    const acquire = (): Promise<Lease | MultiLease> => {
      if (task.also !== undefined) {
        return this.#locks.acquireAll([task.name, ...task.also].map(nameOf), { ...options, mode });
      }
      if (limit === LOCK_LIMIT) return this.#locks.acquire(name, { ...options, mode });
      return this.#locks.semaphore(name, { permits: limit }).acquire({ ...options, permits });
    };
    const held = await acquire();
    return { held, release: () => held.release() };
  }

  /** A multi-lock takes its names as locks, even if a name is a semaphore. */
  #limitFor({ name, also, permits, limit }: Task): number {
    const isLock = permits === undefined || also !== undefined;
    return isLock ? LOCK_LIMIT : (limit ?? this.#around.permitsOf(name));
  }

  #partsOf({ name, also = [] }: Task, op: string): readonly Part[] {
    return [name, ...also].map((each) => ({
      op: also.length === 0 ? op : opFor(op, nameOf(each)),
      name: nameOf(each),
      resource: this.#around.resources[each]!,
    }));
  }

  /** Records the grant: from here on the client believes that it holds. */
  #take(parts: readonly Part[], acquired: Acquired, frozenBeforeMs: number): Taken {
    const { held } = acquired;
    const untilMs = this.#believesUntilMs(held, frozenBeforeMs);
    const taken = { ...acquired, parts, frozenBeforeMs, untilMs, lost: false };
    for (const { op, name } of parts) {
      const { token, floor } = fencedBy(held, name);
      this.#taken.set(`${name} ${token}`, taken);
      this.#record({ kind: "granted", op, token, floor, untilMs });
    }
    this.#recordLoss(taken);
    return taken;
  }

  /** Enters, reads and writes behind the fences as the protocol requires, without checking whether it still holds. */
  async #use(task: Task, taken: Taken): Promise<void> {
    const { process } = this;
    const { parts, held } = taken;
    const writes = held.mode === "exclusive";
    const enter = async (): Promise<void> => {
      for (const { op, name, resource } of parts) {
        await resource.enter(process, op, fencedBy(held, name));
      }
    };
    await enter();
    const read: number[] = [];
    for (const { resource } of writes ? parts : []) read.push(await resource.read(process));
    await process.sleep(task.holdMs / 2);
    this.#look(taken);
    if (task.renewToMs !== undefined) await this.#renew(taken, task.renewToMs);
    await process.sleep(task.holdMs / 2);
    this.#look(taken);
    if (!writes) await enter();
    for (const [i, value] of read.entries()) {
      const { op, name, resource } = parts[i]!;
      await resource.write(process, op, fencedBy(held, name), value, value + 1);
    }
  }

  /** Records the loss, by the signal or by the event: both are promised. */
  #recordLoss(taken: Taken): void {
    const { parts, held } = taken;
    const lost = ({ reason, lockName }: LeaseLostError): void => {
      taken.lost = true;
      for (const { op, name } of parts) {
        this.#record({ kind: "lost", op, reason: name === lockName ? reason : "together" });
      }
    };
    const { signal } = held;
    if ("on" in held && parts[0]!.op.length % 2 === 0) held.on("lost", lost);
    else signal.addEventListener("abort", () => lost(signal.reason as LeaseLostError));
  }

  async #renew(taken: Taken, ttlMs: number): Promise<void> {
    const renewing = taken.held.renew(ttlMs).catch(() => {});
    // A shorter ttl counts from the call.
    this.#recordRenewal(taken);
    await renewing;
  }

  #renewed({ name, token }: Renewed): void {
    const taken = this.#taken.get(`${name} ${token}`);
    if (taken !== undefined) this.#recordRenewal(taken);
  }

  /** Records the new deadline. A multi-lock is good until the first of its leases ends. */
  #recordRenewal(taken: Taken): void {
    if (taken.lost || taken.held.remainingMs <= 0) return;
    const untilMs = this.#believesUntilMs(taken.held, taken.frozenBeforeMs);
    const { nowMs } = this.process;
    if (untilMs <= nowMs && taken.untilMs <= nowMs) return;
    taken.untilMs = untilMs;
    this.#recordFor(taken.parts, { kind: "renewed", untilMs });
  }

  /**
   * After a freeze since the request, the own deadline of the process is too late in simulated time,
   * so only `assertHeld` counts.
   */
  #believesUntilMs(held: Lease | MultiLease, frozenBeforeMs: number): number {
    const { process } = this;
    if (process.frozenMs > frozenBeforeMs && !isHeld(held)) return process.nowMs;
    return process.worldMs(held.remainingMs);
  }

  #look({ parts, held }: Taken): void {
    const atMs = this.process.nowMs;
    const looked = { kind: "looked", atMs, held: isHeld(held) } as const;
    for (const { op } of parts) this.#around.record({ ...looked, op });
  }

  #aborter(parts: readonly Part[], afterMs = Number.POSITIVE_INFINITY) {
    const controller = new AbortController();
    const timer = this.process.later(afterMs, () => {
      this.#recordFor(parts, { kind: "aborting" });
      controller.abort(new Error("the caller's own abort"));
    });
    return { signal: controller.signal, cancel: () => timer.cancel() };
  }

  #recordFor(parts: readonly Part[], event: EventWithoutOp): void {
    for (const { op } of parts) this.#record({ ...event, op } as EventWithoutTime);
  }

  /**
   * Records an event at the process's own time, which is ahead of the simulated time if the process
   * stopped in mid-turn.
   */
  #record(event: EventWithoutTime): void {
    this.#around.record({ atMs: this.process.nowMs, ...event } as Event);
  }
}

type EventWithoutOp<E = EventWithoutTime> = E extends { readonly op: string }
  ? Omit<E, "op">
  : never;

export const nameOf = (number: number): string => `name-${number}`;

function isHeld(lease: Lease | MultiLease): boolean {
  try {
    lease.assertHeld();
    return true;
  } catch {
    return false;
  }
}

const fencedBy = (held: Lease | MultiLease, name: string): Fenced =>
  "of" in held ? held.of(name) : held;
