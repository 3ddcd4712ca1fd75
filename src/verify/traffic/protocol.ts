import type { AcquireOptions, LocksOptions } from "../../core/options.js";
import type { MutantName } from "../../testing/mutants.js";

/** What a worker's process is started with. */
export interface WorkerTask {
  readonly client: string;
  readonly url: string;
  readonly options: LocksOptions;
  /** An SQLite file with a counter behind a fence, for `write`. */
  readonly resourceFile?: string;
  /** A core that is wrong in one way: to see that the checks find it. */
  readonly mutant?: MutantName;
}

/** What it can be asked: one JSON text a line, to its standard input. */
export type Request =
  | {
      readonly do: "acquire";
      readonly op: string;
      readonly name: string;
      readonly options: Options;
    }
  | { readonly do: "release"; readonly op: string }
  | { readonly do: "look"; readonly op: string }
  | { readonly do: "renew"; readonly op: string; readonly ttlMs: number }
  | { readonly do: "abort"; readonly op: string }
  /** A read-modify-write behind the fence: enter, read, so long a pause, write. */
  | { readonly do: "write"; readonly op: string; readonly pauseMs: number }
  /** Again and again until the time is over. */
  | { readonly do: "loop"; readonly loop: Loop }
  /** Keeps its event loop busy. */
  | { readonly do: "block"; readonly forMs: number }
  | { readonly do: "close" };

export type Options = Omit<AcquireOptions, "signal" | "note">;

export interface Loop {
  readonly name: string;
  readonly forMs: number;
  readonly holdMs: number;
  readonly options?: Options;
  /** Use the resource each time. */
  readonly writes?: boolean;
}

/** What it says, a line each: an event as in any encoded history, or this. */
export interface Answered {
  readonly id: number;
  readonly answer: Answer;
}

export type Answer =
  | { readonly ok: true; readonly value?: string | number | boolean }
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
