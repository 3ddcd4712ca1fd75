import type { Runtime } from "../../core/runtime.js";
import { type BallotOutcome, majorityOf } from "./ballot.js";
import { limitsOf } from "./grants.js";
import type { Member } from "./member.js";

/** A pause after a ballot without a majority, and after a release that others wait for, in round trips. */
const USUAL = { least: 2, most: 5 };
/** The same after a ballot if another client goes first: it has asked again by then. */
const LONGER = { least: 7, most: 10 };

/** The random pauses of the claims of this process, so that several clients do not ask at the same time again. */
export class Pauses {
  readonly #members: readonly Member[];
  readonly #runtime: Runtime;
  /** For each name, the time until which this process leaves it to waiters of other processes. */
  readonly #untilMs = new Map<string, number>();

  constructor(members: readonly Member[], runtime: Runtime) {
    this.#members = members;
    this.#runtime = runtime;
  }

  /** Pauses the claims of this process, which would always be faster than others that wait for the name. */
  leaveToOthers(name: string): void {
    const nowMs = this.#runtime.clock.elapsedMs();
    for (const [one, endMs] of this.#untilMs) {
      if (endMs > nowMs) break;
      this.#untilMs.delete(one);
    }
    this.#untilMs.delete(name);
    this.#untilMs.set(name, nowMs + this.#draw(USUAL, this.#roundTripMs));
  }

  /** How long a claim of the name leaves it to others. */
  beforeClaimMs(name: string, ttlMs: number): number {
    const leftMs = (this.#untilMs.get(name) ?? 0) - this.#runtime.clock.elapsedMs();
    return Math.min(leftMs, limitsOf(ttlMs).silentMs);
  }

  /** Twice as long with each ballot, and random on slow links too: clients with equal pauses would meet again. */
  afterSplitMs(
    { rival }: Extract<BallotOutcome, { kind: "split" }>,
    ballots: number,
    ttlMs: number,
  ): number {
    const mostMs = limitsOf(ttlMs).silentMs / LONGER.most;
    const unitMs = Math.min(this.#roundTripMs * 2 ** (ballots - 1), mostMs);
    return this.#draw(rival?.goesFirst === false ? LONGER : USUAL, unitMs);
  }

  #draw({ least, most }: typeof USUAL, unitMs: number): number {
    return unitMs * (least + (most - least) * this.#runtime.random.unit());
  }

  /** To a majority of the nodes. */
  get #roundTripMs(): number {
    const times = this.#members.map(({ roundTripMs }) => roundTripMs).sort((a, b) => a - b);
    return times[majorityOf(times.length) - 1]!;
  }
}
