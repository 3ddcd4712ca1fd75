import type { Event, History } from "./history.js";

export type RuleId =
  | "S1"
  | "S2"
  | "S3"
  | "S4"
  | "S5"
  | "S6"
  | "S7"
  | "S8"
  | "S9"
  | "L1"
  | "L2"
  | "L3"
  | "L4"
  | "L5"
  | "L6";

/** `unknown`: nothing in the history speaks of the rule, or not enough to decide. */
export interface Verdict {
  readonly rule: RuleId;
  readonly verdict: "ok" | "violated" | "unknown";
  /** One sentence for people; times count from the history's first event. */
  readonly why: string;
  /** Only the events that show it, in order of time. */
  readonly evidence: History;
  /** How many things were compared: never 0 with `ok`. */
  readonly checked: number;
  /** What was broken only where an excuse covers it. */
  readonly excused?: Excused;
}

/** Under a fault for which the store does not promise these rules, breaking them counts as expected. */
export interface Excuse {
  readonly rules: readonly RuleId[];
  readonly fromMs: number;
  readonly toMs: number;
}

interface Excused {
  readonly count: number;
  /** Of the first. */
  readonly why: string;
  readonly evidence: History;
}

/** What is tolerated before a rule counts as violated. */
export interface Limits {
  /** S6: how late a loss may be told. */
  readonly lossMs: number;
  /** S6: the same after a pause: the timers of a machine that slept stood still. */
  readonly wakeMs: number;
  /** S7: how far the record of a moment may lag behind the moment; 0 in simulated time. */
  readonly recordMs: number;
  /** S5: what a request that was under way may add to the ttl of something left behind. */
  readonly orphanMs: number;
  /** S5: how soon who lives and is not disturbed clears up; `Infinity`: the ttl does. */
  readonly cleanMs: number;
  /** S5: how soon after the last fault a release that failed is done; `Infinity`: the ttl does it. */
  readonly repayMs: number;
  /** L1: the ε after the ttl. */
  readonly freeMs: number;
  /** L1: an election on top, where the store holds one. */
  readonly electionMs: number;
  /** L2: how soon after healing waiters go on. */
  readonly healMs: number;
  /** L3: how late an abort or a timeout may end the wait; L4: how long before that the ticket may be gone. */
  readonly endMs: number;
  /** L3: what a single ask may take, for `wait: 0`. */
  readonly commandMs: number;
  /** L4: whether first come, first served is promised. */
  readonly fair: boolean;
  /** L6: whether all that can disturb a client is in the history; a busy machine's stalls are not. */
  readonly complete: boolean;
  /** L5: commands per handover with the most waiters, at most this many times those with the fewest … */
  readonly growth: number;
  /** … plus this many. */
  readonly extraCommands: number;
}

export const LIMITS: Limits = {
  lossMs: 100,
  wakeMs: 350,
  recordMs: 1,
  orphanMs: 1_000,
  cleanMs: Number.POSITIVE_INFINITY,
  repayMs: Number.POSITIVE_INFINITY,
  freeMs: 1_000,
  electionMs: 0,
  healMs: 5_000,
  endMs: 1_000,
  commandMs: 5_000,
  fair: true,
  complete: false,
  growth: 1.5,
  extraCommands: 1,
};

export interface Violation {
  /** When it was there to be seen: the earliest is the one that is told. */
  readonly atMs: number;
  /** When began what was broken, if that is earlier: an excuse for any of that time counts. */
  readonly sinceMs?: number;
  readonly why: string;
  readonly evidence: readonly Event[];
}

/** What a rule found. */
export interface Finding {
  readonly checked: number;
  readonly violations: readonly Violation[];
  /** Looks like a violation, but something else may explain it. */
  readonly undecided?: readonly Violation[];
  /** What the history would have needed to show, when nothing could be compared. */
  readonly lacks: string;
}
