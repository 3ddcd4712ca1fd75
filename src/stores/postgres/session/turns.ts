import type { ClaimAnswer } from "../../../core/store.js";

interface Contended {
  /** Claims without an answer. */
  claims: number;
  /** The latest busy answer, and the number of the claim that was sent for it. */
  answer: ClaimAnswer | null;
  sent: number;
}

/** Lets the requests of this process for one key take turns, so that each sees the changes of those before it. */
export class Turns {
  /** By key: settles when all requests so far have ended. */
  readonly #last = new Map<bigint, Promise<void>>();
  /** By key and mode. */
  readonly #contended = new Map<string, Contended>();
  /** Counts up when a claim is made, and when one is sent. */
  #count = 0;

  take<T>(key: bigint, work: () => Promise<T>): Promise<T> {
    const result = (this.#last.get(key) ?? Promise.resolve()).then(work);
    const end = (): void => {
      if (this.#last.get(key) === ended) this.#last.delete(key);
    };
    const ended = result.then(end, end);
    this.#last.set(key, ended);
    return result;
  }

  /**
   * A claim shares the answer of another one that was sent after this one was made and found the name busy: otherwise
   * hundreds of waiters of one process would claim one after the other.
   */
  async takeForClaim(
    key: bigint,
    isShared: boolean,
    claim: () => Promise<ClaimAnswer>,
  ): Promise<ClaimAnswer> {
    const made = ++this.#count;
    const id = `${key} ${isShared}`;
    const contended = this.#contended.get(id) ?? { claims: 0, answer: null, sent: 0 };
    this.#contended.set(id, contended);
    contended.claims++;
    try {
      return await this.take(key, async () => {
        if (contended.answer !== null && made < contended.sent) return contended.answer;
        const sent = ++this.#count;
        const answer = await claim();
        if (answer.kind === "busy") Object.assign(contended, { answer, sent });
        return answer;
      });
    } finally {
      if (--contended.claims === 0) this.#contended.delete(id);
    }
  }
}
