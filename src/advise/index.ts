export { type Advice, advise } from "./advise.js";
export type { Code } from "./code.js";
export type { Metric, Note } from "./notes.js";
export type { Answers, StoreName } from "./questions.js";
export type { RuleId } from "./rules.js";
export type { Figure, Timing } from "./timing.js";
