import { afterAll, beforeAll } from "vitest";
import { Lab } from "../../src/verify/lab/lab.js";
import type { RedisServer } from "../../src/verify/lab/redis.js";
import { startRedisCluster } from "../../src/verify/lab/redis-cluster.js";
import { describeWith } from "../support/needs.js";
import { byCluster, byIoredis, byNodeRedis } from "../support/redis.js";
import { describeConformance, NEEDS_VIRTUAL_TIME, realSubject } from "./subjects.js";

describeWith(["redis"], "Redis", () => {
  let lab: Lab;
  let url: string;
  let cluster: readonly RedisServer[];
  // Each case has a database of its own, and in the cluster a prefix.
  let subjects = 0;

  beforeAll(async () => {
    lab = await Lab.open();
    const [server, servers] = await Promise.all([
      lab.redis({ config: { databases: "1000" } }),
      startRedisCluster(lab),
    ]);
    url = server.url;
    cluster = servers;
  });
  afterAll(() => lab.close());

  describeConformance(
    "by ioredis",
    async () => {
      const db = ++subjects;
      return realSubject(() => byIoredis(url, { db }));
    },
    NEEDS_VIRTUAL_TIME,
  );

  describeConformance(
    "by node-redis",
    async () => {
      const db = ++subjects;
      return realSubject(() => byNodeRedis(url, { db }));
    },
    NEEDS_VIRTUAL_TIME,
  );

  describeConformance(
    "by a cluster",
    async () => {
      const prefix = `app-${++subjects}:`;
      return realSubject(() => byCluster(cluster, prefix));
    },
    {
      ...NEEDS_VIRTUAL_TIME,
      "many names in one claim: all or nothing": "the names may lie on different nodes",
    },
  );
});
