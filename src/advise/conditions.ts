import { QUESTIONS } from "./questions.js";
import { type Condition, FACTS, RULES, type RuleId, STORE_RULES } from "./rules.js";

/** One decision: what must be so, and what follows from it. */
export interface Step {
  readonly conditions: readonly string[];
  readonly result: string;
}

/** The rules in words, in the order in which they are tried. */
export const ruleSteps = (): Step[] =>
  (Object.keys(RULES) as RuleId[]).map((id) => ({
    conditions: conditionTexts(RULES[id].when),
    result: RULES[id].title,
  }));

/** The choice of a store in words, in the order in which it is tried. */
export const storeSteps = (): Step[] =>
  STORE_RULES.map(({ when, order }) => ({
    conditions: conditionTexts(when),
    result: typeof order === "string" ? order : `the first that you run: ${order.join(", ")}`,
  }));

function conditionTexts(when: Condition): string[] {
  return Object.entries(when).map(([name, values]) => {
    const { short, choices } = { ...QUESTIONS, ...FACTS }[name as keyof Condition];
    const known: Readonly<Record<string, string>> = choices;
    // A list of nearly all choices is shorter by what it leaves out.
    const missing = Object.keys(known).filter((one) => !(values as string[]).includes(one));
    return missing.length === 1 && Object.keys(known).length > 2
      ? `${short}: anything but ${known[missing[0]!]}`
      : `${short}: ${values.map((value) => known[value]).join(" or ")}`;
  });
}
