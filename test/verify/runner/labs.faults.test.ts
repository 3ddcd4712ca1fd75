import { describeShortRuns } from "./short-runs.js";

// The stores are those of the labs postgres and zookeeper, which `npm test` runs.
describeShortRuns([
  // A paused pooler, a stalled connection, a cut one.
  ["pgbouncer", ["postgres", "pgbouncer"], 6],
  // A cut connection, a worker left with an isolated follower, a killed leader.
  ["zookeeper-cluster", ["zookeeper"], 1925],
]);
