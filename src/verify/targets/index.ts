import type { Lab } from "../lab/lab.js";
import type { Kind } from "../lab/requirements.js";
import type { Target } from "../runner/target.js";
import { etcdClusterTarget, etcdTarget } from "./etcd.js";
import {
  pgbouncerTarget,
  postgresSessionTarget,
  postgresStandbyTarget,
  postgresTarget,
} from "./postgres.js";
import { redisReplicaTarget, redisTarget } from "./redis.js";
import { redisClusterTarget } from "./redis-cluster.js";
import { redlockTarget } from "./redlock.js";
import { sqliteTarget } from "./sqlite.js";
import { zookeeperClusterTarget, zookeeperTarget } from "./zookeeper.js";

/** A store that the lab can start. */
export interface LabTarget {
  readonly needs: readonly Kind[];
  /** Starts the store. `isClocked`: libfaketime is there, so wall clocks can be set. */
  open(lab: Lab, isClocked: boolean): Promise<Target>;
}

/** The targets by their name for `--lab`. */
export const LAB_TARGETS = {
  sqlite: { needs: [], open: sqliteTarget },
  redis: { needs: ["redis"], open: redisTarget },
  "redis-replica": { needs: ["redis"], open: redisReplicaTarget },
  "redis-cluster": { needs: ["redis"], open: redisClusterTarget },
  redlock: { needs: ["redis"], open: redlockTarget },
  postgres: { needs: ["postgres"], open: postgresTarget },
  "postgres-session": { needs: ["postgres"], open: postgresSessionTarget },
  "postgres-standby": { needs: ["postgres"], open: postgresStandbyTarget },
  pgbouncer: { needs: ["postgres", "pgbouncer"], open: pgbouncerTarget },
  etcd: { needs: ["etcd"], open: etcdTarget },
  "etcd-cluster": { needs: ["etcd"], open: etcdClusterTarget },
  zookeeper: { needs: ["zookeeper"], open: zookeeperTarget },
  "zookeeper-cluster": { needs: ["zookeeper"], open: zookeeperClusterTarget },
} as const satisfies Readonly<Record<string, LabTarget>>;

/** The name of a store that the lab can start, for `--lab`. */
export type LabName = keyof typeof LAB_TARGETS;
