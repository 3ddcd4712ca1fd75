import { Pool, type PoolClient } from "pg";
import { postgresFence } from "../../src/fence/postgres.js";
import type { FencedCell, Subject } from "../../src/testing.js";
import { byPool } from "../support/postgres.js";
import { realSubject } from "./subjects.js";

/** Locks, fence and cell in a schema of their own. */
export function subjectIn(url: string, schema: string, ttlMs?: number): Subject {
  const pool = new Pool({ connectionString: url });
  return {
    ...realSubject(() => byPool(url, { schema }), ttlMs),
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
