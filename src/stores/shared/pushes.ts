import type { Grant, Push } from "../../core/store.js";

interface Ask {
  readonly grantId: string;
  readonly seq: number;
}

/** The waiters of a store in this process, by grantId, each with the number of the claim that it waits by. */
export class Pushes {
  readonly #waiting = new Map<string, { readonly seq: number; push(push: Push): void }>();

  get size(): number {
    return this.#waiting.size;
  }

  /** Before the claim is sent: its grant may be pushed before the reply arrives. */
  add({ grantId, seq }: Ask, push: (push: Push) => void): void {
    this.#waiting.set(grantId, { seq, push });
  }

  /** The reply to this ask has ended the wait, unless the waiter has sent a later claim since. */
  forget({ grantId, seq }: Ask): void {
    const waiting = this.#waiting.get(grantId);
    if (waiting !== undefined && waiting.seq <= seq) this.#waiting.delete(grantId);
  }

  /** The waiter has given up, whatever it has asked for. */
  delete(grantId: string): void {
    this.#waiting.delete(grantId);
  }

  /** A grant that rests on an ask before the waiter's claim may be over: the claim stays in place. */
  grant(grantId: string, grant: Grant): void {
    const waiting = this.#waiting.get(grantId);
    this.forget({ grantId, seq: grant.seq });
    waiting?.push({ kind: "granted", grant });
  }

  /** Tells a waiter that it is granted, or makes it ask. */
  push(grantId: string, push: Push): void {
    if (push.kind === "granted") this.grant(grantId, push.grant);
    else this.look(grantId);
  }

  look(grantId: string): void {
    this.#waiting.get(grantId)?.push({ kind: "look" });
  }

  /** Makes every waiter ask. */
  lookAll(): void {
    for (const { push } of [...this.#waiting.values()]) push({ kind: "look" });
  }
}
