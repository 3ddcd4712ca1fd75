import type { StoreKind } from "../kind.js";
import { TLS_OPTIONS } from "../shared/tls.js";

export const zookeeperKind: StoreKind = {
  schemes: ["zookeeper"],
  form: "hosts",
  options: ["tls", ...TLS_OPTIONS],
  examples: ["zookeeper://127.0.0.1:2181"],
  scope: "network",
  traits: async () => (await import("./index.js")).ZOOKEEPER_TRAITS,
  open: async (url) => (await import("./open.js")).openZooKeeperStore(url),
  examine: async (url, trial) => (await import("./doctor/index.js")).examineZooKeeper(url, trial),
};
