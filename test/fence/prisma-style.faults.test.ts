import type { PoolClient } from "pg";
import { expect, test } from "vitest";
import type { PostgresTx } from "../../src/fence/postgres.js";
import { postgresFence } from "../../src/fence/postgres.js";
import { Database } from "../support/database.js";
import { importBlock } from "../support/docs.js";
import { describeWith } from "../support/needs.js";

interface PrismaTx {
  $queryRawUnsafe(text: string, ...values: unknown[]): Promise<unknown[]>;
}

const exclusive = (token: bigint) => ({ token, floor: token });

describeWith(["postgres", "pgbouncer"], "a fence in a transaction of Prisma's shape", () => {
  const database = Database.forTests();

  test("guards by the object of docs/fences.md, and a refused transaction can't be committed", async () => {
    const { txOf } = await importBlock<{ txOf(trx: PrismaTx): PostgresTx }>(
      "docs/fences.md",
      "test/fence/prisma-style.faults.test.ts",
    );
    const pool = database.pool();
    const fence = postgresFence(pool);
    await pool.query("CREATE TABLE orders (buyer text)");
    /** As Prisma does it: commits when the function resolves, and rolls back when it rejects. */
    const transaction = async (work: (trx: PrismaTx) => Promise<void>): Promise<void> => {
      const client: PoolClient = await pool.connect();
      const trx: PrismaTx = {
        $queryRawUnsafe: async (text, ...values) => (await client.query(text, values)).rows,
      };
      try {
        await client.query("BEGIN");
        await work(trx);
        await client.query("COMMIT");
      } catch (error) {
        await client.query("ROLLBACK");
        throw error;
      } finally {
        client.release();
      }
    };
    const order = (token: bigint, buyer: string, ignoresRefusal = false): Promise<void> =>
      transaction(async (trx) => {
        const guarding = fence.guard(txOf(trx), "stock", exclusive(token));
        await (ignoresRefusal ? guarding.catch(() => {}) : guarding);
        await trx.$queryRawUnsafe("INSERT INTO orders VALUES ($1)", buyer);
      });
    await order(5n, "Ann");
    await fence.enter(undefined, "stock", exclusive(6n));
    await expect(order(5n, "Bob")).rejects.toMatchObject({ code: "STALE_TOKEN", highest: 6n });
    await expect(order(5n, "Bob", true)).rejects.toThrow(/aborted/);
    await order(6n, "Cleo");
    const { rows } = await pool.query("SELECT buyer FROM orders ORDER BY buyer");
    expect(rows).toEqual([{ buyer: "Ann" }, { buyer: "Cleo" }]);
  });
});
