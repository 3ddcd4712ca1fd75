import { afterAll, beforeAll } from "vitest";
import { POSTGRES_SESSION_TRAITS } from "../../src/stores/postgres/session/index.js";
import { Lab } from "../../src/verify/lab/lab.js";
import type { PostgresServer } from "../../src/verify/lab/postgres.js";
import { describeWith } from "../support/needs.js";
import { bySession } from "../support/postgres.js";
import {
  casesRefusedBy,
  describeConformance,
  NEEDS_QUEUE,
  NEEDS_VIRTUAL_TIME,
  realSubject,
} from "./subjects.js";

describeWith(["postgres"], "locks of PostgreSQL sessions", () => {
  let lab: Lab;
  let server: PostgresServer;
  let subjects = 0;

  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.postgres({ config: { max_connections: "1000" } });
  });
  afterAll(() => lab.close());

  describeConformance(
    "by a pool",
    async () => {
      // Each case has a schema of its own.
      const schema = `case_${++subjects}`;
      return realSubject(() => bySession(server.url, { schema }));
    },
    { ...NEEDS_VIRTUAL_TIME, ...NEEDS_QUEUE, ...casesRefusedBy(POSTGRES_SESSION_TRAITS) },
  );
});
