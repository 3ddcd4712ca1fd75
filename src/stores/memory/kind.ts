import { note } from "../../doctor/finding.js";
import type { StoreKind } from "../kind.js";

export const memoryKind: StoreKind = {
  schemes: ["memory"],
  form: "bare",
  options: [],
  examples: ["memory:"],
  scope: "process",
  traits: async () => (await import("./index.js")).MEMORY_TRAITS,
  open: async () => (await import("./index.js")).memoryStore(),
  examine: async () => [
    note(
      "scope",
      "memory: lives in one process: it excludes no other process, and its locks end with the process",
      "Use a store that all your processes can reach: sqlite: on one machine, redis: or etcd: on several.",
    ),
  ],
};
