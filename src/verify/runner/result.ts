import type { History } from "../check/history.js";
import type { RuleId } from "../check/verdict.js";

/** The part of a setup that a fault hits. */
export type Hits = "worker" | "connection" | "server" | "cluster" | "files";

/** The rules about a history, and the promises about a whole run. */
export type CheckId = RuleId | "P1" | "P2" | "P3" | "P4" | "P5";

/**
 * `expected`: broken only under a fault for which the store does not promise it. `unknown`: the run
 * showed nothing about it.
 */
type CheckVerdict = "held" | "violated" | "expected" | "unknown";

/** The outcome of one check over a run, or over all runs. */
export interface CheckResult {
  /** The id of the check. */
  readonly id: CheckId;
  /** The promise, in one sentence. */
  readonly promise: string;
  /** Whether the promise was kept. */
  readonly verdict: CheckVerdict;
  /** How many comparisons were made. */
  readonly checked: number;
  /** How often the promise was broken under a fault for which the store does not give it. */
  readonly expected: number;
  /** The reason of the verdict, for people. */
  readonly why: string;
  /** The events that show a violation, or the first expected one; in order of time. */
  readonly evidence: History;
}

/** A fault that was active from `fromMs` to `untilMs`. */
export interface FaultRecord {
  /** The kind as `--faults` names it: "subscription cut". */
  readonly kind: string;
  /** The part of the setup that the fault hits. */
  readonly hits: Hits;
  /** The name in the history: "w2: subscription cut". */
  readonly name: string;
  /** The worker that the fault hits, if it hits one. */
  readonly client?: string;
  /** When it was injected, on the time line of the history. */
  readonly fromMs: number;
  /** When it was healed, on the time line of the history. */
  readonly untilMs: number;
  /** The error of its injection, or that it met no request: it did not strike, or only in part, and does not count as a fault. */
  readonly failed?: string;
}

/** Whether the fault struck. */
export const hasStruck = ({ failed }: FaultRecord): boolean => failed === undefined;

/** A kind of fault that may be drawn, and what the store does not promise under it. */
interface KindRecord {
  readonly name: string;
  readonly hits: Hits;
  readonly breaks: readonly RuleId[];
  /** The reason why these rules are not promised; empty if all are. */
  readonly because: string;
}

/** One run: workers, traffic and faults drawn from one seed, and checked as one history. */
export interface RunRecord {
  /** The seed from which the run was drawn. */
  readonly seed: number;
  /** The start of the run, on the time line of the history. */
  readonly fromMs: number;
  /** The end of the run, on the same time line. */
  readonly untilMs: number;
  /** The names of its workers. */
  readonly clients: readonly string[];
  /** The faults that were active, and those that did not strike. */
  readonly faults: readonly FaultRecord[];
  /** The checks over this run alone. */
  readonly checks: readonly CheckResult[];
  /** The updates of this run behind the fence and without one. */
  readonly registers: Registers;
}

/** The updates of a register that each holder reads, changes and writes. */
export interface RegisterCount {
  readonly writes: number;
  /** Updates that a later write overwrote without having read them. */
  readonly lost: number;
  /** Writes that the fence refused; 0 where there is no fence. */
  readonly refused: number;
}

/** The two numbers that holders read, change and write: one behind a fence, one without. */
export interface Registers {
  readonly fenced: RegisterCount;
  readonly unfenced: RegisterCount;
}

/** All results of one verification, for the terminal, the report and `--json`. */
export interface Result {
  /** The name of the lab, such as "redis-cluster", or the store of `--store`. */
  readonly target: string;
  /** A description for people: "a Redis Cluster of three nodes". */
  readonly about: string;
  /** The fence of the register: `sqlite` unless `--fence` named another. */
  readonly fence: string;
  /** Versions of Holdfast, Node and the client libraries, and of the servers of a lab. */
  readonly versions: Readonly<Record<string, string>>;
  /** The start of the verification, ISO 8601. */
  readonly startedAt: string;
  /** How long the verification took, in milliseconds. */
  readonly lastedMs: number;
  /** The seed of the first run. */
  readonly seed: number;
  /** The command that repeats it. */
  readonly command: string;
  /** All runs, in order. */
  readonly runs: readonly RunRecord[];
  /** The kinds of faults that could be drawn. */
  readonly kinds: readonly KindRecord[];
  /** The checks over all runs. */
  readonly checks: readonly CheckResult[];
  /** The rules about features that the store does not offer, such as an order of waiters. */
  readonly notOffered: readonly RuleId[];
  /** `violated` if a check is violated; `unknown` if too little was compared, or no fault of a given choice struck. */
  readonly outcome: "held" | "violated" | "unknown";
  /** How many acquires began. */
  readonly operations: number;
  /** How many leases were granted. */
  readonly grants: number;
  /** How many faults struck. */
  readonly faults: number;
  /** How many faults were drawn and did not strike: they could not be injected, or met no request. */
  readonly failedFaults: number;
  /** The register behind a fence. */
  readonly fenced: RegisterCount;
  /** The register without a fence. */
  readonly unfenced: RegisterCount;
}
