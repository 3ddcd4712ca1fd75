import { setTimeout as sleep } from "node:timers/promises";
import { beforeEach, describe, expect, it } from "vitest";
import { AcquireTimeoutError, ConflictError, InvalidArgumentError } from "../../src/core/errors.js";
import { lockRow, updateVersioned, withTransactionLock } from "../../src/postgres/index.js";
import { Database } from "../support/database.js";
import { describeWith } from "../support/needs.js";

// biome-ignore lint/suspicious/noExplicitAny: what JavaScript can pass
type Wrong = any;

describeWith(["postgres", "pgbouncer"], "rows", () => {
  const database = Database.forTests();

  beforeEach(async () => {
    await database.server.sql(
      `SET client_min_messages = warning; DROP SCHEMA IF EXISTS shop CASCADE; CREATE SCHEMA shop;
       CREATE TABLE shop."Order ""lines""" ("order" integer, line integer, state text, PRIMARY KEY ("order", line));
       INSERT INTO shop."Order ""lines""" VALUES (1, 1, 'open'), (1, 2, 'open'), (2, 1, 'paid');
       CREATE TABLE shop.stock (item text PRIMARY KEY, count integer, version bigint);
       INSERT INTO shop.stock VALUES ('hat', 0, 0), ('coat', 0, NULL)`,
    );
  });

  /** Runs the function in a transaction that is rolled back at its end. */
  async function inTransaction<T>(
    fn: (tx: import("pg").PoolClient) => Promise<T>,
    url = database.server.url,
    begin = "BEGIN",
  ): Promise<T> {
    const pool = database.pool({ max: 1 }, url);
    const tx = await pool.connect();
    try {
      await tx.query(begin);
      return await fn(tx);
    } finally {
      await tx.query("ROLLBACK");
      tx.release();
    }
  }
  const LINES = 'shop.Order "lines"';

  describe("lockRow", () => {
    it("locks the row of a composite key until the transaction ends, and no other", async () => {
      await inTransaction(async (one) => {
        const key = { order: 1, line: 2 };
        expect(await lockRow(one, LINES, key)).toEqual({ ...key, state: "open" });
        await inTransaction(async (two) => {
          expect(await lockRow(two, LINES, key, { skipLocked: true })).toBeNull();
          expect(await lockRow(two, LINES, { order: 1, line: 1 }, { wait: 0 })).not.toBeNull();
          expect(await lockRow(two, LINES, { order: 9, line: 9 })).toBeNull();
          const busy = lockRow(two, LINES, key, { wait: 0 });
          await expect(busy).rejects.toMatchObject({ code: "ACQUIRE_TIMEOUT", waitMs: 0 });
        });
        await inTransaction(async (two) => {
          const busy = lockRow(two, LINES, key, { wait: 200 });
          await expect(busy).rejects.toBeInstanceOf(AcquireTimeoutError);
          await expect(busy).rejects.toThrow('shop.Order \\"lines\\" (order = 1, line = 2)');
        });
      });
    });

    it("gets the row once the other transaction ends, as that has left it; the own limit is back", async () => {
      await inTransaction(async (tx) => {
        await tx.query("SET LOCAL lock_timeout = 777");
        let locked: Promise<unknown> | undefined;
        await withTransactionLock(database.pool(), "a", async (other) => {
          await lockRow(other, "shop.stock", { item: "hat" });
          locked = lockRow(tx, "shop.stock", { item: "hat" }, { wait: "20s" });
          await database.waiting(1);
          await other.query("UPDATE shop.stock SET count = 5 WHERE item = 'hat'");
        });
        expect(await locked).toMatchObject({ count: 5 });
        expect((await tx.query("SHOW lock_timeout")).rows).toEqual([{ lock_timeout: "777ms" }]);
      }, database.pooler.url);
    });

    it("wait: Infinity waits beyond the transaction's own limit, and an abort ends the wait", async () => {
      const key = { item: "hat" };
      await inTransaction(async (tx) => {
        await tx.query("SET LOCAL lock_timeout = 200");
        let locked: Promise<unknown> | undefined;
        await withTransactionLock(database.pool(), "a", async (other) => {
          await lockRow(other, "shop.stock", key);
          locked = lockRow(tx, "shop.stock", key, { wait: Number.POSITIVE_INFINITY });
          await database.waiting(1);
          await inTransaction(async (third) => {
            const controller = new AbortController();
            const { signal } = controller;
            const waiting = lockRow(third, "shop.stock", key, { wait: "1s", signal });
            controller.abort("changed my mind");
            await expect(waiting).rejects.toBe("changed my mind");
            const another = lockRow(third, "shop.stock", key, { signal });
            await expect(another).rejects.toBe("changed my mind");
          });
          await sleep(500);
        });
        expect(await locked).toMatchObject(key);
        expect((await tx.query("SHOW lock_timeout")).rows).toEqual([{ lock_timeout: "200ms" }]);
      });
    });

    it.each(["the server", "pgbouncer"] as const)(
      "an abort by way of %s ends the wait in PostgreSQL: a rollback frees the other rows at once",
      async (way) => {
        const { url } = way === "pgbouncer" ? database.pooler : database.server;
        const hat = { item: "hat" };
        await inTransaction(async (holder) => {
          await lockRow(holder, "shop.stock", hat);
          const controller = new AbortController();
          const { signal } = controller;
          const mine = database.pool({ max: 1 }, url);
          let waitedMs = 0;
          const waiting = withTransactionLock(mine, "a", async (tx) => {
            await lockRow(tx, "shop.stock", { item: "coat" });
            const wait = Number.POSITIVE_INFINITY;
            await lockRow(tx, "shop.stock", hat, { wait, signal }).finally(() => {
              waitedMs = performance.now();
            });
          }).catch((error: unknown) => error);
          await database.waiting(1);
          controller.abort("changed my mind");
          expect(await waiting).toBe("changed my mind");
          expect(performance.now() - waitedMs).toBeLessThan(4_000);
          expect(mine.totalCount).toBe(1);
          await database.waiting(0);
          await withTransactionLock(mine, "a", { wait: 0 }, async (tx) => {
            expect(await lockRow(tx, "shop.stock", { item: "coat" }, { wait: 0 })).not.toBeNull();
          });
        });
      },
    );

    it("an abort before the statement waits leaves the transaction and its own limit as they were", async () => {
      await inTransaction(async (tx) => {
        await tx.query("SET LOCAL lock_timeout = 777");
        const controller = new AbortController();
        const { signal } = controller;
        const waiting = lockRow(tx, "shop.stock", { item: "hat" }, { signal });
        controller.abort("changed my mind");
        await expect(waiting).rejects.toBe("changed my mind");
        expect((await tx.query("SHOW lock_timeout")).rows).toEqual([{ lock_timeout: "777ms" }]);
      });
    });

    it("an abort rejects at once in the transaction of a query builder, where nothing can be cancelled", async () => {
      const key = { item: "hat" };
      await inTransaction(async (holder) => {
        await lockRow(holder, "shop.stock", key);
        await inTransaction(async (client) => {
          const tx = { query: (text: string, values?: Wrong) => client.query(text, values) };
          const controller = new AbortController();
          const { signal } = controller;
          const waiting = lockRow(tx, "shop.stock", key, { wait: "1s", signal });
          await database.waiting(1);
          controller.abort("changed my mind");
          await expect(waiting).rejects.toBe("changed my mind");
          await database.waiting(1);
        });
      });
    });

    it("chooses a row that is free, by its order", async () => {
      await inTransaction(async (one) => {
        const next = (tx: Wrong): Promise<unknown> =>
          lockRow(tx, LINES, { state: "open" }, { skipLocked: true, orderBy: "line" });
        expect(await next(one)).toMatchObject({ line: 1 });
        await inTransaction(async (two) => {
          expect(await next(two)).toMatchObject({ line: 2 });
          await inTransaction(async (three) => expect(await next(three)).toBeNull());
        });
      });
    });

    it("refuses what is no transaction, no key of one row, no identifier", async () => {
      const pool = database.pool();
      const idle = await pool.connect();
      const key = { item: "hat" };
      await inTransaction(async (tx) => {
        const calls: (() => Promise<unknown>)[] = [
          () => lockRow(pool as Wrong, "shop.stock", key),
          () => lockRow(idle, "shop.stock", key),
          () => lockRow(null as Wrong, "shop.stock", key),
          () => lockRow(tx, "shop.stock", {}),
          () => lockRow(tx, "shop.stock", { item: null }),
          () => lockRow(tx, "shop.stock", ["hat"] as Wrong),
          () => lockRow(tx, "a.shop.stock", key),
          () => lockRow(tx, "shop.", key),
          () => lockRow(tx, "s".repeat(64), key),
          () => lockRow(tx, LINES, { order: 1 }),
          () => lockRow(tx, "shop.stock", key, { skip: true } as Wrong),
          () => lockRow(tx, "shop.stock", key, { orderBy: "item" }),
          () => lockRow(tx, "shop.stock", key, { signal: {} } as Wrong),
        ];
        for (const call of calls) await expect(call()).rejects.toBeInstanceOf(InvalidArgumentError);
      });
      idle.release();
      await inTransaction(async (tx) => {
        // An identifier of the caller's is one identifier, whatever it holds.
        const injected = lockRow(tx, 'stock"; DROP SCHEMA shop CASCADE; --', key);
        await expect(injected).rejects.toMatchObject({ code: "42P01" });
      });
      expect(await database.server.sql("SELECT count(*) FROM shop.stock")).toBe("2");
    });

    it("a snapshot that is too old is an error that says to run the transaction again", async () => {
      await inTransaction(
        async (tx) => {
          await tx.query("SELECT 1");
          await database.server.sql("UPDATE shop.stock SET count = 1");
          await expect(lockRow(tx, "shop.stock", { item: "hat" })).rejects.toMatchObject({
            code: "STORE_UNAVAILABLE",
            retryable: true,
            message: expect.stringContaining("run it again"),
            cause: { code: "40001" },
          });
        },
        undefined,
        "BEGIN ISOLATION LEVEL REPEATABLE READ",
      );
    });
  });

  describe("updateVersioned", () => {
    it("loses no update, although nobody locks", async () => {
      const pool = database.pool({ max: 5 }, database.pooler.url);
      let attempts = 0;
      const add = (): Promise<unknown> =>
        updateVersioned<{ count: number }>(
          pool,
          "shop.stock",
          { item: "hat" },
          ({ count }) => {
            attempts++;
            return { count: count + 1 };
          },
          { retries: 200 },
        );
      await Promise.all(Array.from({ length: 20 }, add));
      expect(
        await database.server.sql("SELECT count, version FROM shop.stock WHERE item = 'hat'"),
      ).toBe("20|20");
      expect(attempts).toBeGreaterThan(20);
    });

    it("begins with a row without a version, tells a missing row, and gives up after its retries", async () => {
      const pool = database.pool();
      const coat = { item: "coat" };
      expect(await updateVersioned(pool, "shop.stock", coat, () => ({ count: 3 }))).toEqual({
        item: "coat",
        count: 3,
        version: "1",
      });
      expect(await updateVersioned(pool, "shop.stock", { item: "shoe" }, () => ({}))).toBeNull();
      const change = async (): Promise<object> => {
        await database.server.sql("UPDATE shop.stock SET version = version + 1");
        return { count: 4 };
      };
      const failed = updateVersioned(pool, "shop.stock", coat, change as Wrong, { retries: 2 });
      await expect(failed).rejects.toBeInstanceOf(ConflictError);
      await expect(failed).rejects.toMatchObject({
        code: "CONFLICT",
        attempts: 3,
        retryable: true,
      });
      expect(await database.server.sql("SELECT count FROM shop.stock WHERE item = 'coat'")).toBe(
        "3",
      );
    });

    it("refuses what runs no statements", async () => {
      for (const db of [undefined, null, "postgres://127.0.0.1/app", {}]) {
        const update = updateVersioned(db as Wrong, "shop.stock", { item: "hat" }, () => ({}));
        await expect(update).rejects.toThrow(/^the db is .*; pass a pool or a client/);
        await expect(update).rejects.toBeInstanceOf(InvalidArgumentError);
      }
    });

    it("refuses a column that is not there, and leaves errors of the data as they are", async () => {
      const pool = database.pool();
      const update = (options: Wrong, changes: object = {}): Promise<unknown> =>
        updateVersioned(pool, "shop.stock", { item: "hat" }, () => changes as Wrong, options);
      await expect(update({ column: "revision" })).rejects.toBeInstanceOf(InvalidArgumentError);
      await expect(update({ retries: -1 })).rejects.toBeInstanceOf(InvalidArgumentError);
      await expect(update({ typo: 1 })).rejects.toBeInstanceOf(InvalidArgumentError);
      await expect(update({}, { item: "coat" })).rejects.toMatchObject({ code: "23505" });
    });
  });
});
