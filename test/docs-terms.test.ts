import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";

const docs = fileURLToPath(new URL("../docs", import.meta.url));
const all = readdirSync(docs, { recursive: true, encoding: "utf8" })
  .filter((path) => path.endsWith(".md"))
  .map((path) => readFileSync(join(docs, path), "utf8"))
  .join("\n")
  .toLowerCase();

/** Terms that people look for when they have read about locks elsewhere. */
const TERMS = [
  ...["distributed mutex", "leader-for-work", "fencing lock", "advisory lock", "lease", "ttl"],
  ...["mutual exclusion", "split brain", "zombie", "thundering herd", "single point of failure"],
  ...["CAP theorem", "consensus", "Paxos", "Raft", "Zab", "quorum", "linearizable", "NTP"],
  ...["fencing token", "sequencer", "zxid", "czxid", "revision", "ephemeral", "sequential node"],
  ...["SETNX", "SET name VALUE NX PX ttl", "compare and delete", "release on *all* servers"],
  ...["ttl − elapsed − drift", "a random pause", "with a timeout that is small", "NFS", "pooler"],
  ...["hashtext", "SELECT … FOR UPDATE", "@Version", "ETag", "compare-and-set", "optimistic"],
  ...["pessimistic", "idempotency key", "deduplication table", "unique constraint", "CRDT", "saga"],
  ...["process manager", "event sourcing", "circuit breaker", "bulkhead", "token bucket", "GCRA"],
  ...["rate limit", "leader election", "single writer", "maintenance window", "cache stampede"],
  ...["watchdog", "heartbeat", "fail open", "fail closed", "lost lease", "hotel", "client id"],
  ...["Chubby", "GFS", "Bigtable", "HBase", "Kafka", "Uber", "Netflix", "Kubernetes", "Redisson"],
  ...["Consul", "kazoo", "redlock-py", "renewal overhead", "session cleanup", "team expertise"],
  ...["retries after a conflict", "limited to one database"],
  ...["Curator", "node-redlock", "Kleppmann", "antirez", "Jepsen", "Designing Data-Intensive"],
];

/** Where the docs send readers on. */
const LINKS = [
  "research.google/pubs/the-chubby-lock-service",
  "zookeeper.apache.org/doc/current/recipes.html",
  "etcd.io/docs",
  "postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS",
  "jepsen.io/analyses/etcd-3.4.3",
  "dataintensive.net",
  "redisson.org",
  "curator.apache.org",
  "github.com/mike-marcacci/node-redlock",
  "martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html",
  "antirez.com/news/101",
  "redis.io/docs/latest/develop/clients/patterns/distributed-locks",
];

test("the docs have what is asked about locks, and where to read on", () => {
  const missing = [...TERMS, ...LINKS].filter((term) => !all.includes(term.toLowerCase()));
  expect(missing).toEqual([]);
});
