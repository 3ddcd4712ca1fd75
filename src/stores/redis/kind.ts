import type { StoreKind } from "../kind.js";
import { TLS_OPTIONS } from "../shared/tls.js";

export const redisKind: StoreKind = {
  schemes: ["redis", "rediss"],
  form: "hosts",
  options: ["cluster", "sentinel", "replicas", ...TLS_OPTIONS],
  examples: ["redis://127.0.0.1:6379", "redis://127.0.0.1:7000?cluster"],
  scope: "network",
  async traits({ options }) {
    const { REDIS_CLUSTER_TRAITS, REDIS_TRAITS } = await import("./index.js");
    return options.has("cluster") ? REDIS_CLUSTER_TRAITS : REDIS_TRAITS;
  },
  open: async (url) => (await import("./open.js")).openRedisStore(url),
  examine: async (url, trial) => (await import("./doctor/index.js")).examineRedis(url, trial),
};
