import { Pool, type PoolClient } from "pg";
import { afterAll, beforeAll, expect, test } from "vitest";
import { postgresFence } from "../../src/fence/postgres.js";
import { conformance, type FencedCell, type Subject } from "../../src/testing.js";
import { Lab } from "../../src/verify/lab/lab.js";
import type { PostgresServer } from "../../src/verify/lab/postgres.js";
import { describeWith } from "../support/needs.js";
import { byPool } from "../support/postgres.js";
import { describeConformance, NEEDS_VIRTUAL_TIME, realSubject } from "./subjects.js";

/** These cases crash holders, wait for many ttls or take a thousand names: they run with the fault tests. */
const LONG = [
  "a waiter with a long ttl is granted the name when that holder and the two waiters after it have crashed",
  "a waiter with a long ttl is granted the name when a holder with a short one, which had waited too, has crashed",
  "a waiter is granted the name when the holder and the first waiter have crashed",
  "the permits of crashed holders come back, each at its own expiry",
  "a name that is held and a store that is down are different errors",
  "the watchdog keeps a lease for many ttls",
  "1,000 names at once",
  "a full queue refuses another claim, which leaves nothing behind",
];

/** The suite by a pool, directly; the short cases and the long ones together are all of them. */
export function describePostgresConformance(which: "short" | "long"): void {
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

    test("the long cases are in the suite", () => {
      expect(conformance.map(({ name }) => name)).toEqual(expect.arrayContaining(LONG));
    });

    describeConformance(
      "by a pool",
      // On a busy machine, a second connection that is opened for a release is ready only after the wait for the
      // reply is over. Through pgbouncer, all cases run with several.
      async () => subjectIn(server.url, `case_${++subjects}`, { connections: 1 }),
      NEEDS_VIRTUAL_TIME,
      undefined,
      conformance.filter(({ name }) => LONG.includes(name) === (which === "long")),
    );
  });
}

/** Locks, fence and cell in a schema of their own. */
export function subjectIn(
  url: string,
  schema: string,
  { ttlMs, connections = 4 }: { readonly ttlMs?: number; readonly connections?: number },
): Subject {
  const pool = new Pool({ connectionString: url });
  return {
    ...realSubject(() => byPool(url, { schema }, { max: connections }), ttlMs),
    fence: () => fencedCell(pool, schema),
    dispose: () => pool.end(),
  };
}

async function fencedCell(pool: Pool, schema: string): Promise<FencedCell> {
  const cell = `cell_of_${schema}`;
  await pool.query(`CREATE TABLE ${cell} (value integer); INSERT INTO ${cell} VALUES (0)`);
  return {
    fence: postgresFence(pool, { schema }) as FencedCell["fence"],
    transaction: async (fn) => {
      const tx = await pool.connect();
      try {
        await tx.query("BEGIN");
        const result = await fn(tx);
        await tx.query("COMMIT");
        return result;
      } catch (error) {
        await tx.query("ROLLBACK");
        throw error;
      } finally {
        tx.release();
      }
    },
    read: async (tx) => (await (tx as PoolClient).query(`SELECT value FROM ${cell}`)).rows[0].value,
    write: async (tx, value) => {
      await (tx as PoolClient).query(`UPDATE ${cell} SET value = $1`, [value]);
    },
  };
}
