import { describeShortRuns } from "./short-runs.js";

describeShortRuns([
  // A process of another user, a full disk, a killed worker.
  ["sqlite", [], 1622],
  // A lost reply, a setting that is changed, a full disk.
  ["redis", ["redis"], 107440],
  // A cut connection, a killed worker, the alarm NOSPACE.
  ["etcd", ["etcd"], 169439],
  // Idle connections that the server closes, a lost reply, silent commands.
  ["postgres", ["postgres"], 6],
  // A paused node, a lost reply, a node that loses its data.
  ["redlock", ["redis"], 5141],
  // A killed server, a lost reply, a killed worker.
  ["zookeeper", ["zookeeper"], 40],
]);
