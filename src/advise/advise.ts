import { type Code, codeFor, keyPlaceOf, urlOf } from "./code.js";
import {
  FENCES,
  type Fence,
  type Metric,
  metricsFor,
  type Note,
  OWN_FENCE,
  type Situation,
  warningsFor,
} from "./notes.js";
import {
  type Answers,
  type CompleteAnswers,
  completeAnswers,
  type StoreName,
} from "./questions.js";
import {
  type Facts,
  MAJORITY_STORES,
  RULES,
  type RuleId,
  ruleFor,
  SHORT_WORK_MS,
  storeFor,
} from "./rules.js";
import { type Timing, timingFor } from "./timing.js";

/** The primitive and the settings to use for a piece of work, and the reasons. */
export interface Advice {
  /** The rule that decided. */
  readonly rule: RuleId;
  /** The advice in a few words. */
  readonly title: string;
  /** `lease`: a lock of Holdfast; `transaction`: a lock that ends with your transaction; `none`: no lock. */
  readonly lock: "none" | "transaction" | "lease";
  /** Where the locks are; null without a lease. */
  readonly store: { readonly name: StoreName; readonly url: string } | null;
  /** The times of the lease; null without one. */
  readonly timing: Timing | null;
  /** The behaviour when the store of the lease, or of the key's record, is down; null without such a store. */
  readonly whenDown: "fail open" | "fail closed" | null;
  /** Whether the resource has to check tokens, and by which function; other runtimes compare HOLDFAST_TOKEN. */
  readonly fence: { readonly needed: boolean; readonly name: string | null };
  /** The metrics to alert on. */
  readonly metrics: readonly Metric[];
  /** Code to paste. */
  readonly code: Code;
  /** Why this and nothing else. */
  readonly reasons: readonly Note[];
  /** The risks that remain. */
  readonly warnings: readonly Note[];
}

/**
 * Says whether a piece of work needs a lock, and which one. A question without an answer has its default.
 * Throws InvalidArgumentError for an answer that does not exist.
 *
 * @example
 * const { title, code } = advise({ doubleRun: "corruption", writesTo: "postgres", work: "2m", stores: ["redis"] });
 * console.log(title, code.text);
 */
export function advise(answers: Answers = {}): Advice {
  const complete = completeAnswers(answers);
  const facts = factsOf(complete);
  const rule = ruleFor(facts);
  const { title, lock, why, link } = RULES[rule];
  const { store, rule: storeRule } = storeFor(facts, complete.stores);
  const timing = timingFor(complete);
  const isLease = lock === "lease";
  const keyPlace = rule === "idempotent" ? keyPlaceOf(complete) : null;
  const situation: Situation = { facts, rule, store, timing, isLease, keyPlace };
  const fence = fenceFor(rule, facts);
  return {
    rule,
    title,
    lock,
    store: isLease ? { name: store, url: urlOf(store, complete, timing) } : null,
    timing: isLease ? timing : null,
    whenDown: whenDownOf(situation),
    fence: { needed: facts.doubleRun === "corruption" && isLease, name: fence?.name ?? null },
    metrics: metricsFor(situation),
    code: codeFor({ rule, store, answers: complete, timing }),
    reasons: [
      { text: why, link },
      ...(isLease ? [{ text: storeRule.why, link: storeRule.link }, ...TIMING_REASONS] : []),
      ...(fence === null ? [] : [{ text: FENCE_REASON, link: fence.link }]),
    ],
    warnings: warningsFor(situation),
  };
}

const FENCE_REASON =
  "Enter the resource with the token before the first read, and guard each write in the same step.";

const TIMING_REASONS: readonly Note[] = [
  {
    text: "A lease is good from the moment at which its request was sent, less the drift of clocks: a slow reply makes it shorter, never longer.",
    link: "leases.md#when-it-is-lost",
  },
  {
    text: "A ttl shorter than a pause of the runtime loses leases without need; a longer one blocks the name for longer after a crash.",
    link: "leases.md",
  },
];

function factsOf(answers: CompleteAnswers): Facts {
  const { doubleRun, idempotent, writesTo, survive, whenDown, runtime, work, stores } = answers;
  const length = work <= SHORT_WORK_MS ? "short" : "long";
  const storeOfData = (stores as readonly string[]).includes(writesTo) ? "yes" : "no";
  const majority = MAJORITY_STORES.some((one) => stores.includes(one)) ? "yes" : "no";
  const given = { doubleRun, idempotent, writesTo, survive, whenDown, runtime };
  return { ...given, length, storeOfData, majority };
}

function whenDownOf({ rule, isLease, keyPlace }: Situation): Advice["whenDown"] {
  if (rule === "fail-open") return "fail open";
  return isLease || keyPlace === "records" ? "fail closed" : null;
}

function fenceFor(rule: RuleId, { writesTo, runtime }: Facts): Fence | null {
  if (rule !== "fenced" || writesTo === "other") return null;
  return runtime === "node" ? FENCES[writesTo] : OWN_FENCE;
}
