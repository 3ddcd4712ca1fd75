import type { StoreKind } from "../kind.js";
import { TLS_OPTIONS } from "../shared/tls.js";

export const quorumKind: StoreKind = {
  schemes: ["redlock"],
  form: "hosts",
  options: ["maxTtl", "tls", ...TLS_OPTIONS],
  examples: ["redlock://127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003"],
  scope: "network",
  traits: async (url) => (await import("./url.js")).traitsOf(url),
  open: async (url) => (await import("./open.js")).openQuorumStore(url),
  examine: async (url, trial) => (await import("./doctor/index.js")).examineQuorum(url, trial),
};
