import { constants } from "node:os";
import { createInterface } from "node:readline";
import { advise as adviseOn } from "../advise/advise.js";
import {
  type Answers,
  checkAnswer,
  choicesOf,
  flagOf,
  QUESTIONS,
  type QuestionId,
} from "../advise/questions.js";
import { adviceText } from "../advise/text.js";
import { HoldfastError } from "../core/errors.js";
import { CliError, Exit } from "./exit.js";
import { durationIn, type Options } from "./options.js";
import { jsonText, print, style } from "./output.js";

const IDS = Object.keys(QUESTIONS) as QuestionId[];

/** Answers from flags; on a terminal and without any flag, from questions. */
export async function advise(options: Options): Promise<number> {
  const given = Object.fromEntries(
    IDS.map((id) => [id, options[flagOf(id) as keyof Options]] as const)
      .filter(([, text]) => text !== undefined)
      .map(([id, text]) => [id, answerOf(id, String(text))]),
  );
  const isAsked = Object.keys(given).length === 0 && process.stdin.isTTY && process.stdout.isTTY;
  const advice = adviseOn((isAsked ? await askAll() : given) as Answers);
  if (options.json) print(jsonText(advice));
  else print(adviceText(advice, (text) => style(process.stdout, "bold", text)));
  return Exit.ok;
}

/** A list is written with commas, and a time with its unit. */
function answerOf(id: QuestionId, text: string): string | string[] | number {
  const question = QUESTIONS[id];
  if ("default" in question) {
    return durationIn(text, `--${flagOf(id)}`, { min: question.minMs, max: question.maxMs });
  }
  return "many" in question ? text.split(",").map((one) => one.trim()) : text;
}

async function askAll(): Promise<Record<string, unknown>> {
  const terminal = createInterface({ input: process.stdin, output: process.stdout });
  // Collects lines that were typed ahead, which `question` would lose.
  const lines = terminal[Symbol.asyncIterator]();
  terminal.once("SIGINT", () => {
    print("");
    process.exit(Exit.signal + constants.signals.SIGINT);
  });
  try {
    const answers: Record<string, unknown> = {};
    for (const id of IDS) {
      answers[id] = await ask(id, async (prompt) => {
        terminal.setPrompt(prompt);
        terminal.prompt();
        const { done, value } = await lines.next();
        if (!done) return value;
        print("");
        throw new CliError(
          Exit.failed,
          "the input ended before the last question; run it again, or answer by options (holdfast advise --help)",
        );
      });
    }
    print("");
    return answers;
  } finally {
    terminal.close();
  }
}

/** Asks until there is an answer: a choice, its number, or nothing for the default. */
async function ask(id: QuestionId, read: (prompt: string) => Promise<string>): Promise<unknown> {
  const choices = choicesOf(id);
  print(`\n${style(process.stdout, "bold", QUESTIONS[id].ask)}`);
  for (const [at, choice] of choices.entries()) {
    print(`  ${at + 1}  ${choice}${meaningOf(id, choice)}`);
  }
  for (;;) {
    const text = (await read(`  [${defaultOf(id)}] `)).trim();
    const words = text.split(",").map((word) => choices[Number(word) - 1] ?? word.trim());
    try {
      return checkAnswer(id, text === "" ? undefined : answerOf(id, words.join(",")));
    } catch (error) {
      if (!(HoldfastError.is(error) || error instanceof CliError)) throw error;
      print(`  ${error.message}`);
    }
  }
}

function meaningOf(id: QuestionId, choice: string): string {
  const question = QUESTIONS[id];
  if (!("choices" in question)) return "";
  const meaning = (question.choices as Readonly<Record<string, string>>)[choice];
  return meaning === choice ? "" : `: ${meaning}`;
}

function defaultOf(id: QuestionId): string {
  const question = QUESTIONS[id];
  return "default" in question ? question.default : choicesOf(id)[0]!;
}
