import type { PoolClient } from "pg";
import { beforeAll, expect, test } from "vitest";
import type { PostgresTx } from "../../src/fence/postgres.js";
import { postgresFence } from "../../src/fence/postgres.js";
import { Database } from "../support/database.js";
import { importBlock } from "../support/docs.js";
import { describeWith } from "../support/needs.js";

interface PrismaTx {
  $queryRawUnsafe(text: string, ...values: unknown[]): Promise<unknown[]>;
}

/** The number of the type in the server's catalogue. */
const VOID = 2278;

const metaOfEngine = (code: string, message: string): object => ({ code, message });
/** Since version 7. */
const metaOfAdapter = (originalCode: string, originalMessage: string): object => ({
  driverAdapterError: { cause: { originalCode, originalMessage, kind: "postgres" } },
});

const exclusive = (token: bigint) => ({ token, floor: token });

describeWith(["postgres", "pgbouncer"], "a fence in a transaction of Prisma's shape", () => {
  const database = Database.forTests();
  let txOf: (trx: PrismaTx) => PostgresTx;
  beforeAll(async () => {
    ({ txOf } = await importBlock<{ txOf: typeof txOf }>(
      "docs/fences.md",
      "test/fence/prisma-style.faults.test.ts",
    ));
  });

  /** The object of a transaction on this client. Its refusals and its errors are those of Prisma's engine. */
  const prismaOn = (client: PoolClient, metaOf = metaOfEngine): PrismaTx => ({
    async $queryRawUnsafe(text, ...values) {
      try {
        if (values.length > 0) await refuseNumbers(client, text);
        const { rows, fields } = await client.query(text, values);
        if (fields.some(({ dataTypeID }) => dataTypeID === VOID))
          throw new Error("Failed to deserialize column of type 'void'");
        return rows;
      } catch (error) {
        const { code = "N/A", message } = error as { code?: string; message: string };
        const known = `Raw query failed. Code: \`${code}\`. Message: \`${message}\``;
        throw Object.assign(new Error(known), { code: "P2010", meta: metaOf(code, message) });
      }
    },
  });

  /** The engine sends strings, and the server would take their bytes for those of a number. */
  async function refuseNumbers(client: PoolClient, text: string): Promise<void> {
    await client.query(`PREPARE tested AS ${text}`);
    const types = "SELECT array_to_json(parameter_types) AS types FROM pg_prepared_statements";
    const { rows } = await client.query(`${types} WHERE name = 'tested'`);
    await client.query("DEALLOCATE tested");
    if (rows[0].types.some((type: string) => type !== "text"))
      throw new Error(`incorrect binary data format in bind parameter: ${rows[0].types}`);
  }

  test("guards by the object of docs/fences.md, and a refused transaction can't be committed", async () => {
    const pool = database.pool();
    const fence = postgresFence(pool);
    await pool.query("CREATE TABLE orders (buyer text)");
    /** As Prisma does it: commits when the function resolves, and rolls back when it rejects. */
    const transaction = async (work: (trx: PrismaTx) => Promise<void>): Promise<void> => {
      const client: PoolClient = await pool.connect();
      try {
        await client.query("BEGIN");
        await work(prismaOn(client));
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

  test.each([
    ["the engine", metaOfEngine],
    ["a driver adapter", metaOfAdapter],
  ])("a guard that meets another says to run the transaction again, by %s", async (_, metaOf) => {
    const pool = database.pool();
    const fence = postgresFence(pool);
    await fence.enter(undefined, "coat", exclusive(1n));
    const client = await pool.connect();
    try {
      await client.query("BEGIN ISOLATION LEVEL REPEATABLE READ");
      await client.query("SELECT 1");
      await fence.guard(undefined, "coat", exclusive(1n));
      const late = fence.guard(txOf(prismaOn(client, metaOf)), "coat", exclusive(1n));
      await expect(late).rejects.toMatchObject({
        code: "STORE_UNAVAILABLE",
        retryable: true,
        cause: { code: "40001" },
      });
    } finally {
      await client.query("ROLLBACK");
      client.release();
    }
  });
});
