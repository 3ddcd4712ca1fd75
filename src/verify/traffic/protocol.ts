import type { AcquireOptions, LocksOptions } from "../../core/options.js";
import type { Duration } from "../../core/validate.js";
import type { OnceOptions } from "../../primitives/once.js";
import type { MutantName } from "../../testing/mutants.js";

/** What a worker's process is to do: the first line of its standard input. */
export interface WorkerTask {
  readonly client: string;
  readonly url: string;
  readonly options: LocksOptions;
  /** An SQLite file with a counter behind a fence, for `write`. */
  readonly resourceFile?: string;
  /** A core that is wrong in one way: to see that the checks find it. */
  readonly mutant?: MutantName;
  /** How it is connected; one connection with one `Locks` if left out. */
  readonly connections?: readonly Connections[];
  /** Reports when its event loop stood still, as a pause. */
  readonly reportsStalls?: boolean;
}

/** One client of the store in a worker, and the `Locks` that share it. */
export interface Connections {
  /** The worker's own URL if left out. */
  readonly url?: string;
  readonly locks: number;
  /** A client of this library with its defaults; without it, as `connect` opens one, if it is not shared. */
  readonly library?: "ioredis" | "redis";
  /** Connects when the first lock is asked for. */
  readonly lazy?: boolean;
}

/** What it can be asked: one JSON text a line, to its standard input. */
export type Request =
  | {
      readonly do: "acquire";
      readonly op: string;
      readonly name: Names;
      readonly options: Options;
    }
  /** Gives back what came of the acquire; a leader resigns. */
  | { readonly do: "release"; readonly op: string }
  | { readonly do: "look"; readonly op: string }
  | { readonly do: "renew"; readonly op: string; readonly ttlMs: number }
  | { readonly do: "abort"; readonly op: string }
  /** A read-modify-write behind the fence: enter, read, so long a pause, write. */
  | { readonly do: "write"; readonly op: string; readonly pauseMs: number }
  /** Again and again until the time is over. */
  | { readonly do: "loop"; readonly loop: Loop }
  /** Term after term until it is aborted. */
  | { readonly do: "lead"; readonly op: string; readonly lead: Lead }
  | { readonly do: "once"; readonly op: string; readonly once: Once }
  | { readonly do: "forceRelease"; readonly name: string; readonly why: string }
  /** Keeps its event loop busy. */
  | { readonly do: "block"; readonly forMs: number }
  /** Draws operations from a seed until the time is over. */
  | { readonly do: "program"; readonly program: Program }
  /** Aborts everything that waits; programs begin nothing more. */
  | { readonly do: "finish" }
  | { readonly do: "close" };

/** Several: all or none. Each is an op of its own in the history, named by `opFor`. */
export type Names = string | readonly string[];

/** What is taken of a name: the lock, or permits, or leadership. */
export interface Options extends Omit<AcquireOptions, "signal"> {
  /** The name is a semaphore's with so many permits. */
  limit?: number;
  /** How many of them. Default 1. */
  permits?: number;
  /** Campaigns for it. */
  elected?: boolean;
  /** It will be renewed to another ttl, and this is the longest. */
  longestTtl?: Duration;
}

export interface Loop {
  readonly name: Names;
  /** Either may end it. */
  readonly forMs?: number;
  readonly rounds?: number;
  readonly holdMs: number;
  readonly options?: Options;
  /** Use the resource each time. */
  readonly writes?: boolean;
}

/** What one lane of a worker does: one operation after another, each drawn from the seed. */
export interface Program {
  readonly seed: number;
  /** Its ops begin so. */
  readonly lane: string;
  /** Which of the worker's `Locks` it uses. */
  readonly via: number;
  readonly names: readonly ContendedName[];
  readonly ttlsMs: readonly number[];
  /** The longest wait for a name. */
  readonly waitMs: number;
  /** The mean pause between two operations. */
  readonly pauseMs: number;
  /** On the time line: then it begins nothing more. */
  readonly untilMs: number;
}

export interface ContendedName {
  readonly name: string;
  /** How many permits it has at first; 0: it is a lock. */
  readonly permits: number;
  /** For `once`, and nothing else. */
  readonly onceEveryMs?: number;
}

export interface Lead {
  readonly name: string;
  /** From reading the resource to writing it, all the time while it leads. */
  readonly pauseMs: number;
  readonly options?: Pick<Options, "ttl" | "note">;
}

export interface Once extends Omit<OnceOptions, "signal" | "note" | "onLost"> {
  readonly name: string;
  /** How long its work takes. */
  readonly workMs: number;
}

/** What it says, a line each: an event as in any encoded history, or this. */
export interface Answered {
  readonly id: number;
  readonly answer: Answer;
}

export type Value = string | number | boolean | readonly Value[];

export type Answer =
  | { readonly ok: true; readonly value?: Value }
  | { readonly ok: false; readonly code: string; readonly message: string };

/** No name and no label has a control character. */
const FOR_EVER = "\u0000for ever";

/** JSON has no infinity. */
export const toLine = (line: object): string =>
  `${JSON.stringify(line, (_key, value) =>
    value === Number.POSITIVE_INFINITY ? FOR_EVER : value,
  )}\n`;

export const fromLine = <T>(text: string): T =>
  JSON.parse(text, (_key, value) => (value === FOR_EVER ? Number.POSITIVE_INFINITY : value)) as T;
