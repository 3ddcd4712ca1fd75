import type { Lease, ReleaseResult } from "../../core/lease.js";
import { type Duration, parseDuration } from "../../core/validate.js";
import type { Fenced } from "../../fence/fence.js";
import type { Locks } from "../../locks.js";
import type { MultiLease } from "../../primitives/multi.js";
import { opFor } from "../check/history.js";
import type { Names } from "./protocol.js";
import { report } from "./report.js";
import { machineMs } from "./time-line.js";

/** One name of an acquire, with its op in the history. */
export interface Part {
  readonly op: string;
  readonly name: string;
  /** The multi-lock that the op is part of. */
  readonly together?: string;
  /** Re-entry: the op whose lease this one shares. */
  readonly within?: string;
}

/** The result of an acquire: one lease, or several as one. */
export interface Taken {
  readonly locks: Locks;
  readonly parts: readonly (Part & Fenced)[];
  readonly held: Lease | MultiLease;
  release(): Promise<ReleaseResult>;
}

/** Names, each with its token. */
export type Tokens = readonly (readonly [name: string, token: string])[];

export const partsOf = (op: string, name: Names): readonly Part[] =>
  typeof name === "string"
    ? [{ op, name }]
    : [...new Set(name)].sort().map((one) => ({ op: opFor(op, one), name: one, together: op }));

/** A lease's deadline on the time line, read without interruption: a stop in between would move it. */
export function deadlineOf(held: Taken["held"]): { atMs: number; untilMs: number } {
  for (;;) {
    const atMs = machineMs();
    const untilMs = atMs + held.remainingMs;
    if (untilMs === atMs || machineMs() - atMs < 0.5) return { atMs, untilMs };
  }
}

/**
 * Reports the new deadline. A multi-lock is good until the first of its leases ends. `renewedAtMs`: when the reply was
 * there, for a process that was stopped on its way from there to here.
 */
export function reportRenewed({ parts, held }: Taken, renewedAtMs?: number): void {
  const { atMs, untilMs } = deadlineOf(held);
  if (untilMs <= atMs) return;
  for (const { op } of parts) report({ kind: "renewed", op, untilMs }, renewedAtMs ?? atMs);
}

export function believes(held: Taken["held"]): boolean {
  try {
    held.assertHeld();
    return true;
  } catch {
    return false;
  }
}

export const milliseconds = (duration: Duration): number =>
  parseDuration(duration, "the duration", { min: 0, infinite: true });
