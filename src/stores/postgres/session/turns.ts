import type { ClaimAnswer } from "../../../core/store.js";

interface Contended {
  /** Claims without an answer. */
  claims: number;
  /** The latest claim that the server found busy, and the number under which it was sent. */
  answer: ClaimAnswer | null;
  sent: number;
}

/** Requests of this process for one key take turns: each finds the table of own locks as the one before has left it. */
export class Turns {
  /** By key: settles when all requests so far have ended. */
  readonly #last = new Map<bigint, Promise<void>>();
  /** By key and mode. */
  readonly #contended = new Map<string, Contended>();
  /** Numbers claims as they are made, and as they are sent. */
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
   * A claim that was made before another one was sent, and found the name busy, gets the same answer: hundreds of
   * waiters of one process need not claim one after the other.
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
