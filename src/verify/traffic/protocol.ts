import type { AcquireOptions, LocksOptions } from "../../core/options.js";
import type { Feature } from "../../core/store.js";
import type { Duration } from "../../core/validate.js";
import type { OnceOptions } from "../../primitives/once.js";
import type { MutantName } from "../../testing/mutants.js";
import type { RegisterPlace } from "./registers/register.js";

/** The task of a worker's process: the first line of its standard input. */
export interface WorkerTask {
  readonly client: string;
  readonly url: string;
  readonly options: LocksOptions;
  /** An SQLite file with a counter behind a fence, for `write`. */
  readonly resourceFile?: string;
  /** Another place for that counter. */
  readonly register?: RegisterPlace;
  /** A deliberately wrong core, to show that the checks find it. */
  readonly mutant?: MutantName;
  /** The connections of the worker. Default: one connection with one `Locks`. */
  readonly connections?: readonly Connections[];
  /** Whether the worker reports, as a pause, that its event loop stood still. */
  readonly reportsStalls?: boolean;
}

/** One client of the store in a worker, and the `Locks` that share it. */
export interface Connections {
  /** The store's URL. Default: the worker's own. */
  readonly url?: string;
  readonly locks: number;
  /**
   * The client library, with its defaults; the other one if it is not installed. Without it, the client is
   * opened as `connect` does, and is not shared.
   */
  readonly library?: "ioredis" | "redis";
  /** Connects on the first request. */
  readonly lazy?: boolean;
}

/** A request to a worker: one JSON text per line, on its standard input. */
export type Request =
  | {
      readonly do: "acquire";
      readonly op: string;
      readonly name: Names;
      readonly options: Options;
    }
  /** Releases the lease of the acquire; a leader resigns. */
  | { readonly do: "release"; readonly op: string }
  | { readonly do: "look"; readonly op: string }
  | { readonly do: "renew"; readonly op: string; readonly ttlMs: number }
  | { readonly do: "abort"; readonly op: string }
  /** A read-modify-write behind the fence: enter, read, pause, write. */
  | { readonly do: "write"; readonly op: string; readonly pauseMs: number }
  /** Repeats until the time is over. */
  | { readonly do: "loop"; readonly loop: Loop }
  /** Leads term after term until it is aborted. */
  | { readonly do: "lead"; readonly op: string; readonly lead: Lead }
  | { readonly do: "once"; readonly op: string; readonly once: Once }
  | { readonly do: "forceRelease"; readonly name: string; readonly why: string }
  /** Keeps its event loop busy. */
  | { readonly do: "block"; readonly forMs: number }
  /** Draws operations from a seed until the time is over. */
  | { readonly do: "program"; readonly program: Program }
  /** Aborts all pending acquires; programs begin nothing more. */
  | { readonly do: "finish" }
  | { readonly do: "close" };

/** One name, or several as a multi-lock. Each of several is an op of its own in the history, named by `opFor`. */
export type Names = string | readonly string[];

/** The kind of lock to take: a lock, permits or leadership. */
export interface Options extends Omit<AcquireOptions, "signal"> {
  /** The number of permits, if the name is a semaphore. */
  limit?: number;
  /** How many permits to take. Default 1. */
  permits?: number;
  /** Campaigns in the election of this name. */
  elected?: boolean;
  /** The longest ttl to which the lease will be renewed, if it will be. */
  longestTtl?: Duration;
}

/** Takes a name again and again. */
export interface Loop {
  /** The name or names to take. */
  readonly name: Names;
  /** How long the loop lasts; it ends at `forMs` or after `rounds`. */
  readonly forMs?: number;
  /** How many times the name is taken. */
  readonly rounds?: number;
  /** How long it is held each time, in milliseconds. */
  readonly holdMs: number;
  /** The options of each acquire. */
  readonly options?: Options;
  /** Whether it uses the resource each time. */
  readonly writes?: boolean;
}

/** The program of one lane of a worker: one operation after another, each drawn from the seed. */
export interface Program {
  readonly seed: number;
  /** The prefix of its ops. */
  readonly lane: string;
  /** The index of the worker's `Locks` that it uses. */
  readonly via: number;
  readonly names: readonly ContendedName[];
  readonly ttlsMs: readonly number[];
  /** The longest wait for a name. */
  readonly waitMs: number;
  /** The mean pause between two operations. */
  readonly pauseMs: number;
  /** The share of leases that are not renewed, and held until they expire. Default 0.025. */
  readonly expiringShare?: number;
  /** The longest time for which a renewed lease is held, in ttls. Default 1.5. */
  readonly longestHoldTtls?: number;
  /** The operations that the store refuses: workers do not ask for them. Several names are not among them, because they are taken one by one. */
  readonly refuses?: readonly Feature[];
  /** The time, on the time line, after which it begins nothing more. */
  readonly untilMs: number;
}

export interface ContendedName {
  readonly name: string;
  /** The number of permits at first; 0 for a lock. */
  readonly permits: number;
  /** The period of `once`; such a name is used for nothing else. */
  readonly onceEveryMs?: number;
}

/** The options for leading an election until aborted. */
export interface Lead {
  /** The name of the election. */
  readonly name: string;
  /** The pause between reading and writing the resource, again and again while it leads. */
  readonly pauseMs: number;
  /** Options of the election. */
  readonly options?: Pick<Options, "ttl" | "note">;
}

/** The options for running work once per period. */
export interface Once extends Omit<OnceOptions, "signal" | "note" | "onLost"> {
  /** The name of the work. */
  readonly name: string;
  /** How long the work takes, in milliseconds. */
  readonly workMs: number;
}

/** A reply of a worker: one line. Events, as in an encoded history, are the other kind of line. */
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

/** JSON has no infinity, so it becomes a text. */
export const toLine = (line: object): string =>
  `${JSON.stringify(line, (_key, value) =>
    value === Number.POSITIVE_INFINITY ? FOR_EVER : value,
  )}\n`;

export const fromLine = <T>(text: string): T =>
  JSON.parse(text, (_key, value) => (value === FOR_EVER ? Number.POSITIVE_INFINITY : value)) as T;
