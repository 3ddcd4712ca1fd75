import { advise } from "../../src/advise/advise.js";
import type { Code, RuleId, StoreName } from "../../src/advise/index.js";
import { allAnswers } from "./answers.js";

export interface AdvisedCode extends Code {
  readonly name: string;
  readonly rule: RuleId;
  readonly store: StoreName | undefined;
}

/** Each different piece of code, whatever its times, with the rule that led to it. */
export const codes: readonly AdvisedCode[] = [
  ...new Map(
    [...allAnswers()].map((answers) => {
      const { rule, store, code } = advise(answers);
      const text = code.text.replaceAll(/\b\d+[ms]\b/g, "");
      return [`${rule} ${text}`, { rule, store: store?.name, ...code }] as const;
    }),
  ).values(),
].map((one, at) => ({ ...one, name: `${one.rule}-${one.store ?? "none"}-${at + 1}` }));

export const programs = codes.filter(({ language }) => language === "js");

/** Whether a program connects to a server. */
export const needsServer = ({ text }: Code): boolean =>
  /(redis|redlock|postgres|etcd|zookeeper):\/\/|endpoints:|servers:/.test(text);
