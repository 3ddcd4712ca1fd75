import { CompiledQuery, Kysely, PostgresDialect, type Transaction } from "kysely";
import { beforeEach, describe, expect, it } from "vitest";
import { StaleTokenError } from "../../src/core/errors.js";
import { type PostgresTx, postgresFence } from "../../src/fence/postgres.js";
import { sellTheLastHat } from "../support/buyer.js";
import { Database } from "../support/database.js";
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

  it("the same fence in a transaction of Kysely", async () => {
    const pool = database.pool();
    const db = new Kysely<{ orders: { buyer: string } }>({
      dialect: new PostgresDialect({ pool }),
    });
    const fence = postgresFence(pool);
    const txOf = (trx: Transaction<{ orders: { buyer: string } }>): PostgresTx => ({
      query: (text, values = []) => trx.executeQuery(CompiledQuery.raw(text, [...values])),
    });
    const buy = (buyer: string, token: bigint): Promise<void> =>
      db.transaction().execute(async (trx) => {
        await fence.guard(txOf(trx), "stock:hat", { token, floor: token });
        await trx.insertInto("orders").values({ buyer }).execute();
      });
    const later = 2n ** 60n;
    await buy("Bob", later);
    await expect(buy("Ann", 1n)).rejects.toBeInstanceOf(StaleTokenError);
    await buy("Cat", later);
    expect(await orders()).toBe("Bob Cat");
    expect(await fence.highest(undefined, "stock:hat")).toBe(later);
  });
});
