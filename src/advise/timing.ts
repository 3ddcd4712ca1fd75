import { durationText } from "../core/validate.js";
import type { CompleteAnswers } from "./questions.js";

/** The shortest ttl by runtime: a pause of its garbage collector or scheduler must not end a lease. */
export const SHORTEST_TTL_MS: Readonly<Record<CompleteAnswers["runtime"], number>> = {
  node: 30_000,
  go: 30_000,
  rust: 30_000,
  jvm: 60_000,
};

/** The longest ttl with renewal: a crashed holder blocks its name for one ttl. */
const LONGEST_TTL_MS = 300_000;

const WORK_FACTOR = 3;
const UNRENEWED_FACTOR = 10;
const DRIFT_FACTOR = 0.01;
const DRIFT_MS = 2;

/** A number of the advice, and how it was found. */
export interface Figure {
  /** Milliseconds. */
  readonly ms: number;
  /** The formula with the numbers filled in. */
  readonly formula: string;
}

/** The times of a lease. */
export interface Timing {
  /** The ttl to pass. */
  readonly ttl: Figure;
  /** The time between two renewals. */
  readonly renewal: Figure;
  /** For how long a fresh lease is good, counted from the reply. */
  readonly validity: Figure;
  /** The signal aborts this long before the lease can expire. */
  readonly abortBefore: Figure;
  /** When renewal stops, because the work hangs. */
  readonly maxHold: Figure;
  /** The ttl to pass with `renew: false`. */
  readonly withoutRenewal: Figure;
}

/** All formulas, as the page prints them. */
export const FORMULAS = {
  ttl: `ttl ≥ ${WORK_FACTOR} × expected + network, at least the minimum of the runtime, and at most ${durationText(LONGEST_TTL_MS)}, because a crashed holder blocks its name for one ttl; longer work is renewed`,
  renewal: "renewal = ttl / 3",
  validity: `validity = ttl − (acquired − started) − drift, where drift = ${DRIFT_FACTOR * 100} % of the ttl + ${DRIFT_MS} ms`,
  abortBefore: "abortBefore = ttl / 10",
  maxHold: `maxHold = ${UNRENEWED_FACTOR} × expected, at least one ttl`,
  withoutRenewal: `ttl ≥ ${UNRENEWED_FACTOR} × expected without a watchdog (renew: false), at least the minimum of the runtime`,
} as const satisfies Record<keyof Timing, string>;

const wholeSeconds = (ms: number): number => Math.ceil(ms / 1_000) * 1_000;

/** The times for these answers. */
export function timingFor({ work, network, runtime }: CompleteAnswers): Timing {
  const shortestMs = SHORTEST_TTL_MS[runtime];
  const [expected, minimum, longest] = [work, shortestMs, LONGEST_TTL_MS].map(durationText);
  const byWorkMs = WORK_FACTOR * work + network;
  const ttlMs = wholeSeconds(Math.max(shortestMs, Math.min(byWorkMs, LONGEST_TTL_MS)));
  const ttl = durationText(ttlMs);
  const driftMs = ttlMs * DRIFT_FACTOR + DRIFT_MS;
  const unrenewedMs = wholeSeconds(Math.max(shortestMs, UNRENEWED_FACTOR * work));
  const limit = byWorkMs > LONGEST_TTL_MS ? `, at most ${longest}` : "";
  return {
    ttl: {
      ms: ttlMs,
      formula: `${WORK_FACTOR} × ${expected} + ${durationText(network)} = ${durationText(byWorkMs)}, at least ${minimum} for this runtime${limit}`,
    },
    renewal: { ms: ttlMs / 3, formula: `${ttl} / 3` },
    validity: {
      ms: ttlMs - network - driftMs,
      formula: `${ttl} − ${durationText(network)} − ${durationText(driftMs)}`,
    },
    abortBefore: { ms: ttlMs / 10, formula: `${ttl} / 10` },
    maxHold: {
      ms: Math.max(ttlMs, wholeSeconds(UNRENEWED_FACTOR * work)),
      formula: `${UNRENEWED_FACTOR} × ${expected}, at least ${ttl}`,
    },
    withoutRenewal: {
      ms: unrenewedMs,
      formula: `${UNRENEWED_FACTOR} × ${expected}, at least ${minimum}`,
    },
  };
}
