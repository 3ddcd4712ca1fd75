import type { Proof } from "./proved-grant.js";
import type { Runtime } from "./runtime.js";
import type { Grant } from "./store.js";

/** The send times of this many requests are remembered. A grant that rests on an older one does not count. */
const REMEMBERED = 32;
const NONE: number[] = [];

/**
 * The numbered claims and renewals of one waiter: when each was sent, since when the store has not
 * replied, and so which request may be sent next, and what a grant proves.
 */
export class SentRequests {
  readonly #runtime: Runtime;
  readonly #ttlMs: number;
  readonly #unexplainedAtStartMs: number;
  #grantId: string;
  /** The first request under that grantId. */
  #firstSeq = 1;
  /** The newest, number `lastSeq`, is last. */
  #sentAtMs: number[] = NONE;
  #lastSeq = 0;
  #unexplainedAtLastMs = 0;
  /** The send time of the oldest request without a reply to it or to a later one; NaN if there is none. */
  #unansweredSinceMs = Number.NaN;
  /** Whether a silent store has replied to a probe, so that one claim may follow. */
  #probeSucceeded = false;

  constructor(runtime: Runtime, ttlMs: number) {
    this.#runtime = runtime;
    this.#ttlMs = ttlMs;
    this.#unexplainedAtStartMs = runtime.clock.unexplainedMs();
    this.#grantId = runtime.random.grantId();
  }

  /** The grantId of the next request. */
  get grantId(): string {
    return this.#grantId;
  }

  get lastSeq(): number {
    return this.#lastSeq;
  }

  get lastSentAtMs(): number {
    return this.#sentAtMs.at(-1)!;
  }

  /** Numbers a request that is sent now. */
  next(sentAtMs: number): number {
    this.#lastSeq++;
    this.#unexplainedAtLastMs = this.#runtime.clock.unexplainedMs();
    // A literal has room for one number, a push makes room for 17: most acquires send one claim.
    if (this.#lastSeq === 1) this.#sentAtMs = [sentAtMs];
    else this.#sentAtMs.push(sentAtMs);
    if (Number.isNaN(this.#unansweredSinceMs)) this.#unansweredSinceMs = sentAtMs;
    if (this.#sentAtMs.length > REMEMBERED) this.#sentAtMs.shift();
    return this.#lastSeq;
  }

  /** Null if the request that the grant rests on is none of ours, or was sent too long ago. */
  proofOf(grant: Grant): Proof | null {
    const lastSeq = this.#lastSeq;
    const sentAtMs = this.#sentAtMsOf(this.#runtime.seams.restsOn(grant.seq, lastSeq));
    if (sentAtMs === undefined) return null;
    // When the request was sent, or earlier.
    const unexplainedAtSendMs =
      grant.seq === lastSeq ? this.#unexplainedAtLastMs : this.#unexplainedAtStartMs;
    return { grantId: this.#grantId, grant, sentAtMs, unexplainedAtSendMs, lastSeq };
  }

  /** A late reply says nothing about the requests that were sent after its own. */
  replied(sentAtMs: number): void {
    this.#probeSucceeded = false;
    this.#unansweredSinceMs =
      sentAtMs < this.lastSentAtMs ? Math.max(this.#unansweredSinceMs, sentAtMs) : Number.NaN;
  }

  /** A grant under the present grantId ended before we saw it, and the store grants nothing to that id again. */
  changeGrantId(): void {
    this.#grantId = this.#runtime.random.grantId();
    this.#firstSeq = this.#lastSeq + 1;
    this.#unansweredSinceMs = Number.NaN;
  }

  /** Whether the request was sent under a former grantId: its reply no longer matters. */
  isFormer(seq: number): boolean {
    return seq < this.#firstSeq;
  }

  /**
   * Whether the store has sent no reply for one ttl. If only its replies are lost, the ticket may have become a
   * grant by now, and every claim or renewal would extend it although nobody works under it. So the waiter
   * sends only probes, which extend nothing, and the grant expires.
   */
  isSilent(nowMs: number): boolean {
    return nowMs - this.#unansweredSinceMs >= this.#ttlMs;
  }

  noteProbe(hasReplied: boolean): void {
    this.#probeSucceeded = hasReplied;
  }

  mayClaim(nowMs: number): boolean {
    return this.#probeSucceeded || !this.isSilent(nowMs);
  }

  /** Whether the claim that has failed followed a probe; the next one needs another probe then. */
  takeProbe(): boolean {
    const followedProbe = this.#probeSucceeded;
    this.#probeSucceeded = false;
    return followedProbe;
  }

  #sentAtMsOf(seq: number): number | undefined {
    return seq > this.#lastSeq ? undefined : this.#sentAtMs.at(seq - this.#lastSeq - 1);
  }
}
