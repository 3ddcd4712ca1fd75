import { Client, Pool } from "pg";
import { afterAll, beforeAll, beforeEach, expect, onTestFinished, test } from "vitest";
import { connect } from "../../../src/connect.js";
import { examineStore } from "../../../src/examine.js";
import { postgresFence } from "../../../src/fence/postgres.js";
import { idempotent, rateLimiter } from "../../../src/lockfree/index.js";
import { withTransactionLock } from "../../../src/postgres/index.js";
import { setUpPostgres, setupScript } from "../../../src/stores/postgres/setup.js";
import { parseStoreUrl } from "../../../src/stores/registry.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { PostgresServer } from "../../../src/verify/lab/postgres.js";
import { until } from "../../../src/verify/lab/until.js";
import { describeWith } from "../../support/needs.js";

/**
 * A schema with a table, a type, a function and an operator for each one that the server has, all of which fail when
 * they are used. First in the search path, they are found by every name without a schema.
 */
const TRAPS = `CREATE SCHEMA traps; GRANT USAGE ON SCHEMA traps TO PUBLIC;
DO $$ DECLARE f record; BEGIN
  FOR f IN SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v') LOOP
    EXECUTE format('CREATE TABLE traps.%I ()', f.relname);
  END LOOP;
  -- any_in() fails, whatever it is given.
  FOR f IN
    SELECT proname, CASE WHEN proretset THEN 'SETOF ' ELSE '' END || format_type(prorettype, NULL) AS result, (
        SELECT string_agg(CASE WHEN i = pronargs AND provariadic <> 0 THEN 'VARIADIC ' ELSE '' END || format_type(t, NULL), ', ' ORDER BY i)
          FROM unnest(proargtypes) WITH ORDINALITY AS a(t, i)) AS arguments
      FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind <> 'p'
  LOOP
    BEGIN
      EXECUTE format('CREATE FUNCTION traps.%I(%s) RETURNS %s LANGUAGE internal AS ''any_in''', f.proname, f.arguments, f.result);
    EXCEPTION WHEN invalid_function_definition OR datatype_mismatch THEN -- Input and output of pseudo-types.
    END;
  END LOOP;
  FOR f IN SELECT o.*, concat_ws(', ', format_type(nullif(oprleft, 0), NULL), format_type(oprright, NULL)) AS arguments
    FROM pg_operator AS o WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprright <> 0
  LOOP
    EXECUTE format('CREATE FUNCTION traps.operator_%s(%s) RETURNS %s LANGUAGE internal AS ''any_in''',
      f.oid, f.arguments, format_type(f.oprresult, NULL));
    EXECUTE format('CREATE OPERATOR traps.%s (%s RIGHTARG = %s, FUNCTION = traps.operator_%s)', f.oprname,
      CASE WHEN f.oprleft <> 0 THEN format('LEFTARG = %s,', format_type(f.oprleft, NULL)) END, format_type(f.oprright, NULL), f.oid);
  END LOOP;
  FOR f IN SELECT typname FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype = 'b' AND typcategory <> 'A' LOOP
    EXECUTE format('CREATE DOMAIN traps.%I AS pg_catalog.%I CHECK (false)', f.typname, f.typname);
  END LOOP;
END $$`;
const TRAPPED = /cannot accept a value of type any|count is not an aggregate function/;

describeWith(["postgres"], "another user's functions that fit our calls", () => {
  let lab: Lab;
  let server: PostgresServer;
  let owner: string;
  let app: string;

  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.postgres();
    await server.sql(`CREATE ROLE owner LOGIN PASSWORD 'sesame'; CREATE ROLE app LOGIN PASSWORD 'sesame';
      ALTER ROLE owner SET search_path = traps, pg_catalog; ALTER ROLE app SET search_path = traps, pg_catalog;
      CREATE DATABASE trapped OWNER owner;\n\\c trapped\n${TRAPS}`);
    [owner, app] = ["owner", "app"].map(
      (user) => `postgres://${user}:sesame@${server.address}:${server.port}/trapped`,
    ) as [string, string];
  });
  afterAll(() => lab?.close());
  beforeEach(() => setUpPostgres(parseStoreUrl(owner), "app"));

  const openPool = (): Pool => {
    const pool = new Pool({ connectionString: app, max: 4 });
    onTestFinished(() => pool.end());
    return pool;
  };
  const open = async (url: string) => {
    const locks = await connect(url, { ttl: "20s", wait: "10s" });
    onTestFinished(() => locks.close());
    return locks;
  };

  test("every name without a schema falls into a trap", async () => {
    const pool = openPool();
    const trapped = ["SELECT count(*)", "SELECT 1 + 1", "SELECT format('%s', 'a')"];
    for (const text of [...trapped, "SELECT WHERE 'a'::pg_catalog.text = 'b'"])
      await expect(pool.query(text)).rejects.toThrow(TRAPPED);
    await expect(pool.query("SELECT 'a'::text")).rejects.toThrow(/check constraint/);
    await expect(pool.query("SELECT pid FROM pg_locks")).rejects.toThrow(/does not exist/);
  });

  test("leases, tickets and requests of people", async () => {
    const locks = await open(app);
    const lease = await locks.acquire("job");
    expect(await locks.tryAcquire("job")).toBeNull();
    const waiting = locks.acquire("job");
    await until("the ticket", 5_000, async () => (await locks.inspect("job"))?.waiting === 1);
    await lease.renew();
    expect(await lease.release()).toBe("released");
    const next = await waiting;
    const both = await locks.acquireAll(["a", "b"]);
    await both.release();
    expect((await locks.list({ prefix: "j" })).map(({ name }) => name)).toEqual(["job"]);
    await locks.forceRelease("job", { why: "test" });
    await expect(next.renew()).rejects.toThrow(/released by force/);
    const semaphore = locks.semaphore("gpu", { permits: 2 });
    const permit = await semaphore.acquire();
    await semaphore.resize(3);
    await permit.release();
    expect(await idempotent(locks, "charge", { keep: "1m" }, async () => 1)).toBe(1);
    const limiter = rateLimiter(locks, "mail", { limit: 1, per: "1m" });
    expect((await limiter.take(1)).allowed).toBe(true);
  });

  test("locks of sessions", async () => {
    const locks = await open(`${app}?mode=session`);
    const lease = await locks.acquire("job", { ttl: "40s" });
    const readers = await Promise.all(
      ["r", "r"].map((name) => locks.acquire(name, { mode: "shared" })),
    );
    await lease.renew();
    expect((await locks.list({ prefix: "" })).length).toBe(2);
    // A claim that fails after it has its lock: the lock is released, and the session goes on.
    const asOwner = async (text: string) => {
      const client = new Client({ connectionString: owner });
      await client.connect();
      await client.query(text).finally(() => client.end());
    };
    await asOwner("REVOKE INSERT ON holdfast.session_locks FROM app");
    await expect(locks.acquire("refused")).rejects.toThrow(/lacks a right/);
    await asOwner("GRANT INSERT ON holdfast.session_locks TO app");
    for (const one of [lease, ...readers]) expect(await one.release()).toBe("released");
  });

  test("fences, and locks of transactions", async () => {
    const pool = openPool();
    await server.sql("\\c trapped\nGRANT CREATE ON SCHEMA holdfast TO app");
    const fence = postgresFence(pool);
    const lease = { token: 7n, floor: 7n };
    await fence.enter(undefined, "r", lease);
    await withTransactionLock(pool, "r", async (tx) => {
      await fence.guard(tx, "r", lease, { strict: true });
      await expect(withTransactionLock(pool, "r", { wait: 50 }, () => {})).rejects.toMatchObject({
        code: "ACQUIRE_TIMEOUT",
      });
      const signal = AbortSignal.timeout(50);
      await expect(withTransactionLock(pool, "r", { signal }, () => {})).rejects.toMatchObject({
        name: "TimeoutError",
      });
      // The server no longer waits for the lock on behalf of that call.
      const WAITING = "\\c trapped\nSELECT count(*) FROM pg_locks WHERE NOT granted";
      await until("the statement is cancelled", 5_000, async () => {
        return (await server.sql(WAITING)) === "0";
      });
    });
    await expect(fence.guard(undefined, "r", { token: 6n, floor: 6n })).rejects.toMatchObject({
      code: "STALE_TOKEN",
    });
    expect(await fence.list()).toMatchObject([{ resource: "r", highest: 7n }]);
    await fence.reset(undefined, "r", 5n);
    expect(await fence.highest(undefined, "r")).toBe(5n);
  });

  test.each(["", "?mode=session"])("the doctor of the URL with %j", async (mode) => {
    const findings = await examineStore(`${app}${mode}`);
    expect(findings.filter(({ level }) => level !== "ok")).toEqual([]);
  });

  test("the set-up, and what it tells a user without rights", async () => {
    await server.sql("\\c trapped\nDROP SCHEMA holdfast CASCADE");
    const right = 'GRANT CREATE ON DATABASE "trapped" TO "app"';
    await expect(connect(app)).rejects.toThrow(right);
    const client = new Client({ connectionString: owner });
    await client.connect();
    await client
      .query(setupScript(parseStoreUrl(owner), "app").replaceAll(/^--.*$/gm, ""))
      .finally(() => client.end());
    const locks = await open(app);
    await (await locks.acquire("job")).release();
  });
});
