import type { History } from "../check/history.js";
import type { RuleId } from "../check/verdict.js";

/** What a fault hits. */
export type Hits = "worker" | "connection" | "server" | "cluster" | "files";

/** The rules over a history, and what is checked of a whole run besides. */
export type CheckId = RuleId | "P1" | "P2" | "P3" | "P4" | "P5";

/**
 * `expected`: broken only where the store does not promise it: under a fault that is known to break
 * it. `unknown`: nothing was seen of it.
 */
export type CheckVerdict = "held" | "violated" | "expected" | "unknown";

export interface CheckResult {
  readonly id: CheckId;
  /** One sentence: what must hold. */
  readonly promise: string;
  readonly verdict: CheckVerdict;
  /** How many things were compared. */
  readonly checked: number;
  /** How often it was broken under a fault for which the store does not promise it. */
  readonly expected: number;
  /** For people: what was seen. */
  readonly why: string;
  /** The events that show a violation, or the first expected one; in order of time. */
  readonly evidence: History;
}

/** A fault that was in force. `untilMs` is when it was healed. */
export interface FaultRecord {
  /** Which kind, as `--faults` names it: "subscription cut". */
  readonly kind: string;
  readonly hits: Hits;
  /** As the history has it: "w2: subscription cut". */
  readonly name: string;
  /** The worker that it hits, if it hits one. */
  readonly client?: string;
  readonly fromMs: number;
  readonly untilMs: number;
}

/** A kind of fault that may be drawn, and what the store does not promise under it. */
interface KindRecord {
  readonly name: string;
  readonly hits: Hits;
  readonly breaks: readonly RuleId[];
  /** Why that is not promised; empty if everything is. */
  readonly because: string;
}

/** One run: workers, traffic and faults drawn from one seed, and checked as one history. */
export interface RunRecord {
  readonly seed: number;
  /** On the time line of the history. */
  readonly fromMs: number;
  readonly untilMs: number;
  readonly clients: readonly string[];
  readonly faults: readonly FaultRecord[];
  readonly checks: readonly CheckResult[];
}

/** Of a register that is read, changed and written again by each holder. */
export interface RegisterCount {
  readonly writes: number;
  /** Updates that a later write did not know of. */
  readonly lost: number;
  /** Writes that the fence refused; 0 where there is no fence. */
  readonly refused: number;
}

/** All that one verification saw: what the terminal, the report and `--json` show. */
export interface Result {
  /** "redis-cluster", or the store of `--store`. */
  readonly target: string;
  /** What it is, for people: "a Redis Cluster of three nodes". */
  readonly about: string;
  /** Versions of Node, the server and the client libraries. */
  readonly versions: Readonly<Record<string, string>>;
  /** ISO 8601. */
  readonly startedAt: string;
  readonly lastedMs: number;
  readonly seed: number;
  /** The command that repeats it. */
  readonly command: string;
  readonly runs: readonly RunRecord[];
  readonly kinds: readonly KindRecord[];
  /** Over all runs. */
  readonly checks: readonly CheckResult[];
  readonly outcome: "held" | "violated" | "unknown";
  readonly operations: number;
  readonly grants: number;
  readonly faults: number;
  readonly fenced: RegisterCount;
  readonly unfenced: RegisterCount;
}
