import { accessSync, constants, statSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { choicesOf, QUESTIONS, type QuestionId } from "../advise/questions.js";
import { wrap } from "../advise/text.js";
import { durationText, parseDuration, YEAR_MS } from "../core/validate.js";
import { STORE_KINDS } from "../stores/registry.js";
import { REGISTER_FENCES } from "../verify/traffic/registers/register.js";
import { usage } from "./exit.js";
import { typed } from "./output.js";

export interface Option {
  /** The word for its value in the help. An option without one is a flag. */
  readonly value?: string;
  /** A letter, for the help; only `help` and `version` have one. */
  readonly short?: string;
  readonly about: string;
}

/** The schemes of the stores that several processes can share, in lines that fit beside the longest option. */
const SCHEMES = STORE_KINDS.filter(({ scope }) => scope !== "process")
  .flatMap(({ schemes }) => schemes.map((scheme) => `${scheme}:`))
  .join(" ")
  .replaceAll(/(.{1,40})(?: |$)/g, "$1\n")
  .trimEnd();

/** A question of `advise` with its answers, as a help text. */
function asks(id: QuestionId): string {
  const question = QUESTIONS[id];
  const answers =
    "choices" in question ? choicesOf(id).join(" ") : `a time (default: ${question.default})`;
  return [question.ask, answers].flatMap((text) => wrap(text, 54)).join("\n");
}

export const OPTIONS = {
  store: {
    value: "URL",
    about: `where the locks are, such as sqlite:/srv/locks.db\n(default: HOLDFAST_STORE, or a file of this user);\nschemes: ${SCHEMES}`,
  },
  "store-file": {
    value: "PATH",
    about:
      "a file that holds the URL of the store, for one\nwith a password (default: HOLDFAST_STORE_FILE)",
  },
  namespace: { value: "NAME", about: "separates users of one store (default: default)" },
  ttl: { value: "TIME", about: "how long the lease lasts without renewal\n(default: 30s)" },
  wait: {
    value: "TIME",
    about: "how long to wait for a busy name, or forever\n(default: 0, try once)",
  },
  shared: { about: "share the name with other --shared runs" },
  "once-per": { value: "TIME", about: "run CMD at most once in this time, on all machines" },
  "at-most": { value: "N", about: "let N runs hold the name at the same time" },
  "at-least": {
    value: "TIME",
    about: "keep the name closed for this time from the start,\neven if CMD ends earlier",
  },
  "max-hold": { value: "TIME", about: "stop CMD after this time" },
  note: { value: "TEXT", about: "a text that others see beside the holder" },
  "if-unavailable": {
    value: "fail|run",
    about: "what to do when the store can't be used\n(default: fail)",
  },
  quiet: { about: "print nothing when the name is held (exit code 75)" },
  verbose: { about: "print which store is used, and when the lease\nbegins and ends" },
  prefix: { value: "TEXT", about: "only names that start with TEXT" },
  watch: { about: "draw the table again every second, on a terminal" },
  json: { about: "print JSON; tokens are strings" },
  force: { about: "required, because the holder may still be at work" },
  why: { value: "TEXT", about: "the reason; the holder's error and inspect show it" },
  runs: { value: "N", about: "how many seeds to try (default: 1000)" },
  seed: { value: "N", about: "the first seed; without --runs, a single run\n(default: random)" },
  quorum: { about: "simulate a quorum of nodes instead of one store" },
  mutant: { value: "NAME", about: "break the code in a known way; list shows the ways" },
  picture: { value: "FILE", about: "draw the holders in a broken run, as SVG" },
  lab: {
    value: "NAME",
    about: "start servers for the test instead of using a store\nof yours; --list shows the names",
  },
  for: {
    value: "TIME",
    about: "begin no run after this time (default: 60s); a run\ntakes 10 to 25 s",
  },
  workers: { value: "N", about: "how many processes contend (default: 4; 3 on a store\nof yours)" },
  faults: {
    value: "LIST",
    about:
      "only these faults, separated by commas, by name or by\nwhat they hit (worker, connection, server, cluster,\nfiles); none turns them off, list shows them",
  },
  fence: {
    value: "NAME",
    about: wrap(
      `the fence of the register that the workers write to, on a server that no fault hits: ${REGISTER_FENCES.join(", ")} (default: ${REGISTER_FENCES[0]})`,
      54,
    ).join("\n"),
  },
  pick: {
    value: "LIST",
    about:
      "repeat only a part of the run of --seed: workers,\nfaults and time, such as w1,w2,f3,t4200",
  },
  report: { value: "FILE", about: "write the report as one HTML page" },
  list: { about: "show the labs" },
  print: { about: "print the SQL, and connect to nothing" },
  grant: { value: "USER", about: "give this user of the database the rights that locks\nneed" },
  "double-run": { value: "ANSWER", about: asks("doubleRun") },
  idempotent: { value: "ANSWER", about: asks("idempotent") },
  "writes-to": { value: "ANSWER", about: asks("writesTo") },
  work: { value: "ANSWER", about: asks("work") },
  stores: { value: "LIST", about: asks("stores") },
  survive: { value: "ANSWER", about: asks("survive") },
  "when-down": { value: "ANSWER", about: asks("whenDown") },
  runtime: { value: "ANSWER", about: asks("runtime") },
  network: { value: "ANSWER", about: asks("network") },
  help: { short: "h", about: "show this help" },
  version: { short: "v", about: "show the version" },
} as const satisfies Record<string, Option>;

type Table = typeof OPTIONS;
export type OptionName = keyof Table;

/** The options by which a command finds its locks. */
export const STORE_OPTIONS = ["store", "store-file", "namespace"] as const;

/** Options as they were given: text, or true for a flag. */
export type Options = {
  readonly [Name in OptionName]?: Table[Name] extends { value: string } ? string : true;
};

/** The names of the options whose value has this word in the help. */
type OptionsOf<Value extends string> = {
  [Name in OptionName]: Table[Name] extends { value: Value } ? Name : never;
}[OptionName];

/** Milliseconds. A number without a unit is refused: half of the users would mean seconds. */
export function durationOption(
  options: Options,
  name: OptionsOf<"TIME">,
  rule: { min: number; infinite?: boolean },
): number | undefined {
  const text = options[name];
  return text === undefined ? undefined : durationIn(text, `--${name}`, rule);
}

/** Milliseconds. `what` names the text in the error. */
export function durationIn(
  text: string,
  what: string,
  rule: { min: number; max?: number; infinite?: boolean },
): number {
  const { min, max = YEAR_MS } = rule;
  if (rule.infinite && text === "forever") return Number.POSITIVE_INFINITY;
  if (min === 0 && text === "0") return 0;
  try {
    return parseDuration(text, what, { min, max });
  } catch {
    throw usage(
      `${what} is ${typed(text)}; it must be a number with a unit, such as 250ms, 30s, 5m or 1h, ` +
        `from ${durationText(min)} to ${durationText(max)}${rule.infinite ? ", or forever" : ""}`,
    );
  }
}

export function numberOption(
  options: Options,
  name: OptionsOf<"N">,
  rule: { min: number; max: number },
): number | undefined {
  const text = options[name];
  if (text === undefined) return undefined;
  const value = Number(text);
  if (/^\d+$/.test(text) && value >= rule.min && value <= rule.max) return value;
  throw usage(
    `--${name} is ${typed(text)}; it must be a whole number from ${rule.min} to ${rule.max}`,
  );
}

/** The path of a file that can be written: checked before long work, not after it. */
export function fileOption(options: Options, name: OptionsOf<"FILE">): string | undefined {
  const file = options[name];
  if (file === undefined) return undefined;
  try {
    const stats = statSync(file, { throwIfNoEntry: false });
    if (stats?.isDirectory()) throw new Error(`${file} is a folder`);
    accessSync(stats === undefined ? dirname(resolve(file)) : file, constants.W_OK);
    return file;
  } catch (error) {
    throw usage(`--${name} can't be written: ${(error as Error).message}`);
  }
}

/** The first choice is the default. */
export function choiceOption<T extends string>(
  options: Options,
  name: OptionsOf<string>,
  choices: readonly [T, ...T[]],
): T {
  const text = options[name] ?? choices[0];
  const choice = choices.find((one) => one === text);
  if (choice !== undefined) return choice;
  throw usage(`--${name} is ${typed(text)}; it must be ${choices.join(" or ")}`);
}
