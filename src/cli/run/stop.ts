import { setTimeout as sleep } from "node:timers/promises";
import type { Clock } from "../../core/clock.js";
import type { LeaseLostError } from "../../core/errors.js";
import type { Lease } from "../../core/lease.js";
import { note, printable } from "../output.js";
import type { Child } from "./child.js";

/** The lease's signal aborts while this share of the ttl remains: TERM. */
export const TERM_SHARE = 1 / 3;
/** What is still running while this share remains is killed. */
const KILL_SHARE = 1 / 10;

const LOOK_EVERY_MS = 20;
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Stops the child when the lease is lost, so that it is gone before the lease is. */
export class Stopper {
  readonly #lease: Lease;
  readonly #child: Child;
  readonly #clock: Clock;
  readonly #graceMs: number;
  readonly #afterKillMs: number;
  #abortDueAtMs: number;
  #killAtMs = Number.POSITIVE_INFINITY;
  #timer: NodeJS.Timeout | undefined;
  readonly #onAbort = (): void => this.#stop();

  constructor(lease: Lease, child: Child, clock: Clock, ttlMs: number) {
    this.#lease = lease;
    this.#child = child;
    this.#clock = clock;
    this.#graceMs = ttlMs * (TERM_SHARE - KILL_SHARE);
    this.#afterKillMs = ttlMs * KILL_SHARE;
    this.#abortDueAtMs = clock.elapsedMs() + lease.remainingMs;
    if (lease.signal.aborted) this.#stop();
    else lease.signal.addEventListener("abort", this.#onAbort, { once: true });
  }

  get loss(): LeaseLostError | null {
    return this.#lease.signal.aborted ? (this.#lease.signal.reason as LeaseLostError) : null;
  }

  /** To be called at each renewal. */
  renewed(): void {
    if (this.loss === null) this.#abortDueAtMs = this.#clock.elapsedMs() + this.#lease.remainingMs;
  }

  /** The child has ended by itself: a loss that shows only now stops nothing. */
  dismiss(): void {
    this.#lease.signal.removeEventListener("abort", this.#onAbort);
  }

  /** Resolves when nothing is left of the child's group, or a little after it was killed. */
  async gone(): Promise<void> {
    // Where nobody reaps orphans, as in some containers, the group never looks empty.
    const untilMs = this.#killAtMs + this.#afterKillMs;
    while (this.#child.groupAlive && this.#clock.elapsedMs() < untilMs) await sleep(LOOK_EVERY_MS);
    clearTimeout(this.#timer);
    this.#child.stopping = false;
  }

  #stop(): void {
    const nowMs = this.#clock.elapsedMs();
    // After this process was stopped, the child's time to end is used up, whichever way the loss is
    // learned: a timer may say that it expired, or a renewal that another holds the name.
    this.#killAtMs = Math.min(this.#abortDueAtMs, nowMs) + this.#graceMs;
    this.#child.stopping = true;
    note(`${printable(this.loss!.message)}; stopping the command`);
    const leftMs = Math.min(this.#killAtMs - nowMs, LONGEST_TIMER_MS);
    if (leftMs <= 0) {
      this.#kill();
      return;
    }
    this.#child.kill("SIGTERM");
    this.#timer = setTimeout(() => this.#kill(), leftMs).unref();
  }

  #kill(): void {
    if (!this.#child.groupAlive) return;
    note("the command has not ended in time; killing it");
    this.#child.kill("SIGKILL");
  }
}
