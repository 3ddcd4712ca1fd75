import { setTimeout as sleep } from "node:timers/promises";
import type { Clock, Timer } from "../../core/clock.js";
import type { LeaseLostError } from "../../core/errors.js";
import type { Lease } from "../../core/lease.js";
import { note, printable } from "../output.js";
import type { Child } from "./child.js";

/** The lease's signal aborts when this share of the ttl remains; then the child gets TERM. */
export const TERM_SHARE = 1 / 3;
/** Processes that are still running when this share remains get KILL. */
const KILL_SHARE = 1 / 10;

const LOOK_EVERY_MS = 20;

/** Stops the child when the lease is lost, so that the child is gone before the lease expires. */
export class Stopper {
  readonly #lease: Lease;
  readonly #child: Child;
  readonly #clock: Clock;
  readonly #graceMs: number;
  readonly #afterKillMs: number;
  #abortDueAtMs: number;
  #killAtMs = Number.POSITIVE_INFINITY;
  #timer: Timer | null = null;
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

  /** Called at each renewal. */
  renewed(): void {
    if (this.loss === null) this.#abortDueAtMs = this.#clock.elapsedMs() + this.#lease.remainingMs;
  }

  /** Called when the child has ended by itself: a later loss stops nothing. */
  dismiss(): void {
    this.#lease.signal.removeEventListener("abort", this.#onAbort);
  }

  /** Resolves when nothing is left of the child's group, or a little after it was killed. */
  async gone(): Promise<void> {
    // In containers without a process that reaps orphans, the group never looks empty.
    const untilMs = this.#killAtMs + this.#afterKillMs;
    while (this.#child.groupAlive && this.#clock.elapsedMs() < untilMs) await sleep(LOOK_EVERY_MS);
    this.#timer?.cancel();
    this.#child.stopping = false;
  }

  #stop(): void {
    const nowMs = this.#clock.elapsedMs();
    // If this process was stopped meanwhile, the child's time to end is used up, whether a timer or
    // the reply to a renewal reveals the loss.
    this.#killAtMs = Math.min(this.#abortDueAtMs, nowMs) + this.#graceMs;
    this.#child.stopping = true;
    note(`${printable(this.loss!.message)}; stopping the command`);
    const leftMs = this.#killAtMs - nowMs;
    if (leftMs <= 0) {
      this.#kill();
      return;
    }
    this.#child.kill("SIGTERM");
    this.#timer = this.#clock.after(leftMs, () => this.#kill());
  }

  #kill(): void {
    if (!this.#child.groupAlive) return;
    const isKilled = this.#child.kill("SIGKILL");
    note(
      isKilled
        ? "the command has not ended in time; killing it"
        : "the command runs as another user, so it can't be killed: it goes on WITHOUT the lease",
    );
  }
}
