import type { StoreKind } from "../kind.js";
import { TLS_OPTIONS } from "../shared/tls.js";

export const quorumKind: StoreKind = {
  schemes: ["redlock"],
  form: "hosts",
  options: ["maxTtl", ...TLS_OPTIONS],
  examples: ["redlock://127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003"],
  scope: "network",
  traits: async () => (await import("./index.js")).QUORUM_TRAITS,
  open: async (url) => (await import("./open.js")).openQuorumStore(url),
  examine: async () => [],
};
