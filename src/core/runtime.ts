import { type Clock, systemClock } from "./clock.js";
import { type Random, systemRandom } from "./random.js";

/** What the core takes from the world. */
export interface Runtime {
  readonly clock: Clock;
  readonly random: Random;
  readonly seams: Seams;
}

/**
 * Two decisions on which safety rests, replaceable so that the conformance suite can prove that it
 * catches a core which gets them wrong. Nothing but tests passes others.
 */
export interface Seams {
  /** The moment from which a proof of `sentAtMs` counts: that moment, not now. */
  countFrom(sentAtMs: number): number;
  /** The ask from whose send a grant counts: the one that it names, not the last. */
  restsOn(seq: number, lastSeq: number): number;
}

export const honest: Seams = {
  countFrom: (sentAtMs) => sentAtMs,
  restsOn: (seq) => seq,
};

let shared: Runtime | undefined;

export function systemRuntime(): Runtime {
  shared ??= { clock: systemClock(), random: systemRandom(), seams: honest };
  return shared;
}
