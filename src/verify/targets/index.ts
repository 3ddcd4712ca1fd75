import type { Lab } from "../lab/lab.js";
import type { Kind } from "../lab/requirements.js";
import type { Target } from "../runner/target.js";
import { etcdClusterTarget, etcdTarget } from "./etcd.js";
import { redisClusterTarget, redisReplicaTarget, redisTarget } from "./redis.js";
import { sqliteTarget } from "./sqlite.js";

/** A store that the lab can start by itself. */
export interface LabTarget {
  readonly needs: readonly Kind[];
  /** `isClocked`: wall clocks can be set, by libfaketime. */
  open(lab: Lab, isClocked: boolean): Promise<Target>;
}

/** By the names of `--lab`. */
export const LAB_TARGETS = {
  sqlite: { needs: [], open: sqliteTarget },
  redis: { needs: ["redis"], open: redisTarget },
  "redis-replica": { needs: ["redis"], open: redisReplicaTarget },
  "redis-cluster": { needs: ["redis"], open: redisClusterTarget },
  etcd: { needs: ["etcd"], open: etcdTarget },
  "etcd-cluster": { needs: ["etcd"], open: etcdClusterTarget },
} as const satisfies Readonly<Record<string, LabTarget>>;

export type LabName = keyof typeof LAB_TARGETS;
