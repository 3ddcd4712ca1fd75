import { type Clock, systemClock } from "./clock.js";
import { type Random, systemRandom } from "./random.js";

/** Time and randomness of the core. Tests replace them. */
export interface Runtime {
  /** Elapsed time, wall clock and timers. */
  readonly clock: Clock;
  /** Where grantIds and jitter come from. */
  readonly random: Random;
  /** Replaceable decisions, for tests. */
  readonly seams: Seams;
}

/**
 * Two decisions on which safety rests. Tests replace them, to prove that the conformance suite
 * catches a core that gets them wrong.
 */
export interface Seams {
  /** The time from which the reply to a request sent at `sentAtMs` counts: that time itself, not now. */
  countFrom(sentAtMs: number): number;
  /** The request from whose send time a grant counts: the one that the grant names, not the last one. */
  restsOn(seq: number, lastSeq: number): number;
}

/** The decisions as they must be. */
export const standardSeams: Seams = {
  countFrom: (sentAtMs) => sentAtMs,
  restsOn: (seq) => seq,
};

let shared: Runtime | undefined;

/** The clock of this machine and secure randomness, shared by all `Locks`. */
export function systemRuntime(): Runtime {
  shared ??= { clock: systemClock(), random: systemRandom(), seams: standardSeams };
  return shared;
}
