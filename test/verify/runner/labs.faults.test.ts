import { describeShortRuns } from "./short-runs.js";

// The same stores with fewer servers are in labs.test.ts.
describeShortRuns([
  // A paused worker, a replica that is made the primary, cut commands.
  ["redis-cluster", ["redis"], 4616],
  // A failover, a killed worker, a lost reply.
  ["redis-replica", ["redis"], 48137],
  // A cut watch, another leader, a paused worker.
  ["etcd-cluster", ["etcd"], 8009],
  // Half a message, a killed server, a killed worker.
  ["postgres-session", ["postgres"], 14],
  // A failover, a killed worker, a lost reply.
  ["postgres-standby", ["postgres"], 2828],
  // A paused pooler, a stalled connection, a cut one.
  ["pgbouncer", ["postgres", "pgbouncer"], 6],
  // A cut connection, a worker left with an isolated follower, a killed leader.
  ["zookeeper-cluster", ["zookeeper"], 1925],
]);
