import { afterAll, beforeAll } from "vitest";
import { POSTGRES_SESSION_TRAITS } from "../../src/stores/postgres/session/index.js";
import { conformance } from "../../src/testing.js";
import { Lab } from "../../src/verify/lab/lab.js";
import type { PostgresServer } from "../../src/verify/lab/postgres.js";
import { describeWith } from "../support/needs.js";
import { bySession } from "../support/postgres.js";
import { describeConformance, NEEDS_VIRTUAL_TIME, realSubject } from "./subjects.js";

const { cannot } = POSTGRES_SESSION_TRAITS;
const NO_QUEUE = "its waiters poll, and have no place in a queue";

const QUEUE_CASES = [
  "a repeated claim finds its ticket in the same place",
  "a stale release touches neither the successor nor the queue",
  "a full queue refuses another claim, which leaves nothing behind",
  "waiting is first come, first served, and nobody barges",
  "a push that arrives too late is no grant",
  "a waiter with a long ttl is granted the name when a holder with a short one, which had waited too, has crashed",
  "a waiter with a long ttl is granted the name when that holder and the two waiters after it have crashed",
  "a writer is not starved by readers that keep coming",
  "inspect and list show holders, waiters and times",
  "in opposite orders acquireAll never deadlocks; acquire does, and deadlocks() shows it",
  "readers hold together, a writer alone",
];

const REFUSED = conformance.flatMap(({ name, feature }) => {
  const reason = feature && cannot[feature];
  return reason === undefined ? [] : [[name, reason] as const];
});

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
    {
      ...NEEDS_VIRTUAL_TIME,
      ...Object.fromEntries(REFUSED),
      ...Object.fromEntries(QUEUE_CASES.map((name) => [name, NO_QUEUE])),
    },
  );
});
