import type { Clock, Timer } from "../../core/clock.js";
import type { Claim, Push } from "../../core/store.js";

/** The place of a waiter in the queue of this process. */
export interface Ticket {
  readonly name: string;
  readonly grantId: string;
  claim: Claim;
  push: (push: Push) => void;
  expiresAtMs: number;
}

/** All nodes send a message for one release: the waiter claims when most have arrived, or after this time. */
const GATHER_MS = 3;

/** After a failed claim, the other waiters send no claim for this time. */
const FAILURE_KEPT_MS = 200;

/**
 * The waiters of this process for one name, in order. Only the first of them claims; while its claims fail, any of
 * them may, because the first may have stopped claiming.
 */
export class LocalQueue {
  readonly name: string;
  /** The holder of the name that the last claim has found. */
  holder: string | null = null;
  #failure: { readonly error: unknown; readonly atMs: number } | null = null;
  readonly #clock: Clock;
  readonly #tickets: Ticket[] = [];
  readonly #notifiedBy = new Set<number>();
  #timer: Timer | null = null;

  constructor(name: string, clock: Clock) {
    this.name = name;
    this.#clock = clock;
  }

  get first(): Ticket | undefined {
    this.#dropExpired();
    return this.#tickets[0];
  }

  /** Why the last claim failed. */
  get failure(): unknown {
    return this.#failure?.error ?? null;
  }

  get hasFailedLately(): boolean {
    return this.#clock.elapsedMs() - (this.#failure?.atMs ?? -FAILURE_KEPT_MS) < FAILURE_KEPT_MS;
  }

  /** `error`: null if the last claim was answered. */
  noteFailure(error: unknown): void {
    this.#failure = error === null ? null : { error, atMs: this.#clock.elapsedMs() };
  }

  get size(): number {
    this.#dropExpired();
    return this.#tickets.length;
  }

  /** The waiters in front of this one; -1 if it does not wait. */
  aheadOf(grantId: string): number {
    return this.#tickets.findIndex((one) => one.grantId === grantId);
  }

  find(grantId: string): Ticket | undefined {
    this.#dropExpired();
    return this.#tickets.find((one) => one.grantId === grantId);
  }

  /** Adds a waiter at the end, or extends the ticket that it has. */
  join(claim: Claim, push: (push: Push) => void): Ticket {
    const expiresAtMs = this.#clock.elapsedMs() + claim.ttlMs;
    const there = this.find(claim.grantId);
    if (there !== undefined) return Object.assign(there, { claim, push, expiresAtMs });
    const ticket = { name: this.name, grantId: claim.grantId, claim, push, expiresAtMs };
    this.#tickets.push(ticket);
    return ticket;
  }

  /** Removes a waiter that has the name or has given up. */
  leave(grantId: string): void {
    const at = this.aheadOf(grantId);
    if (at !== -1) this.#tickets.splice(at, 1);
  }

  /** Called when a node has notified this process that the name is free. `enough`: the nodes that are a majority. */
  notified(by: number, enough: number): void {
    this.#notifiedBy.add(by);
    if (this.#notifiedBy.size >= enough) this.#notifyFirst();
    else this.#timer ??= this.#clock.after(GATHER_MS, () => this.#notifyFirst());
  }

  /** Makes the first waiter claim. */
  look(): void {
    this.first?.push({ kind: "look" });
  }

  close(): void {
    this.#timer?.cancel();
    this.#timer = null;
  }

  #notifyFirst(): void {
    this.close();
    this.#notifiedBy.clear();
    this.look();
  }

  /** Drops tickets at the front whose waiters have stopped renewing them. */
  #dropExpired(): void {
    const nowMs = this.#clock.elapsedMs();
    while (this.#tickets.length > 0 && this.#tickets[0]!.expiresAtMs <= nowMs)
      this.#tickets.shift();
  }
}
