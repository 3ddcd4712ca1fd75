import { sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/node-postgres";
import { CompiledQuery, Kysely, PostgresDialect, type Transaction } from "kysely";
import type { Pool } from "pg";
import { beforeEach, describe, expect, it } from "vitest";
import { StaleTokenError } from "../../src/core/errors.js";
import { type PostgresFence, type PostgresTx, postgresFence } from "../../src/fence/postgres.js";
import { sellTheLastHat } from "../support/buyer.js";
import { Database } from "../support/database.js";
import { txOf } from "../support/drizzle.js";
import { describeWith } from "../support/needs.js";

const PROGRAM = new URL("buyer.mjs", import.meta.url);

describeWith(["postgres", "pgbouncer"], "the last hat and two buyers", () => {
  const database = Database.forTests();
  const orders = (): Promise<string> =>
    database.server.sql("SELECT string_agg(buyer, ' ' ORDER BY buyer) FROM orders");

  beforeEach(async () => {
    await database.server.sql(
      `SET client_min_messages = warning; DROP TABLE IF EXISTS stock, orders;
       CREATE TABLE stock (item text PRIMARY KEY, count integer NOT NULL); INSERT INTO stock VALUES ('hat', 1);
       CREATE TABLE orders (buyer text)`,
    );
  });

  describe("one is paused past its lease, between its read and its write", () => {
    const sell = (kind: "fenced" | "unfenced"): Promise<string> =>
      sellTheLastHat(PROGRAM, database.server.url, kind);

    it("oversold without a fence", { timeout: 60_000 }, async () => {
      expect(await sell("unfenced")).toBe("bought");
      expect(await orders()).toBe("Ann Bob");
    });

    it("right with the fence", { timeout: 60_000 }, async () => {
      expect(await sell("fenced")).toBe("STALE_TOKEN");
      expect(await orders()).toBe("Bob");
      expect(await database.server.sql("SELECT count FROM stock")).toBe("0");
    });
  });

  type Buy = (buyer: string, token: bigint) => Promise<unknown>;

  it.each([
    [
      "Kysely",
      (pool: Pool, fence: PostgresFence): Buy => {
        type Tables = { orders: { buyer: string } };
        const db = new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) });
        const txOf = (trx: Transaction<Tables>): PostgresTx => ({
          query: (text, values = []) => trx.executeQuery(CompiledQuery.raw(text, [...values])),
        });
        return (buyer, token) =>
          db.transaction().execute(async (trx) => {
            await fence.guard(txOf(trx), "stock:hat", { token, floor: token });
            await trx.insertInto("orders").values({ buyer }).execute();
          });
      },
    ],
    [
      "Drizzle",
      (pool: Pool, fence: PostgresFence): Buy => {
        const db = drizzle(pool);
        return (buyer, token) =>
          db.transaction(async (trx) => {
            await fence.guard(txOf(trx), "stock:hat", { token, floor: token });
            await trx.execute(sql`INSERT INTO orders VALUES (${buyer})`);
          });
      },
    ],
  ])("the same fence in a transaction of %s", async (_what, make) => {
    const pool = database.pool();
    const fence = postgresFence(pool);
    const buy = make(pool, fence);
    const later = 2n ** 60n;
    await fence.reset(undefined, "stock:hat", 0n);
    await buy("Bob", later);
    await expect(buy("Ann", 1n)).rejects.toBeInstanceOf(StaleTokenError);
    await buy("Cat", later);
    expect(await orders()).toBe("Bob Cat");
    expect(await fence.highest(undefined, "stock:hat")).toBe(later);
  });
});
