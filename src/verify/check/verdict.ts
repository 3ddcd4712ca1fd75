import type { Event, History } from "./history.js";

/** S1 to S9 are rules of safety, L1 to L6 rules of liveness. */
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

/** `unknown`: the history contains nothing about the rule, or too little to decide. */
export interface Verdict {
  /** The rule that was checked. */
  readonly rule: RuleId;
  /** Whether the history keeps the rule. */
  readonly verdict: "ok" | "violated" | "unknown";
  /** One sentence for people; times count from the history's first event. */
  readonly why: string;
  /** The events that show the verdict, in order of time. */
  readonly evidence: History;
  /** How many comparisons were made: never 0 with `ok`. */
  readonly checked: number;
  /** Violations that an excuse covers. */
  readonly excused?: Excused;
}

/** A fault under which the store does not promise these rules: violations count as expected. */
export interface Excuse {
  readonly rules: readonly RuleId[];
  readonly fromMs: number;
  readonly toMs: number;
  /** Only violations on this name. Default: on all names. */
  readonly name?: string;
  /** Only violations that an op of this client takes part in. Default: of all clients. */
  readonly client?: string;
}

interface Excused {
  readonly count: number;
  /** The reason of the first one. */
  readonly why: string;
  readonly evidence: History;
}

/** The tolerances of the rules. */
export interface Limits {
  /** S6: how late a client may be notified of a loss. */
  readonly lossMs: number;
  /** S6: the same after a pause, because the timers of a sleeping machine stand still. */
  readonly wakeMs: number;
  /** S7: how much later than its moment an event may be recorded; 0 in simulated time. */
  readonly recordMs: number;
  /** S5: how much a delayed request may add to the ttl of a record left behind. */
  readonly orphanMs: number;
  /** S5: how soon a client that lives undisturbed releases its claim; `Infinity`: the claim may expire instead. */
  readonly cleanMs: number;
  /** S5: how soon after the last fault a failed release is repeated; `Infinity`: the grant may expire instead. */
  readonly repayMs: number;
  /** L1: the tolerance after the ttl. */
  readonly freeMs: number;
  /** L1: extra time for an election of the store's own leader. */
  readonly electionMs: number;
  /** L2: how soon after healing a waiter must be granted. */
  readonly healMs: number;
  /** L3: how late an abort or a timeout may end the wait. L4: how long before that the ticket may be gone. */
  readonly endMs: number;
  /** L3: how long a single claim may take with `wait: 0`. */
  readonly commandMs: number;
  /** L4: whether first come, first served is promised. */
  readonly fair: boolean;
  /** L6: whether the history has everything that can disturb a client; the stalls of a busy machine are not in it. */
  readonly complete: boolean;
  /** L5: commands per handover with the most waiters are at most this factor times those with the fewest … */
  readonly growth: number;
  /** … plus this many. */
  readonly extraCommands: number;
}

/** The limits that apply unless others are given. */
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
  /** The moment at which the violation can be seen; the earliest violation is reported. */
  readonly atMs: number;
  /** The start of the violation, if it is earlier than `atMs`: an excuse for any moment since then counts. */
  readonly sinceMs?: number;
  readonly why: string;
  readonly evidence: readonly Event[];
}

/** The result of one rule. */
export interface Finding {
  readonly checked: number;
  readonly violations: readonly Violation[];
  /** Apparent violations that something else may explain. */
  readonly undecided?: readonly Violation[];
  /** The evidence that the history lacks, if nothing could be compared. */
  readonly lacks: string;
}
