import type { CheckId } from "../../runner/result.js";

/**
 * The data of the time lines, as JSON in the page. Rows are tuples to keep it small. Times are in
 * ms since the first event. Workers, names and operations are indices.
 */
export interface PageData {
  readonly fromMs: number;
  readonly toMs: number;
  readonly workers: readonly string[];
  readonly names: readonly string[];
  /** Operations in the order of their requests. */
  readonly operations: readonly OperationRow[];
  readonly kills: readonly (readonly [worker: number, atMs: number])[];
  readonly pauses: readonly (readonly [
    worker: number,
    fromMs: number,
    toMs: number,
    frozen: 0 | 1,
  ])[];
  /** `worker` is -1 for a fault of the server, the cluster or the files. */
  readonly faults: readonly (readonly [
    worker: number,
    fromMs: number,
    toMs: number,
    name: string,
  ])[];
  readonly refusals: readonly (readonly [operation: number, atMs: number, what: string])[];
  readonly losses: readonly (readonly [operation: number, atMs: number, reason: string])[];
  readonly runs: readonly (readonly [fromMs: number, seed: number])[];
  readonly stories: readonly StoryRow[];
}

export type OperationRow = readonly [
  worker: number,
  name: number,
  /** "" for exclusive, else "shared" or "2 of 4 permits". */
  mode: string,
  askedAtMs: number,
  /** The end of the wait, or of the time line. */
  waitedUntilMs: number,
  op: string,
  /** The reason why no lease was granted; "" if one was. */
  outcome: string,
  token: string,
  /** The end of the lease; "" if none was granted. */
  ending: string,
  /** Start and end of each interval in which the lease was held, one after the other. */
  ...holds: number[],
];

export interface StoryRow {
  readonly check: CheckId;
  readonly violated: boolean;
  readonly fromMs: number;
  readonly toMs: number;
  /** The time in which the promise was broken. */
  readonly wrong: readonly [fromMs: number, toMs: number] | null;
  /** `worker` and `name` are -1 where the event has none. */
  readonly marks: readonly (readonly [atMs: number, worker: number, name: number, text: string])[];
}
