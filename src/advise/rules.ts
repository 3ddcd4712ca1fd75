import type { Answers, CompleteAnswers, ResourceName, StoreName } from "./questions.js";

/** The facts that conditions ask about: the answers with choices, and what follows from the others. */
export interface Facts
  extends Pick<
    CompleteAnswers,
    "doubleRun" | "idempotent" | "writesTo" | "survive" | "whenDown" | "runtime"
  > {
  /** Short work fits into one transaction. */
  readonly length: "short" | "long";
  /** The lock can be in the same store as the data. */
  readonly storeOfData: "yes" | "no";
  /** A store that decides by a majority of its servers is among those that you run. */
  readonly majority: "yes" | "no";
}

/** A fact that is not an answer, in the words of a condition. */
export const FACTS = {
  length: {
    short: "work",
    choices: { short: "at most 10 s", long: "longer than 10 s" },
  },
  storeOfData: {
    short: "you run the store of the data",
    choices: { no: "no", yes: "yes" },
  },
  majority: {
    short: "you run etcd, ZooKeeper or a quorum of Redis",
    choices: { no: "no", yes: "yes" },
  },
} as const;

/** The stores that decide by a majority of their servers, the first choice first. */
export const MAJORITY_STORES = [
  "etcd",
  "zookeeper",
  "redlock",
] as const satisfies readonly StoreName[];

/** Work of at most this length may occupy a connection and a transaction. */
export const SHORT_WORK_MS = 10_000;

/** All facts named must have one of their values. */
export type Condition = { readonly [Name in keyof Facts]?: readonly Facts[Name][] };

/** True if the facts are as the condition demands. */
const matches = (when: Condition, facts: Facts): boolean =>
  Object.entries(when).every(([name, values]) =>
    (values as readonly string[]).includes(facts[name as keyof Facts]),
  );

/** The name of a rule, and of the advice that it leads to. */
export type RuleId =
  | "idempotent"
  | "transaction"
  | "local-transaction"
  | "compare-and-set"
  | "fenced"
  | "unfenced"
  | "fail-open"
  | "fail-closed";

interface Rule {
  readonly when: Condition;
  /** The advice in a few words. */
  readonly title: string;
  readonly lock: "none" | "transaction" | "lease";
  readonly why: string;
  /** A page of the docs, with its heading. */
  readonly link: string;
  /** Answers that lead here, with which the page shows the code. */
  readonly example: Answers;
}

const CHECKS_TOKENS = [
  "postgres",
  "sqlite",
  "redis",
  "etcd",
  "zookeeper",
  "files",
  "service",
  "objects",
] as const satisfies readonly ResourceName[];

/** The first rule whose condition is met decides. The last one has none. */
export const RULES: Readonly<Record<RuleId, Rule>> = {
  idempotent: {
    when: { idempotent: ["yes"] },
    title: "No lock: one key for each piece of work",
    lock: "none",
    why: "Work that can be repeated needs no lock: the key makes the second run return the first result. A lock in front of it may still save work, and it need not be a strong one.",
    link: "idempotency.md",
    example: { idempotent: "yes", stores: ["redis"] },
  },
  transaction: {
    when: { doubleRun: ["corruption"], writesTo: ["postgres"], length: ["short"] },
    title: "A lock that ends with the transaction, no lease",
    lock: "transaction",
    why: "All that the lock protects is in one database, and the work is short. A lock that begins and ends with the transaction of the writes can't expire under them, and needs no fence.",
    link: "postgres.md",
    example: { doubleRun: "corruption", writesTo: "postgres", stores: ["postgres"] },
  },
  "local-transaction": {
    when: { doubleRun: ["corruption"], writesTo: ["sqlite"], length: ["short"] },
    title: "No lock: one write transaction of SQLite",
    lock: "none",
    why: "SQLite has one writer at a time. If the transaction begins with BEGIN IMMEDIATE, before the first read, no other write comes in between.",
    link: "patterns.md#transactions",
    example: { doubleRun: "corruption", writesTo: "sqlite" },
  },
  "compare-and-set": {
    when: { doubleRun: ["corruption"], writesTo: ["objects"], length: ["short"] },
    title: "No lock: read, change, write if unchanged",
    lock: "none",
    why: "The resource itself refuses a write that is based on an old value, so nothing can be overwritten. With many conflicts, a lock in front saves the repeated work.",
    link: "optimistic.md",
    example: { doubleRun: "corruption", writesTo: "objects" },
  },
  fenced: {
    when: { doubleRun: ["corruption"], writesTo: CHECKS_TOKENS },
    title: "A lock with a fence",
    lock: "lease",
    why: "A holder can be paused past its lease and then write. No lock prevents that. The resource refuses the late write, because it has seen a higher token.",
    link: "fences.md",
    example: { doubleRun: "corruption", writesTo: "files", work: "1m" },
  },
  unfenced: {
    when: { doubleRun: ["corruption"] },
    title: "A lock without a fence: not safe against a pause",
    lock: "lease",
    why: "The resource can't refuse a late write. The lock makes a double run rare, not impossible. Put a service that checks tokens in front of the resource, or make the work idempotent.",
    link: "fences.md#http",
    example: { doubleRun: "corruption", writesTo: "other" },
  },
  "fail-open": {
    when: { whenDown: ["go-on"] },
    title: "An efficiency lock; without the store, the work goes on",
    lock: "lease",
    why: "A double run is only a nuisance, and no run would be worse: when the store is down, the work runs without the lock.",
    link: "intent.md#onunavailable-run",
    example: { whenDown: "go-on" },
  },
  "fail-closed": {
    when: {},
    title: "An efficiency lock; without the store, the work stops",
    lock: "lease",
    why: "A double run is only a nuisance, so no fence is needed, and a lock that is lost in a failover does little harm.",
    link: "intent.md",
    example: { whenDown: "stop" },
  },
};

interface StoreRule {
  readonly when: Condition;
  /** The first of these that you run. */
  readonly order: readonly StoreName[] | "the store of the data";
  readonly why: string;
  readonly link: string;
}

const STORE_OF_DATA = {
  order: "the store of the data",
  why: "The work needs this store in any case, so the lock adds no other server that can fail.",
  link: "primitives.md#what-the-stores-offer",
} as const;

const FEWEST_FAULTS = {
  why: "Of the stores that you run, this one grants a name twice under the fewest faults.",
  link: "primitives.md#what-the-stores-offer",
} as const;

/** The first row whose condition is met decides. The last one has none. */
export const STORE_RULES: readonly StoreRule[] = [
  {
    when: { doubleRun: ["corruption"], writesTo: ["etcd", "zookeeper"], storeOfData: ["yes"] },
    ...STORE_OF_DATA,
  },
  {
    when: { survive: ["yes"], majority: ["yes"] },
    order: MAJORITY_STORES,
    why: "A majority of its servers decides, so the failure of a minority loses no lock.",
    link: "guarantees.md",
  },
  {
    when: { doubleRun: ["corruption"], storeOfData: ["yes"] },
    ...STORE_OF_DATA,
  },
  {
    when: { survive: ["yes"] },
    order: ["postgres", "redis", "sqlite"],
    ...FEWEST_FAULTS,
  },
  {
    when: { doubleRun: ["corruption"] },
    order: ["etcd", "zookeeper", "postgres", "redlock", "redis", "sqlite"],
    ...FEWEST_FAULTS,
  },
  {
    when: {},
    order: ["redis", "postgres", "etcd", "zookeeper", "redlock", "sqlite"],
    why: "Of the stores that you run, this one is the fastest or the simplest, and for an efficiency lock each will do.",
    link: "performance.md",
  },
];

/** The first rule for these facts. */
export const ruleFor = (facts: Facts): RuleId =>
  (Object.keys(RULES) as RuleId[]).find((id) => matches(RULES[id].when, facts))!;

/** The store for a lock, and the row that chose it. */
export function storeFor(
  facts: Facts,
  stores: readonly StoreName[],
): { readonly store: StoreName; readonly rule: StoreRule } {
  const rule = STORE_RULES.find(({ when }) => matches(when, facts))!;
  const store =
    rule.order === "the store of the data"
      ? (facts.writesTo as StoreName)
      : rule.order.find((one) => stores.includes(one))!;
  return { store, rule };
}
