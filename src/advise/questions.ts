import { InvalidArgumentError } from "../core/errors.js";
import {
  checkOneOf,
  checkOptions,
  type Duration,
  parseDuration,
  YEAR_MS,
} from "../core/validate.js";

interface Choices {
  /** The question, as it is asked on a terminal. */
  readonly ask: string;
  /** The question in a condition: `SHORT: CHOICE`. */
  readonly short: string;
  /** Each answer with its meaning. The first one is the default. */
  readonly choices: Readonly<Record<string, string>>;
  /** Several answers may be given. */
  readonly many?: true;
}

interface Time {
  readonly ask: string;
  readonly short: string;
  readonly minMs: number;
  readonly maxMs: number;
  readonly default: Duration;
}

/** All questions, in the order in which they are asked. Flags, help, prompts, picture and page are made from it. */
export const QUESTIONS = {
  doubleRun: {
    ask: "What happens if two processes do the work at the same time?",
    short: "double run",
    choices: { nuisance: "something is done twice", corruption: "data is corrupted" },
  },
  idempotent: {
    ask: "Could you make the work idempotent, so that doing it again changes nothing?",
    short: "can be idempotent",
    choices: { no: "no", yes: "yes" },
  },
  writesTo: {
    ask: "What does the work write to?",
    short: "writes to",
    choices: {
      other: "a place that can't check a token",
      postgres: "PostgreSQL",
      sqlite: "SQLite",
      redis: "Redis",
      etcd: "etcd",
      zookeeper: "ZooKeeper",
      files: "files of a local disk",
      service: "a service of yours, over HTTP",
      objects: "objects with If-Match, or anything with compare-and-set",
    },
  },
  work: {
    ask: "How long does the work usually take?",
    short: "work",
    minMs: 1,
    maxMs: YEAR_MS / 10,
    default: "5s",
  },
  stores: {
    ask: "Which of these do you run?",
    short: "store",
    many: true,
    choices: {
      sqlite: "none: all processes are on one machine",
      redis: "a Redis server, with or without replicas",
      redlock: "three or more Redis servers that are independent",
      postgres: "PostgreSQL",
      etcd: "etcd",
      zookeeper: "ZooKeeper",
    },
  },
  survive: {
    ask: "Must locking go on when a server of the store fails?",
    short: "must survive a failed server",
    choices: { no: "no", yes: "yes" },
  },
  whenDown: {
    ask: "What should happen to the work when the store of the locks is down?",
    short: "store down",
    choices: { stop: "the work stops", "go-on": "the work goes on without the lock" },
  },
  runtime: {
    ask: "Which runtime does the work?",
    short: "runtime",
    choices: { node: "Node", go: "Go", rust: "Rust", jvm: "a JVM" },
  },
  network: {
    ask: "How long may a request to the store take?",
    short: "network",
    minMs: 0,
    maxMs: 10_000,
    default: "1s",
  },
} as const satisfies Record<string, Choices | Time>;

type Table = typeof QUESTIONS;
/** The name of a question. */
export type QuestionId = keyof Table;

/** The answers that `advise` takes. A question without an answer has its default, the first choice. */
export type Answers = {
  readonly [Id in QuestionId]?: Table[Id] extends { many: true }
    ? readonly ChoiceOf<Id>[]
    : Table[Id] extends { choices: object }
      ? ChoiceOf<Id>
      : Duration;
};

type ChoiceOf<Id extends QuestionId> = Table[Id] extends { choices: infer Choices }
  ? keyof Choices & string
  : never;

/** A store that can be advised, by the scheme of its URL. */
export type StoreName = ChoiceOf<"stores">;
/** A resource that the work writes to. */
export type ResourceName = ChoiceOf<"writesTo">;

/** The answers, checked and complete. */
export type CompleteAnswers = Required<{
  readonly [Id in QuestionId]: Table[Id] extends { default: Duration }
    ? number
    : Required<Answers>[Id];
}>;

/** The option of the command line that answers a question. */
export const flagOf = (id: QuestionId): string =>
  id.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);

/** The answers to a question that has choices. */
export const choicesOf = (id: QuestionId): string[] => {
  const question: Choices | Time = QUESTIONS[id];
  return "choices" in question ? Object.keys(question.choices) : [];
};

/** Throws InvalidArgumentError for an answer or a question that does not exist. */
export function completeAnswers(answers: Answers): CompleteAnswers {
  const ids = Object.keys(QUESTIONS) as QuestionId[];
  checkOptions(answers, "the answers", ids);
  const checked: unknown = Object.fromEntries(ids.map((id) => [id, checkAnswer(id, answers[id])]));
  return checked as CompleteAnswers;
}

/** The checked answer to one question, or its default. A time is in milliseconds. */
export function checkAnswer(id: QuestionId, answer: unknown): number | string | string[] {
  const question: Choices | Time = QUESTIONS[id];
  const what = `--${flagOf(id)}`;
  if (!("choices" in question)) {
    return parseDuration(answer ?? question.default, what, {
      min: question.minMs,
      max: question.maxMs,
    });
  }
  const choices = choicesOf(id);
  if (!question.many) return checkOneOf(answer ?? choices[0], what, choices);
  const several: unknown = answer ?? [choices[0]];
  if (!Array.isArray(several) || several.length === 0) {
    throw new InvalidArgumentError(`${what} must be a list of ${choices.join(", ")}`);
  }
  return several.map((one) => checkOneOf(one, what, choices));
}
