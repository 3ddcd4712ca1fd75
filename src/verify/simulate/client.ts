import type { LeaseLostError } from "../../core/errors.js";
import type { Lease } from "../../core/lease.js";
import { createLocksOn, type Locks } from "../../core/locks.js";
import type { Runtime } from "../../core/runtime.js";
import { LOCK_LIMIT, type Store } from "../../core/store.js";
import type { Event } from "../check/history.js";
import { outcomeOf } from "../traffic/outcome.js";
import type { EventWithoutTime } from "../traffic/time-line.js";
import type { SimulatedProcess } from "./process.js";
import type { Resource } from "./resource.js";
import type { Task } from "./schedule.js";

/** What a client needs of the simulation around it. */
export interface Surroundings {
  readonly runtime: Runtime;
  readonly store: Store;
  readonly abortBefore: boolean;
  /** By the number of their name. */
  readonly resources: readonly Resource[];
  record(event: Event): void;
  /** Something rejected that never does. */
  wrong(error: unknown): void;
}

/** As a logger gets it. */
interface Renewed {
  readonly name: string;
  readonly token: string;
}

/** A program on a simulated process: it takes locks as its tasks have it, and tells what it believes. */
export class Client {
  readonly process: SimulatedProcess;
  readonly #around: Surroundings;
  readonly #locks: Locks;
  /** By name and token, as events name them. */
  readonly #leases = new Map<string, { readonly op: string; readonly lease: Lease }>();
  #tasks = 0;
  #waiting = 0;
  #closing: "no" | "yes" | "done" = "no";

  constructor(process: SimulatedProcess, around: Surroundings) {
    this.process = process;
    this.#around = around;
    this.#locks = createLocksOn(around.runtime, around.store, {
      holder: process.name,
      // Shorter than any ttl: a ticket whose answer was lost is asked for again before it runs out.
      commandTimeout: 200,
      ...(around.abortBefore ? {} : { abortBefore: 0 }),
      logger: {
        debug: (message, fields) => {
          if (message === "holdfast:renewed") this.#renewed(fields as Renewed);
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
    this.#perform(task, op).then(
      () => this.#tasks--,
      (error) => this.#around.wrong(error),
    );
  }

  close(): void {
    if (this.#closing !== "no" || this.process.isDead) return;
    this.#closing = "yes";
    // It gives back what it holds; a task that comes to its own release later finds it done.
    for (const { op } of this.#leases.values()) this.#record({ kind: "releasing", op });
    const closed = (): void => {
      this.#closing = "done";
      const left = { waiters: this.#waiting, timers: this.process.timers, sockets: 0 };
      this.#record({ kind: "left", client: this.process.name, ...left });
    };
    this.#locks.close().then(closed, (error) => this.#around.wrong(error));
  }

  /** One acquire from the ask to the end of its lease. */
  async #perform(task: Task, op: string): Promise<void> {
    const name = `name-${task.name}`;
    const aborter = this.#aborter(op, task.abortAfterMs);
    this.#record({
      kind: "asked",
      op,
      client: this.process.name,
      name,
      permits: task.shared ? 1 : LOCK_LIMIT,
      limit: LOCK_LIMIT,
      ttlMs: task.ttlMs,
      longestTtlMs: Math.max(task.ttlMs, task.renewToMs ?? 0),
      ...(task.maxHoldMs === undefined ? {} : { maxHoldMs: task.maxHoldMs }),
      waitMs: task.waitMs,
    });
    let lease: Lease;
    this.#waiting++;
    try {
      lease = await this.#locks.acquire(name, {
        note: op,
        mode: task.shared ? "shared" : "exclusive",
        ttl: task.ttlMs,
        wait: task.waitMs,
        signal: aborter.signal,
        ...(task.maxHoldMs === undefined ? {} : { maxHold: task.maxHoldMs }),
      });
    } catch (error) {
      this.#record({ kind: "not-granted", op, outcome: outcomeOf(error) });
      return;
    } finally {
      this.#waiting--;
      aborter.cancel();
    }
    const { token, floor } = lease;
    this.#leases.set(`${name} ${token}`, { op, lease });
    const untilMs = this.process.worldMs(lease.remainingMs);
    this.#record({ kind: "granted", op, token, floor, untilMs });
    this.#tellLoss(op, lease);
    await this.#use(task, op, lease);
    this.#record({ kind: "releasing", op });
    const result = await lease.release();
    this.#record({ kind: "released", op, result });
  }

  /** Reads and writes behind the fence as the protocol has it, and does not ask whether it still holds. */
  async #use(task: Task, op: string, lease: Lease): Promise<void> {
    const { process } = this;
    const resource = this.#around.resources[task.name]!;
    await resource.enter(process, op, lease);
    const read = task.shared ? 0 : await resource.read(process);
    await process.sleep(task.holdMs / 2);
    this.#look(op, lease);
    if (task.renewToMs !== undefined) await this.#renew(op, lease, task.renewToMs);
    await process.sleep(task.holdMs / 2);
    this.#look(op, lease);
    if (task.shared) await resource.enter(process, op, lease);
    else await resource.write(process, op, lease, read, read + 1);
  }

  /** By the signal or by the event: both are promised. */
  #tellLoss(op: string, lease: Lease): void {
    const lost = ({ reason }: LeaseLostError): void => this.#record({ kind: "lost", op, reason });
    const { signal } = lease;
    if (op.length % 2 === 0) lease.on("lost", lost);
    else signal.addEventListener("abort", () => lost(signal.reason as LeaseLostError));
  }

  async #renew(op: string, lease: Lease, ttlMs: number): Promise<void> {
    const renewing = lease.renew(ttlMs).catch(() => {});
    // A shorter one counts from the call.
    if (lease.remainingMs > 0) {
      this.#record({ kind: "renewed", op, untilMs: this.process.worldMs(lease.remainingMs) });
    }
    await renewing;
  }

  #renewed({ name, token }: Renewed): void {
    const held = this.#leases.get(`${name} ${token}`);
    if (held === undefined) return;
    const untilMs = this.process.worldMs(held.lease.remainingMs);
    this.#record({ kind: "renewed", op: held.op, untilMs });
  }

  #look(op: string, lease: Lease): void {
    const atMs = this.process.nowMs;
    let held = true;
    try {
      lease.assertHeld();
    } catch {
      held = false;
    }
    this.#around.record({ kind: "looked", atMs, op, held });
  }

  #aborter(op: string, afterMs = Number.POSITIVE_INFINITY) {
    const controller = new AbortController();
    const timer = this.process.later(afterMs, () => {
      this.#record({ kind: "aborting", op });
      controller.abort(new Error("the caller's own abort"));
    });
    return { signal: controller.signal, cancel: () => timer.cancel() };
  }

  /** At its own present, which is later than the world's if it was stopped in mid-turn. */
  #record(event: EventWithoutTime): void {
    this.#around.record({ atMs: this.process.nowMs, ...event } as Event);
  }
}
