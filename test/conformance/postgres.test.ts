import { afterAll, beforeAll } from "vitest";
import { Lab } from "../../src/verify/lab/lab.js";
import type { PostgresServer } from "../../src/verify/lab/postgres.js";
import { describeWith } from "../support/needs.js";
import { subjectIn } from "./postgres-subject.js";
import { describeConformance, NEEDS_VIRTUAL_TIME } from "./subjects.js";

describeWith(["postgres"], "PostgreSQL", () => {
  let lab: Lab;
  let server: PostgresServer;
  // Each case has a schema of its own.
  let subjects = 0;

  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.postgres({ config: { max_connections: "1000" } });
  });
  afterAll(() => lab.close());

  describeConformance(
    "by a pool",
    async () => subjectIn(server.url, `case_${++subjects}`),
    NEEDS_VIRTUAL_TIME,
  );
});
