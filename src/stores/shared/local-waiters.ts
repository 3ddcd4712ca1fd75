import type { Claim, Push, RenewAnswer, Renewal } from "../../core/store.js";

/** A waiter of this process, with the claim that it waits by. */
export interface LocalWaiter {
  readonly claim: Claim;
  push(push: Push): void;
}

/** The waiters of a store in this process, by grantId. */
export class LocalWaiters {
  readonly #waiters = new Map<string, LocalWaiter>();

  get size(): number {
    return this.#waiters.size;
  }

  /** Before the claim is sent: its grant may be pushed before the reply arrives. */
  add(claim: Claim, push: (push: Push) => void): LocalWaiter {
    const waiter = { claim, push };
    this.#waiters.set(claim.grantId, waiter);
    return waiter;
  }

  find(grantId: string): LocalWaiter | undefined {
    return this.#waiters.get(grantId);
  }

  /** Whether this waiter still waits, and by the same claim. */
  has(waiter: LocalWaiter): boolean {
    return this.#waiters.get(waiter.claim.grantId) === waiter;
  }

  /** The reply to its claim has ended the wait. A claim that was sent since, whatever its number, still waits. */
  remove(waiter: LocalWaiter): void {
    if (this.has(waiter)) this.#waiters.delete(waiter.claim.grantId);
  }

  /** The reply to this request has ended the wait, unless the waiter has sent a later claim since. */
  forget({ grantId, seq }: { readonly grantId: string; readonly seq: number }): void {
    const waiter = this.#waiters.get(grantId);
    if (waiter !== undefined && waiter.claim.seq <= seq) this.#waiters.delete(grantId);
  }

  /** A waiter that learns from a renewal that it holds the name, or has lost its ticket, needs no push. */
  forgetSettled(renewals: readonly Renewal[], answers: readonly RenewAnswer[]): void {
    for (const [i, { kind }] of answers.entries()) {
      if (kind === "granted" || kind === "lost") this.forget(renewals[i]!);
    }
  }

  /** The waiter has given up, whatever it has claimed. */
  delete(grantId: string): void {
    this.#waiters.delete(grantId);
  }

  /** Notifies a waiter of its grant, or makes it look. */
  push(grantId: string, push: Push): void {
    const waiter = this.#waiters.get(grantId);
    // A grant that rests on a request before the waiter's claim may be over: the claim stays in place.
    if (push.kind === "granted") this.forget({ grantId, seq: push.grant.seq });
    waiter?.push(push);
  }

  /** Makes every waiter look. */
  pushLookToAll(): void {
    for (const { push } of [...this.#waiters.values()]) push({ kind: "look" });
  }
}
