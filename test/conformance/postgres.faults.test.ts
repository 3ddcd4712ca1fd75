import { afterAll, beforeAll } from "vitest";
import { Lab } from "../../src/verify/lab/lab.js";
import type { PgBouncer } from "../../src/verify/lab/pgbouncer.js";
import { describeWith } from "../support/needs.js";
import { describePostgresConformance, subjectIn } from "./postgres-cases.js";
import { describeConformance, NEEDS_VIRTUAL_TIME } from "./subjects.js";

describePostgresConformance("long");

/** Long enough for a pool that opens its connections through the pooler on a busy machine. */
const TTL_MS = 2_500;

describeWith(["postgres", "pgbouncer"], "PostgreSQL", () => {
  let lab: Lab;
  let server: PgBouncer;
  // Each case has a schema of its own.
  let subjects = 0;

  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.pgbouncer(await lab.postgres({ config: { max_connections: "1000" } }));
  });
  afterAll(() => lab.close());

  describeConformance(
    "through pgbouncer",
    async () => subjectIn(server.url, `case_${++subjects}`, { ttlMs: TTL_MS }),
    NEEDS_VIRTUAL_TIME,
  );
});
