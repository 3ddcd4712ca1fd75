import type { Claim, Push, RenewAnswer, Renewal } from "../../core/store.js";

/** A waiter of this process, and its latest claim. */
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

  /** Registers a waiter. Call it before the claim is sent: its grant may be pushed before the reply arrives. */
  add(claim: Claim, push: (push: Push) => void): LocalWaiter {
    const waiter = { claim, push };
    this.#waiters.set(claim.grantId, waiter);
    return waiter;
  }

  find(grantId: string): LocalWaiter | undefined {
    return this.#waiters.get(grantId);
  }

  /** Whether the waiter is still there, and has made no other claim since. */
  has(waiter: LocalWaiter): boolean {
    return this.#waiters.get(waiter.claim.grantId) === waiter;
  }

  /** Removes a waiter whose claim was answered, unless the grantId has another claim by now. */
  removeAnswered(waiter: LocalWaiter): void {
    if (this.has(waiter)) this.#waiters.delete(waiter.claim.grantId);
  }

  /** Removes the waiter whose request was answered, unless it has sent a later claim since. */
  removeUpTo({ grantId, seq }: { readonly grantId: string; readonly seq: number }): void {
    const waiter = this.#waiters.get(grantId);
    if (waiter !== undefined && waiter.claim.seq <= seq) this.#waiters.delete(grantId);
  }

  /** Removes waiters that learn from a renewal that they hold the name or have lost their ticket: they need no push. */
  removeSettled(renewals: readonly Renewal[], answers: readonly RenewAnswer[]): void {
    for (const [i, { kind }] of answers.entries()) {
      if (kind === "granted" || kind === "lost") this.removeUpTo(renewals[i]!);
    }
  }

  /** Removes a waiter that has given up. */
  delete(grantId: string): void {
    this.#waiters.delete(grantId);
  }

  /** Notifies a waiter of its grant, or makes it look. */
  push(grantId: string, push: Push): void {
    const waiter = this.#waiters.get(grantId);
    // A grant by an earlier request than the latest claim may have ended, so the waiter stays registered.
    if (push.kind === "granted") this.removeUpTo({ grantId, seq: push.grant.seq });
    waiter?.push(push);
  }

  /** Makes every waiter look. */
  pushLookToAll(): void {
    for (const { push } of [...this.#waiters.values()]) push({ kind: "look" });
  }
}
