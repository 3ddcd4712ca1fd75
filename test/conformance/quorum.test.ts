import { afterAll, beforeAll } from "vitest";
import { QUORUM_TRAITS } from "../../src/stores/quorum/index.js";
import { Lab } from "../../src/verify/lab/lab.js";
import type { RedisServer } from "../../src/verify/lab/redis.js";
import { describeWith } from "../support/needs.js";
import { byQuorum } from "../support/quorum.js";
import {
  casesRefusedBy,
  describeConformance,
  NEEDS_QUEUE,
  NEEDS_VIRTUAL_TIME,
  realSubject,
} from "./subjects.js";

describeWith(["redis"], "a quorum of Redis", () => {
  let lab: Lab;
  let servers: readonly RedisServer[];
  // Each case has a database of its own.
  let subjects = 0;

  beforeAll(async () => {
    lab = await Lab.open();
    const config = { databases: "1000" };
    servers = await Promise.all([1, 2, 3].map(() => lab.redis({ config })));
  });
  afterAll(() => lab.close());

  describeConformance(
    "by ioredis",
    async () => {
      const db = ++subjects;
      return realSubject(() => byQuorum(servers, { db, maxTtl: "5m" }));
    },
    { ...NEEDS_VIRTUAL_TIME, ...NEEDS_QUEUE, ...casesRefusedBy(QUORUM_TRAITS) },
  );
});
