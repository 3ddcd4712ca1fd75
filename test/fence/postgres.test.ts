import type { PoolClient } from "pg";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import {
  InvalidArgumentError,
  StaleTokenError,
  StoreUnavailableError,
} from "../../src/core/errors.js";
import type { Fence } from "../../src/fence/fence.js";
import { fenceRefusals } from "../../src/fence/index.js";
import { guardRow, type PostgresFence, postgresFence } from "../../src/fence/postgres.js";
import { listFences } from "../../src/fences.js";
import { Database } from "../support/database.js";
import { describeWith } from "../support/needs.js";
import { expectListed, suiteOf } from "./suite.js";

// biome-ignore lint/suspicious/noExplicitAny: what JavaScript can pass
type Wrong = any;

const exclusive = (token: bigint): { token: bigint; floor: bigint } => ({ token, floor: token });
const OLD = exclusive(1n);
const NEW = exclusive(2n);

describeWith(["postgres", "pgbouncer"], "a fence in PostgreSQL", () => {
  const database = Database.forTests();
  let schemas = 0;
  let schema: string;
  const open: PoolClient[] = [];

  beforeEach(async () => {
    schema = `fence_${++schemas}`;
    await database.server.sql(
      `SET client_min_messages = warning; DROP TABLE IF EXISTS counter;
       CREATE TABLE counter (value integer); INSERT INTO counter VALUES (0)`,
    );
  });
  afterEach(async () => {
    for (const tx of open.splice(0)) {
      await tx.query("ROLLBACK");
      tx.release();
    }
  });

  const fenceOf = (url = database.server.url, options = {}): PostgresFence =>
    postgresFence(database.pool({ max: 4 }, url), { schema, ...options });
  const readValue = (): Promise<string> => database.server.sql("SELECT value FROM counter");

  /** A client with an open transaction, rolled back after the test. */
  async function begin(level = "READ COMMITTED", url = database.server.url): Promise<PoolClient> {
    const tx = await database.pool({ max: 1 }, url).connect();
    open.push(tx);
    await tx.query(`BEGIN ISOLATION LEVEL ${level}`);
    return tx;
  }

  describe("as every fence", () =>
    suiteOf(async () => {
      await database.server.sql(
        "CREATE TABLE IF NOT EXISTS cell (name text PRIMARY KEY, value integer)",
      );
      await database.server.sql("TRUNCATE cell");
      const pool = database.pool({ max: 8 });
      const fence = postgresFence(pool, { schema });
      const inTransaction = async (work: (tx: PoolClient) => Promise<void>): Promise<void> => {
        const tx = await pool.connect();
        try {
          await tx.query("BEGIN");
          await work(tx);
          await tx.query("COMMIT");
        } catch (error) {
          await tx.query("ROLLBACK");
          throw error;
        } finally {
          tx.release();
        }
      };
      return {
        fence: fence as Fence<undefined>,
        async read(resource) {
          const { rows } = await pool.query("SELECT value FROM cell WHERE name = $1", [resource]);
          return rows[0]?.value ?? 0;
        },
        write: (resource, lease, value, options) =>
          inTransaction(async (tx) => {
            await fence.guard(tx, resource, lease, options);
            const set =
              "INSERT INTO cell VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
            await tx.query(set, [resource, value]);
          }),
        forget: async (resource) =>
          void (await pool.query("DELETE FROM cell WHERE name = $1", [resource])),
        loseNumber: () => database.server.sql(`TRUNCATE ${schema}.fences`),
      };
    }));

  it("lists its resources, and makes no table for that", async () => {
    await expectListed(fenceOf() as never, { tellsTime: false });
    const listed = await listFences(`${database.server.url}?schema=${schema}`, { prefix: "b" });
    expect(listed).toMatchObject([{ resource: "b" }]);
    const other = postgresFence(database.pool(), { schema: `${schema}_other` });
    expect(await other.list()).toEqual([]);
    expect(await database.server.sql(`SELECT to_regnamespace('${schema}_other') IS NULL`)).toBe(
      "t",
    );
  });

  describe.each(["the server", "pgbouncer"] as const)("by way of %s", (way) => {
    const url = (): string => (way === "pgbouncer" ? database.pooler : database.server).url;

    it("a stale holder whose guard waited for the new holder is refused, and can't commit", async () => {
      const fence = fenceOf(url());
      const [stale, next] = [
        await begin("READ COMMITTED", url()),
        await begin("READ COMMITTED", url()),
      ];
      await fence.enter(undefined, "counter", OLD);
      await fence.guard(next, "counter", NEW);
      const late = fence.guard(stale, "counter", OLD);
      const refused = expect(late).rejects.toMatchObject({ code: "STALE_TOKEN", highest: 2n });
      await database.waiting(1);
      await next.query("COMMIT");
      await refused;
      // It ignores the error.
      await stale.query("UPDATE counter SET value = 1").catch(() => {});
      await stale.query("COMMIT");
      expect(await readValue()).toBe("0");
    });

    it("a new holder enters only after the guarded transaction of the old one has ended", async () => {
      const fence = fenceOf(url());
      const old = await begin("READ COMMITTED", url());
      await fence.guard(old, "counter", OLD);
      const entered = fence.enter(undefined, "counter", NEW).then(readValue);
      await database.waiting(1);
      await old.query("UPDATE counter SET value = 1");
      await old.query("COMMIT");
      expect(await entered).toBe("1");
      await expect(fence.guard(undefined, "counter", OLD)).rejects.toBeInstanceOf(StaleTokenError);
    });

    it("many processes make its table at once", async () => {
      for (let round = 0; round < 5; round++) {
        schema = `${schema}_${round}`;
        const fences = Array.from({ length: 12 }, () => fenceOf(url()));
        await Promise.all(fences.map((fence, i) => fence.enter(undefined, `r${i}`, NEW)));
        expect(await database.server.sql(`SELECT count(*) FROM ${schema}.fences`)).toBe("12");
      }
    });
  });

  it("a first guard of many at once is one of them: the lower ones wait, and are refused", async () => {
    const fence = fenceOf();
    await fence.highest(undefined, "counter");
    const tokens = [5n, 3n, 9n, 1n, 7n];
    const guarded = tokens.map(async (token) => {
      const tx = await begin();
      try {
        await fence.guard(tx, "counter", exclusive(token));
        await tx.query("UPDATE counter SET value = $1 WHERE value < $1", [Number(token)]);
        await tx.query("COMMIT");
        return token;
      } catch (error) {
        expect(error).toBeInstanceOf(StaleTokenError);
        return null;
      }
    });
    const passed = (await Promise.all(guarded)).filter((token) => token !== null);
    expect(passed).toContain(9n);
    expect(await fence.highest(undefined, "counter")).toBe(9n);
    expect(await readValue()).toBe("9");
  });

  it.each(["REPEATABLE READ", "SERIALIZABLE"])(
    "under %s, a guard whose snapshot misses the last holder's writes fails and says to run it again",
    async (level) => {
      const fence = fenceOf();
      await fence.enter(undefined, "counter", OLD);
      const [old, next] = [await begin(level), await begin(level)];
      await fence.guard(old, "counter", OLD, { strict: true });
      const waiting = fence.guard(next, "counter", NEW);
      const failed = expect(waiting).rejects.toMatchObject({
        code: "STORE_UNAVAILABLE",
        retryable: true,
        cause: { code: "40001" },
      });
      await database.waiting(1);
      await old.query("UPDATE counter SET value = 1");
      await old.query("COMMIT");
      await failed;
    },
  );

  it("enters although the default isolation level is a strict one and others enter too", async () => {
    const pool = database.pool({
      max: 8,
      options: "-c default_transaction_isolation=serializable",
    });
    const fence = postgresFence(pool, { schema });
    const lease = { token: 20n, floor: 5n };
    await Promise.all(Array.from({ length: 12 }, () => fence.enter(undefined, "counter", lease)));
    expect(await fence.highest(undefined, "counter")).toBe(5n);
  });

  it("holders of one time pass in any order, those from before their floor do not", async () => {
    const fence = fenceOf();
    const [first, second] = [
      { token: 5n, floor: 5n },
      { token: 6n, floor: 5n },
    ];
    // A floor that is lower lowers nothing.
    const early = { token: 5n, floor: 3n };
    for (const lease of [second, first, second, early]) {
      const tx = await begin();
      await fence.guard(tx, "counter", lease);
      await tx.query("COMMIT");
    }
    await expect(fence.guard(undefined, "counter", exclusive(4n))).rejects.toMatchObject({
      highest: 5n,
    });
    await fence.enter(undefined, "counter", exclusive(7n));
    await expect(fence.guard(undefined, "counter", second)).rejects.toBeInstanceOf(StaleTokenError);
  });

  it("strict refuses in a transaction too, and a rollback takes an entry back", async () => {
    const fence = fenceOf();
    const tx = await begin();
    const strict = fence.guard(tx, "counter", NEW, { strict: true });
    await expect(strict).rejects.toThrow(/has not entered/);
    const rolledBack = await begin();
    await fence.enter(rolledBack, "counter", NEW);
    expect(await fence.highest(rolledBack, "counter")).toBe(2n);
    await rolledBack.query("ROLLBACK");
    expect(await fence.highest(undefined, "counter")).toBe(0n);
  });

  it("a table made in a transaction that is rolled back is made again", async () => {
    const fence = fenceOf();
    const tx = await begin();
    await fence.guard(tx, "counter", OLD);
    await fence.guard(tx, "counter", OLD);
    await tx.query("ROLLBACK");
    await fence.enter(undefined, "counter", OLD);
    await database.server.sql(`DROP TABLE ${schema}.fences`);
    const next = await begin();
    await expect(fence.guard(next, "counter", OLD)).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
      retryable: true,
    });
    await fence.enter(undefined, "counter", OLD);
  });

  it("a table made in a transaction is looked for once more, and then a guard is one statement", async () => {
    const pool = database.pool({ max: 1 });
    const fence = postgresFence(pool, { schema });
    const client = await pool.connect();
    let statements = 0;
    const tx = {
      query: (text: string, values?: unknown[]) => {
        statements++;
        return client.query(text, values);
      },
    };
    const counts: number[] = [];
    for (const end of ["ROLLBACK", "COMMIT", "COMMIT", "COMMIT"]) {
      await client.query("BEGIN");
      await fence.guard(tx, "counter", OLD);
      statements = 0;
      await fence.guard(tx, "counter", OLD);
      counts.push(statements);
      await client.query(end);
    }
    client.release();
    // The table that the transaction itself has made may be rolled back.
    expect(counts).toEqual([2, 2, 1, 1]);
    expect(await fence.highest(undefined, "counter")).toBe(1n);
  });

  it("works with a pool of one whose client is the transaction's", async () => {
    const pool = database.pool({ max: 1 });
    const fence = postgresFence(pool, { schema });
    const tx = await pool.connect();
    await tx.query("BEGIN");
    await fence.guard(tx, "counter", OLD);
    await tx.query("COMMIT");
    tx.release();
    expect(await fence.highest(undefined, "counter")).toBe(1n);
  });

  it("makes its table also where the program's parser leaves booleans as text", async () => {
    const getTypeParser = () => (text: string) => text;
    const fence = postgresFence(database.pool({ types: { getTypeParser } }), { schema });
    await fence.enter(undefined, "counter", NEW);
    await expect(fence.enter(undefined, "counter", OLD)).rejects.toThrow(StaleTokenError);
  });

  it("does not wait for ever for a transaction that stays open, and says what to do", async () => {
    const fence = fenceOf(undefined, { wait: "200ms" });
    await fence.highest(undefined, "counter");
    const forgotten = await begin();
    await fence.guard(forgotten, "counter", OLD);
    const late = fence.enter(undefined, "counter", NEW);
    await expect(late).rejects.toBeInstanceOf(StoreUnavailableError);
    await expect(late).rejects.toThrow(
      /"counter" stays open: .*idle_in_transaction_session_timeout/,
    );
  });

  it("a user needs few rights, and gets the statements to run if it lacks them", async () => {
    const role = `plain_${schema}`;
    await database.server.sql(`CREATE ROLE ${role} LOGIN PASSWORD 'p'`);
    const url = new URL(database.server.url);
    [url.username, url.password] = [role, "p"];
    const pool = database.pool({}, url.href);
    const fence = postgresFence(pool, { schema });
    const lacking = fence.enter(undefined, "counter", OLD);
    await expect(lacking).rejects.toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
    await expect(lacking).rejects.toThrow(fence.setupSql);
    await database.server.sql(fence.setupSql);
    await database.server.sql(
      `GRANT USAGE ON SCHEMA ${schema} TO ${role}; GRANT SELECT, INSERT, UPDATE ON ${schema}.fences TO ${role}`,
    );
    await fence.enter(undefined, "counter", OLD);
    await fence.guard(undefined, "counter", OLD, { strict: true });
    await fence.reset(undefined, "counter", 7n);
    expect(await fence.highest(undefined, "counter")).toBe(7n);
  });

  it("refuses what is no client, no schema, no transaction", async () => {
    const pool = database.pool();
    for (const wrong of [undefined, null, 5, {}] as Wrong[]) {
      expect(() => postgresFence(wrong)).toThrow(/^postgresFence\(\) takes a Pool/);
    }
    for (const wrong of [
      { schema: 'a"b' },
      { schema: "Big" },
      { typo: 1 },
      { wait: 0 },
    ] as Wrong[]) {
      expect(() => postgresFence(pool, wrong)).toThrow(InvalidArgumentError);
    }
    const fence = fenceOf();
    const idle = await pool.connect();
    for (const wrong of [null, 5, {}, pool, idle] as Wrong[]) {
      await expect(fence.guard(wrong, "r", OLD)).rejects.toBeInstanceOf(InvalidArgumentError);
    }
    idle.release();
  });

  describe("guardRow", () => {
    const HAT = { item: "hat" };
    beforeEach(async () => {
      await database.server.sql(
        `SET client_min_messages = warning; DROP TABLE IF EXISTS stock;
         CREATE TABLE stock (item text PRIMARY KEY, count integer, fence_token bigint);
         INSERT INTO stock VALUES ('hat', 1)`,
      );
    });

    it("keeps the number in the row: it goes with it, and a stale holder can change the row that is made again", async () => {
      const tx = await begin();
      await guardRow(tx, "stock", HAT, NEW);
      await tx.query("DELETE FROM stock WHERE item = 'hat'");
      await tx.query("INSERT INTO stock VALUES ('hat', 1)");
      expect(await guardRow(tx, "stock", HAT, OLD)).toMatchObject({ fence_token: "1" });
      await tx.query("COMMIT");
    });

    it("enters, changes, tells a missing row from a stale token", async () => {
      const tx = await begin();
      expect(await guardRow(tx, "stock", HAT, OLD)).toEqual({ ...HAT, count: 1, fence_token: "1" });
      expect(await guardRow(tx, "stock", { item: "coat" }, OLD)).toBeNull();
      expect(await guardRow(tx, "stock", HAT, NEW, { set: { count: 0 } })).toMatchObject({
        count: 0,
      });
      await tx.query("COMMIT");
      const stale = await begin();
      const before = fenceRefusals().total;
      const late = guardRow(stale, "public.stock", HAT, OLD, { set: { count: 5 } });
      await expect(late).rejects.toMatchObject({ code: "STALE_TOKEN", token: 1n, highest: 2n });
      await expect(late).rejects.toThrow('token 1 is stale for "public.stock (item');
      expect(fenceRefusals().total - before).toBe(1);
      await stale.query("COMMIT");
      expect(await database.server.sql("SELECT count, fence_token FROM stock")).toBe("0|2");
    });

    it("a stale holder that waited for the new one is refused", async () => {
      const [stale, next] = [await begin(), await begin()];
      await guardRow(next, "stock", HAT, NEW, { set: { count: 0 } });
      const late = guardRow(stale, "stock", HAT, OLD, { set: { count: 5 } });
      const refused = expect(late).rejects.toBeInstanceOf(StaleTokenError);
      await database.waiting(1);
      await next.query("COMMIT");
      await refused;
    });

    it("holders of one time pass, and the column has a name of your own", async () => {
      await database.server.sql('ALTER TABLE stock RENAME COLUMN fence_token TO "Token"');
      const tx = await begin();
      for (const lease of [
        { token: 6n, floor: 5n },
        { token: 5n, floor: 5n },
        { token: 5n, floor: 3n },
      ]) {
        const row = await guardRow<{ Token: string }>(tx, "stock", HAT, lease, { column: "Token" });
        expect(row?.Token).toBe("5");
      }
    });

    it("refuses a key of several rows, and says when PostgreSQL changes nothing", async () => {
      await database.server.sql("INSERT INTO stock VALUES ('coat', 1)");
      const several = await begin();
      await expect(guardRow(several, "stock", { count: 1 }, OLD)).rejects.toBeInstanceOf(
        InvalidArgumentError,
      );
      await several.query("COMMIT");
      expect(await database.server.sql("SELECT count(fence_token) FROM stock")).toBe("0");
      await database.server.sql(
        `CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER refuse BEFORE UPDATE ON stock FOR EACH ROW EXECUTE FUNCTION refuse()`,
      );
      const tx = await begin();
      await expect(guardRow(tx, "stock", HAT, OLD)).rejects.toMatchObject({ code: "UNSUPPORTED" });
    });

    it("refuses a row whose trigger takes the token back", async () => {
      await database.server.sql(
        `CREATE OR REPLACE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql
           AS 'BEGIN NEW.fence_token := OLD.fence_token; RETURN NEW; END';
         CREATE TRIGGER keep BEFORE UPDATE ON stock FOR EACH ROW EXECUTE FUNCTION keep()`,
      );
      const tx = await begin();
      await expect(guardRow(tx, "stock", HAT, OLD, { set: { count: 9 } })).rejects.toMatchObject({
        code: "UNSUPPORTED",
        message: expect.stringContaining("trigger"),
      });
      await tx.query("COMMIT");
      expect(await database.server.sql("SELECT count FROM stock WHERE item = 'hat'")).not.toBe("9");
    });

    it("refuses a column that rounds: a stale token would be equal to a later one", async () => {
      const [older, newer] = [exclusive(2n ** 53n), exclusive(2n ** 53n + 1n)];
      // Fits a column of double precision better than the server's own function.
      await database.server.sql(`CREATE DOMAIN rounding AS real;
        CREATE FUNCTION pg_typeof(double precision) RETURNS regtype LANGUAGE sql AS $$ SELECT 'bigint'::regtype $$`);
      for (const type of ["double precision", "real", "rounding", "numeric(30,5)"]) {
        await database.server.sql(`ALTER TABLE stock ALTER fence_token TYPE ${type}`);
        const isExact = type.startsWith("numeric");
        const tx = await begin();
        const entering = guardRow(tx, "stock", HAT, newer);
        if (isExact) await entering;
        else await expect(entering).rejects.toThrow(/no bigint, but of a type that rounds/);
        await tx.query("COMMIT");
        const late = guardRow(await begin(), "stock", HAT, older, { set: { count: 5 } });
        const code = isExact ? "STALE_TOKEN" : "UNSUPPORTED";
        await expect(late).rejects.toMatchObject({ code });
      }
    });

    it("says what a query must resolve to", async () => {
      const other = { query: async () => [] } as never;
      for (const step of [
        () => guardRow(other, "stock", HAT, OLD),
        () => fenceOf().guard(other, "stock", OLD),
      ]) {
        await expect(step()).rejects.toMatchObject({
          code: "INVALID_ARGUMENT",
          message: expect.stringContaining("rows"),
        });
      }
    });
  });
});
