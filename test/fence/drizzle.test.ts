import { sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/node-postgres";
import { beforeEach, expect, it } from "vitest";
import { guardRow, postgresFence } from "../../src/fence/postgres.js";
import { lockRow } from "../../src/postgres/index.js";
import { Database } from "../support/database.js";
import { txOf } from "../support/drizzle.js";
import { describeWith } from "../support/needs.js";

const OLD = { token: 1n, floor: 1n };
const NEW = { token: 2n, floor: 2n };

// Drizzle throws an error of its own, whose cause is the error of pg.
describeWith(["postgres", "pgbouncer"], "errors of PostgreSQL that come by Drizzle", () => {
  const database = Database.forTests();
  let schema: string;
  let schemas = 0;

  beforeEach(async () => {
    schema = `fence_${++schemas}`;
    await database.server.sql(
      `SET client_min_messages = warning; DROP TABLE IF EXISTS stock;
       CREATE TABLE stock (item text PRIMARY KEY, count integer, fence_token bigint); INSERT INTO stock VALUES ('hat', 7)`,
    );
  });

  const open = (max = 4) => {
    const pool = database.pool({ max });
    return { db: drizzle(pool), fence: postgresFence(pool, { schema }) };
  };

  it.each(["repeatable read", "serializable"] as const)(
    "40001 under %s: a guard that meets another says to run the transaction again",
    async (isolationLevel) => {
      const { db, fence } = open();
      await fence.enter(undefined, "stock", OLD);
      for (const guard of [
        (tx: ReturnType<typeof txOf>) => fence.guard(tx, "stock", OLD),
        (tx: ReturnType<typeof txOf>) => guardRow(tx, "stock", { item: "hat" }, OLD),
      ]) {
        const late = db.transaction(
          async (trx) => {
            await trx.execute(sql`SELECT count FROM stock`);
            await db.transaction(async (other) => guard(txOf(other)));
            await guard(txOf(trx));
          },
          { isolationLevel },
        );
        await expect(late).rejects.toMatchObject({
          code: "STORE_UNAVAILABLE",
          retryable: true,
          cause: { code: "40001" },
          message: expect.not.stringContaining("Failed query"),
        });
      }
    },
  );

  it("42P01: the next step makes a table again that was dropped", async () => {
    const { db, fence } = open();
    await fence.enter(undefined, "stock", OLD);
    await database.server.sql(`DROP TABLE ${schema}.fences`);
    const guarding = () => db.transaction((trx) => fence.guard(txOf(trx), "stock", OLD));
    await expect(guarding()).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
      retryable: true,
      cause: { code: "42P01" },
    });
    await guarding();
    expect(await fence.highest(undefined, "stock")).toBe(1n);
  });

  it("makes a table again that it made in a transaction that was rolled back", async () => {
    const { db, fence } = open();
    const failing = db.transaction(async (trx) => {
      // A new object for each step, as a program writes it.
      await fence.guard(txOf(trx), "stock", OLD);
      await fence.guard(txOf(trx), "stock", OLD);
      throw new Error("rolled back");
    });
    await expect(failing).rejects.toThrow("rolled back");
    await db.transaction((trx) => fence.guard(txOf(trx), "stock", NEW));
    expect(await fence.highest(undefined, "stock")).toBe(2n);
  });

  it.each([0, 200])("55P03: a row stays locked for a wait of %i ms", async (wait) => {
    const { db } = open();
    await db.transaction(async (trx) => {
      await lockRow(txOf(trx), "stock", { item: "hat" });
      const busy = db.transaction((other) =>
        lockRow(txOf(other), "stock", { item: "hat" }, { wait }),
      );
      await expect(busy).rejects.toMatchObject({ code: "ACQUIRE_TIMEOUT" });
    });
  });

  it("a lost connection is an outage, whose message does not repeat the statement", async () => {
    const pool = database.pool();
    pool.on("connect", (client) => client.on("error", () => {}));
    const fence = postgresFence(pool, { schema });
    await fence.enter(undefined, "stock", OLD);
    let guarding: Promise<void> | undefined;
    const transaction = drizzle(pool).transaction(async (trx) => {
      const { rows } = await trx.execute(sql`SELECT pg_backend_pid() AS pid`);
      await database.server.sql(`SELECT pg_terminate_backend(${rows[0]!["pid"]})`);
      guarding = fence.guard(txOf(trx), "stock", OLD);
      await guarding;
    });
    await expect(transaction).rejects.toThrow();
    await expect(guarding).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
    await expect(guarding).rejects.not.toThrow(/Failed query|refused the statement/);
  });
});
