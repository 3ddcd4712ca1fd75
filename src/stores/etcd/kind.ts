import type { StoreKind } from "../kind.js";
import { TLS_OPTIONS } from "../shared/tls.js";

export const etcdKind: StoreKind = {
  schemes: ["etcd"],
  form: "hosts",
  options: ["tls", ...TLS_OPTIONS],
  examples: ["etcd://127.0.0.1:2379"],
  scope: "network",
  traits: async () => (await import("./index.js")).ETCD_TRAITS,
  open: async (url) => (await import("./open.js")).openEtcdStore(url),
  examine: async (url, trial) => (await import("./doctor/index.js")).examineEtcd(url, trial),
};
