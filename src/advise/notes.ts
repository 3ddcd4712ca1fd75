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

/** What can go wrong in spite of the advice, or with an answer that can't be followed. */
const WARNINGS: readonly ConditionalNote[] = [
  {
    when: ({ facts, isLease }) =>
      isLease && facts.doubleRun === "corruption" && facts.whenDown === "go-on",
    text: "You said that work may go on without the store. Without a lock, data would be corrupted: the advice is to stop.",
    link: "intent.md#onunavailable-run",
  },
  {
    when: ({ facts, store, isLease }) =>
      isLease && facts.survive === "yes" && ["sqlite", "redis", "postgres"].includes(store),
    text: "None of the stores that you run keeps all locks when a server fails: after a failover a name can be granted twice. etcd, ZooKeeper or a quorum of three Redis servers would keep them.",
    link: "primitives.md#what-the-stores-offer",
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
    when: ({ facts, isLease }) => !isLease && facts.runtime !== "node",
    text: "The code is for Node. Write the same in your language: it is a few statements of your database, or one loop.",
    link: "patterns.md",
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

/** An event to count, and the moment to call somebody. */
export interface Metric {
  /** A channel of node:diagnostics_channel. */
  readonly event: string;
  /** When to alert. */
  readonly alert: string;
  /** What it shows. */
  readonly why: string;
}

interface ConditionalMetric extends Metric {
  readonly when?: (situation: Situation) => boolean;
}

const METRICS: readonly ConditionalMetric[] = [
  {
    event: "holdfast:lost",
    alert: "any, but with reason closed",
    why: "work was cut off: its lease could not be renewed in time",
  },
  {
    event: "holdfast:jeopardy",
    alert: "more than one in five minutes",
    why: "renewals fail: the store or the network is slow",
  },
  {
    event: "holdfast:not-granted",
    alert: "reason unavailable: any; reason timeout: more than usual",
    why: "the store is down, or work takes longer than others wait",
  },
  {
    event: "holdfast:granted",
    alert: "waitMs above the time that you can wait, at the 99th percentile",
    why: "contention grows",
  },
  {
    event: "holdfast:stale-token",
    alert: "any",
    why: "the fence refused a late write: it worked, and the ttl is too short or a process was paused",
    when: ({ rule }) => rule === "fenced",
  },
  {
    event: "holdfast:unprotected",
    alert: "any",
    why: "work ran without the lock",
    when: ({ rule }) => rule === "fail-open",
  },
];

/** What to alert on. Without a lease there are no events. */
export const metricsFor = (situation: Situation): Metric[] =>
  situation.isLease
    ? METRICS.filter(({ when }) => when?.(situation) ?? true).map(({ event, alert, why }) => ({
        event,
        alert,
        why,
      }))
    : [];

/** The fence for each resource. */
export const FENCES: Readonly<
  Record<Exclude<ResourceName, "other">, { name: string; link: string }>
> = {
  postgres: { name: "postgresFence", link: "fences.md#postgresql" },
  sqlite: { name: "sqliteFence", link: "fences.md#sqlite" },
  redis: { name: "redisFence", link: "fences.md#redis" },
  etcd: { name: "etcdFence", link: "fences.md#etcd" },
  zookeeper: { name: "zookeeperFence", link: "fences.md#zookeeper" },
  files: { name: "openFileFence", link: "fences.md#files" },
  service: { name: "fencedFetch and guardNode", link: "fences.md#http" },
  objects: { name: "placeFence", link: "fences.md#objects-and-anything-with-compare-and-set" },
};
