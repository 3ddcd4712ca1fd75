import { describeShortRuns } from "./short-runs.js";

// The store is that of the lab postgres, which `npm test` runs.
describeShortRuns([
  // A paused pooler, a stalled connection, a cut one.
  ["pgbouncer", ["postgres", "pgbouncer"], 6],
]);
