import { durationText } from "../core/validate.js";
import { advise } from "./advise.js";
import { ruleSteps, type Step, storeSteps } from "./conditions.js";
import { choicesOf, flagOf, QUESTIONS, type QuestionId } from "./questions.js";
import { RULES, type RuleId } from "./rules.js";
import { FORMULAS, SHORTEST_TTL_MS } from "./timing.js";

/** The part of docs/advise.md that is made from the tables. */
export function advicePage(): string {
  return [
    "## The questions",
    ...table(["flag", "question", "default"], Object.keys(QUESTIONS).map(questionRow)),
    "",
    "## The decision",
    "The first line that is true decides.",
    "",
    ...table(["if", "then"], ruleSteps().map(stepRow)),
    "",
    "The store of a lease:",
    "",
    ...table(["if", "then"], storeSteps().map(stepRow)),
    "",
    "## The numbers",
    ...Object.values(FORMULAS).map((formula) => `- ${formula}`),
    `- the minimum of the runtime: ${minimums()}. A ttl must outlast the pauses of the runtime`,
    "",
    "## The code",
    ...(Object.keys(RULES) as RuleId[]).flatMap(codeSection),
  ].join("\n");
}

function questionRow(id: string): string[] {
  const question = QUESTIONS[id as QuestionId];
  const choices = choicesOf(id as QuestionId);
  const flag = `\`--${flagOf(id as QuestionId)}\``;
  if (!("choices" in question)) return [flag, question.ask, `\`${question.default}\``];
  const known: Readonly<Record<string, string>> = question.choices;
  const meanings = choices.map((one) =>
    known[one] === one ? `\`${one}\`` : `\`${one}\`: ${known[one]}`,
  );
  const several = "many" in question ? "; several with commas" : "";
  return [flag, `${question.ask} ${meanings.join("; ")}${several}`, `\`${choices[0]}\``];
}

const stepRow = ({ conditions, result }: Step): string[] => [
  conditions.length === 0 ? "otherwise" : conditions.join(", and "),
  result,
];

const minimums = (): string =>
  Object.entries(QUESTIONS.runtime.choices)
    .map(
      ([id, name]) =>
        `${name} ${durationText(SHORTEST_TTL_MS[id as keyof typeof SHORTEST_TTL_MS])}`,
    )
    .join(", ");

function codeSection(id: RuleId): string[] {
  const { title, why, link, example } = RULES[id];
  const { code } = advise(example);
  const flags = Object.entries(example).map(
    ([name, value]) => `--${flagOf(name as QuestionId)} ${value}`,
  );
  const test =
    id === "transaction" ? "on PostgreSQL by test/docs.test.ts" : "by test/advise/code.test.ts";
  return [
    `### ${title}`,
    `${why} [More](${link}). With \`holdfast advise ${flags.join(" ")}\`:`,
    "",
    `<!-- run ${test} -->`,
    `\`\`\`${code.language}`,
    code.text,
    "```",
    "",
  ];
}

const table = (heading: readonly string[], rows: readonly (readonly string[])[]): string[] =>
  [heading, heading.map(() => "---"), ...rows].map((cells) => `| ${cells.join(" | ")} |`);
