import type { KeyPlace } from "./code.js";
import type { ResourceName, StoreName } from "./questions.js";
import type { Facts, RuleId } from "./rules.js";
import type { Timing } from "./timing.js";

/** All that is known when notes are chosen. */
export interface Situation {
  readonly facts: Facts;
  readonly rule: RuleId;
  readonly store: StoreName;
  readonly timing: Timing;
  readonly isLease: boolean;
  /** Null unless the advice is an idempotency key. */
  readonly keyPlace: KeyPlace | null;
}

/** A sentence of the advice, and the page that explains it. */
export interface Note {
  /** The sentence. */
  readonly text: string;
  /** A page of docs/, with its heading. */
  readonly link: string;
}

interface ConditionalNote extends Note {
  readonly when: (situation: Situation) => boolean;
}

/** The risks that remain with the advice, and those of an answer that can't be followed. */
const WARNINGS: readonly ConditionalNote[] = [
  {
    when: ({ facts, isLease }) =>
      isLease && facts.doubleRun === "corruption" && facts.whenDown === "go-on",
    text: "You said that work may go on without the store. Without a lock, data would be corrupted: the advice is to stop.",
    link: "intent.md#onunavailable-run",
  },
  {
    when: ({ facts, keyPlace }) => keyPlace === "records" && facts.whenDown === "go-on",
    text: "You said that work may go on without the store. Without the record of the key, nobody knows whether the work was done: idempotent rejects with StoreUnavailableError, and the advice is to stop.",
    link: "idempotency.md#errors",
  },
  {
    when: ({ facts, isLease }) => isLease && facts.survive === "yes" && facts.majority === "no",
    text: "None of the stores that you run keeps all locks when a server fails: after a failover a name can be granted twice. etcd, ZooKeeper or a quorum of three Redis servers would keep them.",
    link: "primitives.md#what-the-stores-offer",
  },
  {
    when: ({ facts, keyPlace }) => keyPlace === "records" && facts.survive === "yes",
    text: "A failover of this store can lose its newest records, unless it replicates them synchronously: then the work is done again. If that would do harm, keep the key where the effect is, in one transaction.",
    link: "idempotency.md#in-your-own-database",
  },
  {
    when: ({ store, isLease }) => isLease && store === "sqlite",
    text: "An SQLite file locks among the processes of one machine. For several machines you need a store that all of them reach.",
    link: "stores/sqlite.md",
  },
  {
    when: ({ store, timing, isLease }) =>
      isLease && store === "zookeeper" && timing.ttl.ms > 23_500,
    text: "ZooKeeper limits a ttl to maxSessionTimeout / 1.7, which is 23.5 s by default. Raise maxSessionTimeout to 1.7 × ttl.",
    link: "stores/zookeeper.md",
  },
  {
    when: ({ facts, isLease, keyPlace }) =>
      !isLease && keyPlace !== "records" && facts.runtime !== "node",
    text: "The code is for Node. Write the same in your language: it is a few statements of your database, one loop, or one request.",
    link: "patterns.md",
  },
  {
    when: ({ facts, keyPlace }) => keyPlace === "records" && facts.runtime !== "node",
    text: "The code is for Node, and a lock, a token and a compare-and-set are behind idempotent: do not rebuild it with SET NX. In your language, keep the key and the result in a database, in the transaction of the work.",
    link: "idempotency.md#in-your-own-database",
  },
  {
    when: ({ facts, rule }) => rule === "fenced" && facts.runtime !== "node",
    text: "The fences of Holdfast are for Node. Your program finds its token in HOLDFAST_TOKEN: it compares it at the resource by itself, before the first read and in the same step as each write, and stops when a higher one was there.",
    link: "fences.md#in-another-language",
  },
  {
    when: ({ facts, store, isLease }) => isLease && store === "postgres" && facts.survive === "no",
    text: "A crashed process blocks its name for a ttl. If the name must be free at once, add ?mode=session to the URL: the lock then ends with the connection. It has no queue of waiters, no semaphores and no once, and needs a connection that goes through no pooler.",
    link: "stores/postgres-session.md",
  },
  {
    when: ({ keyPlace }) => keyPlace === "elsewhere",
    text: "None of the stores that you run keeps records, which idempotent needs; Redis, PostgreSQL and SQLite keep them. Without one of these, the place that the work writes to must remember the key, in one step with the effect.",
    link: "primitives.md#what-the-stores-offer",
  },
  {
    when: ({ rule }) => rule === "idempotent",
    text: "An effect outside of your database, such as a charge at a payment provider, happens once only if the provider takes the key too.",
    link: "idempotency.md",
  },
];

/** Warnings for this situation. */
export const warningsFor = (situation: Situation): Note[] =>
  WARNINGS.filter(({ when }) => when(situation)).map(({ text, link }) => ({ text, link }));

/** A thing to watch, and when to call somebody. */
export interface Metric {
  /** A metric of `prometheusMetrics` with its labels; without one, where to look instead. */
  readonly name: string;
  /** When to alert. */
  readonly alert: string;
  /** The trouble that it shows. */
  readonly why: string;
  /** The page of docs/ that says what to do then, with its heading. */
  readonly link: string;
}

interface ConditionalMetric extends Metric {
  readonly when?: (situation: Situation) => boolean;
}

/** Thresholds are those of monitoring/prometheus-alerts.yml. */
const LEASE_METRICS: readonly ConditionalMetric[] = [
  {
    name: 'holdfast_losses_total{reason!="closed"}',
    alert: "any",
    why: "work was cut off: its lease could not be renewed in time",
    link: "runbook.md#lease-lost",
  },
  {
    name: "holdfast_jeopardies_total",
    alert: "rises, and holdfast_recoveries_total does not follow within 20 s",
    why: "renewals fail: the store or the network is down",
    link: "runbook.md#jeopardy-lasting",
  },
  {
    name: "holdfast_renewal_remaining_ratio",
    alert: "below 0.3 at the 5th percentile",
    why: "renewals come late: the store or this process is slow",
    link: "runbook.md#renewals-late",
  },
  {
    name: 'holdfast_acquires_total{outcome="unavailable"}',
    alert: "any",
    why: "the store is down",
    link: "metrics.md#all-metrics",
  },
  {
    name: "holdfast_waiters",
    alert: "above 50 for 5 minutes",
    why: "more come than get their turn",
    link: "runbook.md#waiters-piling-up",
  },
  {
    name: "holdfast_longest_wait_seconds",
    alert: "above 5 while holdfast_held_leases is 0, and nobody is granted a lease",
    why: "the name is free, and its waiter does not get it",
    link: "runbook.md#standstill",
  },
  {
    name: "holdfast_handovers_total",
    alert: "less than half of the grants after a wait of more than 1 s",
    why: "notifications do not arrive, and waiters find a free name late",
    link: "runbook.md#handover-slow",
    when: ({ store }) => store !== "redlock",
  },
  {
    name: "holdfast_longest_hold_seconds",
    alert: "above an hour",
    why: "the work may hang",
    link: "runbook.md#held-too-long",
  },
  {
    name: "holdfast_stale_tokens_total",
    alert: "any",
    why: "the fence refused a late write: it worked, and the ttl is too short or a process was paused",
    link: "runbook.md#stale-token-refused",
    when: ({ rule }) => rule === "fenced",
  },
  {
    name: "holdfast_unprotected_runs_total",
    alert: "any",
    why: "work ran without the lock",
    link: "runbook.md#unprotected-runs",
    when: ({ rule }) => rule === "fail-open",
  },
];

/** `holdfast run` serves no metrics: its exit codes and its lines on stderr tell. */
const COMMAND_METRICS: readonly ConditionalMetric[] = [
  {
    name: "exit code 74 of holdfast run",
    alert: "any",
    why: "work was cut off: its lease could not be renewed in time, or it worked for longer than --max-hold",
    link: "runbook.md#lease-lost",
  },
  {
    name: "exit code 69 of holdfast run",
    alert: "any",
    why: "the store is down, and the work did not run",
    link: "cli.md#exit-codes",
    when: ({ rule }) => rule !== "fail-open",
  },
  {
    name: "warnings of holdfast run on stderr",
    alert: "any",
    why: "work ran without the lock",
    link: "cli.md#when-the-store-cant-be-used",
    when: ({ rule }) => rule === "fail-open",
  },
  {
    name: "exit code 75 of holdfast run",
    alert: "more than usual",
    why: "the name was held for longer than others wait",
    link: "cli.md#exit-codes",
  },
  {
    name: "writes that the resource refuses",
    alert: "any",
    why: "the fence worked: the ttl is too short, or a process was paused",
    link: "runbook.md#stale-token-refused",
    when: ({ rule }) => rule === "fenced",
  },
];

const LOCK_FREE_METRICS: readonly ConditionalMetric[] = [
  {
    name: 'holdfast_acquires_total{outcome=~"busy|timeout"}',
    alert: "more than usual",
    why: "callers are told that the first is in progress (over HTTP by 409): it hangs, or has crashed less than a ttl ago",
    link: "idempotency.md#errors",
    when: ({ keyPlace }) => keyPlace === "records",
  },
  {
    name: 'holdfast_losses_total{reason!="closed"}',
    alert: "any",
    why: "the lease of a key was lost, so the next caller does the work again",
    link: "runbook.md#lease-lost",
    when: ({ keyPlace }) => keyPlace === "records",
  },
  {
    name: "replies with status 409",
    alert: "more than usual",
    why: "the first request is still in progress: it hangs, or has crashed",
    link: "idempotency.md#http",
    when: ({ keyPlace }) => keyPlace === "elsewhere",
  },
  {
    name: "conflictRate of ConflictStats",
    alert: "above 0.5",
    why: "so much work is repeated that a lock does less",
    link: "optimistic.md#lock-or-no-lock",
    when: ({ rule }) => rule === "compare-and-set",
  },
  {
    name: "errors with code CONFLICT",
    alert: "any",
    why: "others were faster at every attempt, and nothing was written",
    link: "optimistic.md#errors",
    when: ({ rule }) => rule === "compare-and-set",
  },
  {
    name: "errors with code ACQUIRE_TIMEOUT",
    alert: "more than usual",
    why: "a transaction holds the lock for longer than others wait: it hangs, or does too much",
    link: "postgres.md#withtransactionlock",
    when: ({ rule }) => rule === "transaction",
  },
  {
    name: "pg_stat_activity, rows with wait_event_type Lock",
    alert: "more than usual",
    why: "a transaction holds a key or a row for long",
    link: "postgres.md",
    when: ({ facts, rule, keyPlace }) =>
      rule === "transaction" || (keyPlace === "transaction" && facts.writesTo === "postgres"),
  },
  {
    name: "errors with the message database is locked",
    alert: "any",
    why: "a transaction holds the file for longer than busy_timeout",
    link: "patterns.md#transactions",
    when: ({ facts, rule, keyPlace }) =>
      rule === "local-transaction" || (keyPlace === "transaction" && facts.writesTo === "sqlite"),
  },
];

const metricTable = ({ isLease, facts }: Situation): readonly ConditionalMetric[] =>
  !isLease ? LOCK_FREE_METRICS : facts.runtime === "node" ? LEASE_METRICS : COMMAND_METRICS;

/** The metrics to alert on. */
export const metricsFor = (situation: Situation): Metric[] =>
  metricTable(situation)
    .filter(({ when }) => when?.(situation) ?? true)
    .map(({ name, alert, why, link }) => ({ name, alert, why, link }));

/** A comparison of tokens at a resource. */
export interface Fence {
  readonly name: string;
  readonly link: string;
}

/** For a program that `holdfast run` starts. */
export const OWN_FENCE: Fence = {
  name: "HOLDFAST_TOKEN, compared by your program",
  link: "fences.md#in-another-language",
};

/** The fence for each resource. */
export const FENCES: Readonly<Record<Exclude<ResourceName, "other">, Fence>> = {
  postgres: { name: "postgresFence", link: "fences.md#postgresql" },
  sqlite: { name: "sqliteFence", link: "fences.md#sqlite" },
  redis: { name: "redisFence", link: "fences.md#redis" },
  etcd: { name: "etcdFence", link: "fences.md#etcd" },
  zookeeper: { name: "zookeeperFence", link: "fences.md#zookeeper" },
  files: { name: "openFileFence", link: "fences.md#files" },
  service: { name: "fencedFetch and guardNode", link: "fences.md#http" },
  objects: { name: "placeFence", link: "fences.md#objects-and-anything-with-compare-and-set" },
};
