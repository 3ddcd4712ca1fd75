import { setTimeout as pause } from "node:timers/promises";
import { Client, Pool } from "pg";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import type { Claim } from "../../../src/core/store.js";
import { postgresFence } from "../../../src/fence/postgres.js";
import { connect, createLocks, type Locks } from "../../../src/index.js";
import {
  type PostgresStore,
  postgresSessionStore,
  postgresStore,
} from "../../../src/stores/postgres/index.js";
import { functionName } from "../../../src/stores/postgres/schema.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { PostgresServer } from "../../../src/verify/lab/postgres.js";
import { describeWith } from "../../support/needs.js";
import { byPool } from "../../support/postgres.js";
import { claimOf } from "../../support/redis.js";
import { until } from "../../support/worker.js";

describeWith(["postgres"], "locks in PostgreSQL", () => {
  let lab: Lab;
  let server: PostgresServer;
  let admin: Client;
  const closing: (() => Promise<unknown>)[] = [];
  let schemas = 0;
  let schema = "";

  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.postgres({ config: { max_connections: "300" } });
    admin = new Client(server.url);
    await admin.connect();
  });
  afterAll(async () => {
    await admin?.end();
    await lab?.close();
  });
  afterEach(async () => {
    for (const close of closing.splice(0).reverse()) await close();
  });
  const freshSchema = (): string => {
    schema = `test_${++schemas}`;
    return schema;
  };
  const open = async (
    options: Parameters<typeof byPool>[1] = {},
    pool: Parameters<typeof byPool>[2] = {},
  ): Promise<{ locks: Locks; store: PostgresStore }> => {
    const store = await byPool(server.url, { schema, ...options }, pool);
    const locks = createLocks(store, { ttl: 2_000 });
    closing.push(() => locks.close());
    return { locks, store };
  };
  /** The first value of the last statement, by a connection that stays: psql would be a process each time. */
  const sql = async (text: string): Promise<string> => {
    const [row] = [await admin.query(text)].flat().at(-1)!.rows;
    return String(Object.values(row ?? {})[0] ?? "");
  };

  test("an isolation level above read committed is refused, and nothing is granted", async () => {
    freshSchema();
    await open();
    for (const level of ["repeatable read", "serializable"]) {
      const options = `-c default_transaction_isolation=${level.replace(" ", "\\ ")}`;
      const { locks } = await open({}, { options });
      await expect(locks.acquire("name")).rejects.toMatchObject({
        code: "UNSUPPORTED",
        message: expect.stringContaining(level),
      });
    }
    expect(await sql(`SELECT count(*) FROM ${schema}.names`)).toBe("0");
  });

  test("durableRelease, as an option of the store or in its URL, writes releases to the disk", async () => {
    freshSchema();
    await open();
    await sql(`CREATE TABLE ${schema}.seen (setting text);
      CREATE FUNCTION ${schema}.look() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN INSERT INTO ${schema}.seen VALUES (current_setting(''synchronous_commit'')); RETURN NULL; END';
      CREATE TRIGGER look AFTER UPDATE ON ${schema}.names FOR EACH ROW
        WHEN ((NEW.held).expires = 0) EXECUTE FUNCTION ${schema}.look()`);
    const url = `${server.url}?schema=${schema}`;
    const released = async (locks: Locks): Promise<string> => {
      await sql(`TRUNCATE ${schema}.seen`);
      await (await locks.acquire("name")).release();
      await locks.close();
      return sql(`SELECT string_agg(setting, ',') FROM ${schema}.seen`);
    };
    expect(await released(await connect(url))).toBe("off");
    expect(await released(await connect(`${url}&durableRelease=1`))).toBe("on");
    expect(await released((await open({ durableRelease: true })).locks)).toBe("on");
  });

  test("a client that is inside a transaction is refused", async () => {
    freshSchema();
    await open();
    const client = new Client(server.url);
    await client.connect();
    closing.push(() => client.end());
    const locks = createLocks(postgresStore(client, { schema }), { ttl: 2_000 });
    await (await locks.acquire("before")).release();
    await client.query("BEGIN");
    await expect(locks.acquire("name")).rejects.toMatchObject({
      code: "UNSUPPORTED",
      message: expect.stringContaining("inside a transaction"),
    });
    await client.query("ROLLBACK");
    expect(await locks.inspect("name")).toBeNull();
    await locks.close();
  });

  test("a client's open transaction keeps its settings, whether pg tells its state or not", async () => {
    freshSchema();
    await open();
    for (const isOld of [false, true]) {
      const client = new Client(server.url);
      // Versions of pg before 8.21 do not have it.
      if (isOld) Object.assign(client, { getTransactionStatus: undefined });
      await client.connect();
      closing.push(() => client.end());
      const locks = createLocks(postgresStore(client, { schema }), { ttl: 2_000 });
      await (await locks.acquire("before")).release();
      await client.query("BEGIN");
      await expect(locks.acquire("name")).rejects.toMatchObject({ code: "UNSUPPORTED" });
      await locks.close();
      const { rows } = await client.query("SHOW synchronous_commit");
      expect(rows).toEqual([{ synchronous_commit: "on" }]);
      await client.query("COMMIT");
      expect(await sql(`SELECT count(*) FROM ${schema}.names WHERE name LIKE '%:name'`)).toBe("0");
    }
  });

  test("a single client serves many requests at once, one after the other", async () => {
    freshSchema();
    const client = new Client(server.url);
    await client.connect();
    closing.push(() => client.end());
    const locks = createLocks(postgresStore(client, { schema }), { ttl: 2_000 });
    const leases = await Promise.all(
      Array.from({ length: 20 }, (_, i) => locks.acquire(`name ${i}`)),
    );
    expect(leases.map(({ state }) => state)).toEqual(leases.map(() => "held"));
    await Promise.all(leases.map((lease) => lease.release()));
    await locks.close();
  });

  test("a schema that is no plain identifier is refused", () => {
    const pool = new Pool({ connectionString: server.url });
    for (const bad of ["", "a-b", 'x"; DROP TABLE y', "Ä", "a".repeat(64), 7]) {
      expect(() => postgresStore(pool, { schema: bad as string })).toThrow(/schema/);
    }
    expect(() => postgresStore("postgres://host" as never)).toThrow(/Pool/);
  });

  test("many processes may make the schema at once", async () => {
    freshSchema();
    const stores = await Promise.all(
      Array.from({ length: 12 }, () => byPool(server.url, { schema }, { max: 1 })),
    );
    expect(stores).toHaveLength(12);
    await Promise.all(stores.map((store) => store.close()));
  });

  test("tables of another format are refused", async () => {
    freshSchema();
    await open();
    await sql(
      `CREATE OR REPLACE FUNCTION ${schema}.format_version() RETURNS integer LANGUAGE sql AS 'SELECT 99'`,
    );
    await expect(byPool(server.url, { schema })).rejects.toMatchObject({
      code: "UNSUPPORTED",
      message: expect.stringContaining("format 99"),
    });
  });

  test("tokens rise in the order of the grants, however long a step takes after it has begun", async () => {
    freshSchema();
    await open();
    await sql(`CREATE FUNCTION ${schema}.dawdle() RETURNS trigger LANGUAGE plpgsql AS
      'BEGIN PERFORM pg_sleep(random() * 0.01); RETURN NEW; END';
      CREATE TRIGGER dawdle BEFORE UPDATE ON ${schema}.names FOR EACH ROW EXECUTE FUNCTION ${schema}.dawdle()`);
    const tokens: bigint[] = [];
    const clients = await Promise.all(Array.from({ length: 5 }, () => open({}, { max: 2 })));
    await Promise.all(
      clients.map(async ({ locks }) => {
        for (let i = 0; i < 8; i++) {
          await locks.withLock("name", async ({ token }) => void tokens.push(token));
          const tried = await locks.tryAcquire("name");
          if (tried === null) continue;
          tokens.push(tried.token);
          await tried.release();
        }
      }),
    );
    expect(tokens.length).toBeGreaterThanOrEqual(40);
    expect(tokens).toEqual([...tokens].sort((a, b) => (a < b ? -1 : 1)));
  });

  test("a token rises although its step has read the clock before another was granted; that of a naive insert falls", async () => {
    freshSchema();
    await open();
    const key = 4_711;
    // After it has read the clock, a client named "slow" dawdles until the advisory lock is free.
    await sql(`CREATE OR REPLACE FUNCTION ${schema}.${functionName("now_us")}() RETURNS bigint LANGUAGE plpgsql AS
      'DECLARE t bigint := extract(epoch FROM clock_timestamp()) * 1000000;
       BEGIN
         WHILE current_setting(''application_name'') = ''slow'' AND NOT pg_try_advisory_xact_lock_shared(${key}) LOOP
           PERFORM pg_sleep(0.01);
         END LOOP;
         RETURN t;
       END';
      CREATE TABLE ${schema}.naive (name text PRIMARY KEY, holder text, token bigint)`);
    type Speed = "slow" | "fast";
    /** Claims a name that is free, and releases it. */
    type ClaimAndRelease = (client: Speed) => Promise<bigint>;

    /** The tokens in the order of the grants. */
    const drive = async (claim: ClaimAndRelease): Promise<bigint[]> => {
      const tokens: bigint[] = [];
      await sql(`SELECT pg_advisory_lock(${key})`);
      const slow = claim("slow");
      await until("the slow claim has read the clock", async () => {
        const dawdling = "application_name = 'slow' AND wait_event = 'PgSleep'";
        return (await sql(`SELECT count(*) FROM pg_stat_activity WHERE ${dawdling}`)) === "1";
      });
      tokens.push(await claim("fast"));
      await sql(`SELECT pg_advisory_unlock(${key})`);
      tokens.push(await slow);
      return tokens;
    };

    const pools = {} as Record<Speed, Pool>;
    const locks = {} as Record<Speed, Locks>;
    for (const client of ["slow", "fast"] as const) {
      const application = { application_name: client };
      pools[client] = new Pool({ connectionString: server.url, ...application });
      closing.push(() => pools[client].end());
      ({ locks: locks[client] } = await open({}, application));
    }
    const byStore = await drive((client) =>
      locks[client].withLock("name", { ttl: "1m" }, async ({ token }) => token),
    );
    expect(byStore[1]).toBeGreaterThan(byStore[0]!);

    // The insert that many write: it draws the token, and then waits for the row.
    const byInsert = await drive(async (client) => {
      const { rows } = await pools[client].query(
        `INSERT INTO ${schema}.naive VALUES ('name', $1, ${schema}.${functionName("now_us")}()) ON CONFLICT (name)
          DO UPDATE SET holder = excluded.holder, token = excluded.token WHERE naive.holder IS NULL RETURNING token`,
        [client],
      );
      await pools[client].query(`UPDATE ${schema}.naive SET holder = NULL`);
      return BigInt(rows[0].token);
    });
    expect(byInsert[1]).toBeLessThan(byInsert[0]!);
  });

  test("a token beyond 2^53 is refused, and the one before it is granted", async () => {
    freshSchema();
    const { locks } = await open();
    const tooFar = {
      code: "UNSUPPORTED",
      message: expect.stringMatching(/beyond 2\^53, because the clock of \S+ at \S+ is wrong/),
    };
    const setLast = (token: number): Promise<string> =>
      sql(`UPDATE ${schema}.names SET last_token = ${token}`);
    await (await locks.acquire("name")).release();
    await setLast(Number.MAX_SAFE_INTEGER - 2);
    const last = await locks.acquire("name");
    expect(last.token).toBe(BigInt(Number.MAX_SAFE_INTEGER - 1));
    await last.release();
    await setLast(Number.MAX_SAFE_INTEGER);
    await expect(locks.acquire("name")).rejects.toMatchObject(tooFar);
    await expect(locks.acquireAll(["name", "other"])).rejects.toMatchObject(tooFar);
    // The other name was granted nothing, either.
    expect(await locks.inspect("other")).toBeNull();
  });

  test("a claim of a name that is held changes nothing, and locks nothing", async () => {
    freshSchema();
    const { store } = await open();
    await store.claim(claimOf("held"), () => {});
    await store.claim(claimOf("held", { queue: true }), () => {});
    const rows = `SELECT string_agg(concat(ctid, xmin, xmax), ',') FROM`;
    const state = async (): Promise<string[]> =>
      Promise.all(["names", "claims"].map((table) => sql(`${rows} ${schema}.${table}`)));
    const before = await state();
    for (const many of [1, 2, 64]) {
      const claims = Array.from({ length: many }, () => store.claim(claimOf("held"), () => {}));
      for (const answer of await Promise.all(claims))
        expect(answer).toMatchObject({ kind: "busy" });
    }
    expect(await state()).toEqual(before);

    // In one turn, a claim comes after the release that was requested before it, and busy names change nothing.
    const first = claimOf("given back");
    await store.claim(first, () => {});
    const release = store.release([{ name: "given back", grantId: first.grantId }]);
    const next = store.claim(claimOf("given back"), () => {});
    const free = store.claim(claimOf("free"), () => {});
    const busy = store.claim(claimOf("held"), () => {});
    expect((await release)[0]).toBe("released");
    expect(await Promise.all([next, free, busy])).toMatchObject(
      ["granted", "granted", "busy"].map((kind) => ({ kind })),
    );
    expect((await state())[1]).toBe(before[1]);
  });

  test("acquires, renewals and releases are HOT updates", async () => {
    freshSchema();
    const { locks } = await open();
    const names = Array.from({ length: 8 }, (_, i) => `name ${i}`);
    for (let i = 0; i < 50; i++) {
      const leases = await Promise.all(names.map((name) => locks.acquire(name)));
      await Promise.all(leases.map((lease) => lease.renew()));
      await Promise.all(leases.map((lease) => lease.release()));
    }
    // All but the first holder of a name are rows of claims.
    const readers = await Promise.all(
      [...names, ...names, ...names].map((name) => locks.acquire(name, { mode: "shared" })),
    );
    for (let i = 0; i < 50; i++) await Promise.all(readers.map((reader) => reader.renew()));
    // A connection that ends has reported its counts.
    await locks.close();
    for (const [table, updates] of [
      ["names", 1_200],
      ["claims", 800],
    ] as const) {
      const stats = (expression: string): Promise<string> =>
        sql(`SELECT ${expression} FROM pg_stat_user_tables
          WHERE schemaname = '${schema}' AND relname = '${table}'`);
      await expect.poll(() => stats(`n_tup_upd >= ${updates}`), { timeout: 10_000 }).toBe("true");
      expect(Number(await stats("n_tup_hot_upd::float / n_tup_upd")), table).toBeGreaterThan(0.95);
    }
  });

  test("tokens rise above those of names whose rows were deleted, also when the clock is set back", async () => {
    freshSchema();
    const { locks } = await open();
    const { token } = await locks.withLock("name", async (lease) => lease);
    await sql(`UPDATE ${schema}.names SET last_token = last_token + 3600000000`);
    await sql(`SELECT ${schema}.${functionName("delete_free_names")}(1000, -1000000, 1000)`);
    expect(await sql(`SELECT count(*) FROM ${schema}.names`)).toBe("0");
    for (const name of ["name", "another"]) {
      const lease = await locks.acquire(name);
      expect(lease.token).toBeGreaterThan(token + 3_600_000_000n);
      await lease.release();
    }
    // Several names at once, whose rows are all made anew.
    await sql(`SELECT ${schema}.${functionName("delete_free_names")}(1000, -1000000, 1000)`);
    const leases = await Promise.all(["x", "y", "z"].map((name) => locks.acquire(name)));
    for (const lease of leases) expect(lease.token).toBeGreaterThan(token + 3_600_000_000n);
  });

  test("a holder that died keeps the name for one more ttl at most when the clock was set back", async () => {
    freshSchema();
    const { store } = await open();
    const claim = (more: Parameters<typeof claimOf>[1]) =>
      store.claim(claimOf("name", { ttlMs: 300, ...more }), () => {});
    const shared = { permits: 1 };
    // The first is in the row of the name, the second has a row of its own.
    for (const more of [shared, shared])
      expect(await claim(more)).toMatchObject({ kind: "granted" });
    const closing = claimOf("closed", { ttlMs: 300, atLeastMs: 300 });
    await store.claim(closing, () => {});
    await store.release([{ name: "closed", grantId: closing.grantId }]);
    // As if the clock had been an hour ahead until now.
    const hour = "3600000000";
    await sql(`UPDATE ${schema}.names SET held.expires = (held).expires + ${hour},
        held.closed = CASE (held).closed WHEN 0 THEN 0 ELSE (held).closed + ${hour} END;
      UPDATE ${schema}.claims SET expires = expires + ${hour}`);
    expect(await claim({})).toMatchObject({ kind: "busy" });
    expect(await store.claim(claimOf("closed"), () => {})).toMatchObject({ kind: "busy" });
    await pause(400);
    expect(await claim({})).toMatchObject({ kind: "granted" });
    expect(await store.claim(claimOf("closed"), () => {})).toMatchObject({ kind: "granted" });
  });

  test("rows of names that are held, waited for or just released stay", async () => {
    freshSchema();
    const { locks } = await open();
    await locks.acquire("held");
    await (await locks.acquire("released")).release();
    await sql(`SELECT ${schema}.${functionName("delete_free_names")}(1000, 60000000, 1000)`);
    expect(await sql(`SELECT string_agg(name, ',' ORDER BY name) FROM ${schema}.names`)).toBe(
      "default:held,default:released",
    );
  });

  test("claims that have ended do not keep the row of a name that nobody uses again", async () => {
    freshSchema();
    const { store } = await open();
    await store.claim(claimOf("abandoned", { ttlMs: 50 }), () => {});
    await store.claim(claimOf("abandoned", { ttlMs: 50, queue: true }), () => {});
    await store.claim(claimOf("revoked"), () => {});
    await store.revoke("revoked", { holder: "operator", why: "test" });
    await store.claim(claimOf("waited for", { ttlMs: 50 }), () => {});
    await store.claim(claimOf("waited for", { queue: true }), () => {});
    await pause(100);
    const names = async (freeForUs: number): Promise<string> => {
      await sql(`SELECT ${schema}.${functionName("delete_free_names")}(1000, ${freeForUs}, 1000)`);
      return sql(`SELECT string_agg(name, ',' ORDER BY name) FROM ${schema}.names`);
    };
    expect(await names(0)).toBe("revoked,waited for");
    // As if more than an hour had passed.
    expect(await names(-3_700_000_000)).toBe("");
    expect(await sql(`SELECT count(*) FROM ${schema}.claims`)).toBe("0");
  });

  test("calls that delete rows go on where the last one ended, whoever made it", async () => {
    freshSchema();
    await open();
    await sql(`INSERT INTO ${schema}.names (name, freed)
      SELECT 'name ' || i, CASE WHEN i < 5 THEN 9e15::bigint ELSE 0 END FROM generate_series(1, 9) AS i`);
    const counts: string[] = [];
    for (let i = 0; i < 3; i++) {
      await sql(`SELECT ${schema}.${functionName("delete_free_names")}(4, 0, 1000)`);
      counts.push(await sql(`SELECT count(*) FROM ${schema}.names`));
    }
    expect(counts).toEqual(["9", "5", "4"]);
  });

  test("processes that release once delete rows in their turn", { timeout: 60_000 }, async () => {
    freshSchema();
    await open();
    await sql(`INSERT INTO ${schema}.names (name) VALUES ('free')`);
    const pool = new Pool({ connectionString: server.url });
    closing.push(() => pool.end());
    const isFreeThere = async (): Promise<boolean> =>
      (await sql(`SELECT count(*) FROM ${schema}.names WHERE name = 'free'`)) === "1";
    // One in 256 does it.
    for (let i = 0; i < 60 && (await isFreeThere()); i++) {
      const stores = Array.from({ length: 50 }, () => postgresStore(pool, { schema }));
      const releases = stores.map((store) => store.release([{ name: "name", grantId: "none" }]));
      await Promise.all(releases);
      await Promise.all(stores.map((store) => store.close()));
    }
    expect(await isFreeThere()).toBe(false);
  });

  test("a store that is closed has ended its deletion of rows", async () => {
    freshSchema();
    const store = await byPool(server.url, { schema });
    await sql(`INSERT INTO ${schema}.names (name) VALUES ('free')`);
    const release = { name: "name", grantId: "none" };
    await store.release(Array.from({ length: 256 }, () => release));
    await store.close();
    expect(await sql(`SELECT count(*) FROM ${schema}.names WHERE name = 'free'`)).toBe("0");
  });

  test("names that nobody uses again leave no rows", { timeout: 60_000 }, async () => {
    freshSchema();
    const { locks } = await open();
    await sql(`CREATE OR REPLACE FUNCTION ${schema}.${functionName("now_us")}() RETURNS bigint LANGUAGE sql VOLATILE AS
      'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
        + coalesce(current_setting(''test.ahead'', true), ''0'')::bigint'`);
    for (let i = 0; i < 300; i += 50) {
      const names = Array.from({ length: 50 }, (_, k) => `order ${i + k}`);
      await Promise.all(names.map(async (name) => (await locks.acquire(name)).release()));
    }
    expect(Number(await sql(`SELECT count(*) FROM ${schema}.names`))).toBe(300);
    await sql(`ALTER ROLE postgres SET test.ahead = '120000000'`);
    try {
      const later = await open();
      for (let i = 0; i < 300; i += 50) {
        const names = Array.from({ length: 50 }, () => "again");
        for (const name of names) await (await later.locks.acquire(name)).release();
      }
      await expect
        .poll(() => sql(`SELECT count(*) FROM ${schema}.names`), { timeout: 10_000 })
        .toBe("1");
    } finally {
      await sql("ALTER ROLE postgres RESET test.ahead");
    }
  });

  test("objects of others that come first in the search path are not used", async () => {
    freshSchema();
    await open();
    await sql(`DROP SCHEMA IF EXISTS evil CASCADE; CREATE SCHEMA evil;
      CREATE FUNCTION evil.${functionName("now_us")}() RETURNS bigint LANGUAGE sql AS 'SELECT 9000000000000000';
      CREATE FUNCTION evil.${functionName("next_token")}(bigint, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
      CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT 'epoch'::timestamptz $$;
      CREATE TABLE evil.names (name text);`);
    const { locks } = await open({}, { options: "-c search_path=evil,pg_catalog" });
    const lease = await locks.acquire("name");
    expect(Math.abs(Number(lease.token) / 1_000 - Date.now())).toBeLessThan(60_000);
    await lease.release();
  });

  test("rows that row-level security hides are an error, and no endless loop", async () => {
    freshSchema();
    const { store } = await open();
    await store.claim(claimOf("name"), () => {});
    await sql(`CREATE ROLE partial LOGIN PASSWORD 'partial'; GRANT USAGE ON SCHEMA ${schema} TO partial;
      GRANT ALL ON ALL TABLES IN SCHEMA ${schema} TO partial;
      ALTER TABLE ${schema}.names ENABLE ROW LEVEL SECURITY;
      CREATE POLICY blind ON ${schema}.names FOR INSERT TO partial WITH CHECK (true)`);
    const other = await byPool(server.url.replace(/postgres:\w+@/, "partial:partial@"), { schema });
    closing.push(() => other.close());
    const hidden = [claimOf("name"), claimOf("name"), claimOf("", { names: ["name", "other"] })];
    for (const claims of [hidden.slice(0, 1), hidden.slice(2), hidden]) {
      const answers = await Promise.allSettled(claims.map((one) => other.claim(one, () => {})));
      for (const answer of answers) {
        expect(answer).toMatchObject({
          reason: { code: "UNSUPPORTED", message: expect.stringContaining("row-level security") },
        });
      }
    }
  });

  test("a program whose parsers leave all values as text does no harm", async () => {
    freshSchema();
    const getTypeParser = () => (text: string) => text;
    const { store } = await open({}, { types: { getTypeParser } });
    await store.claim(claimOf("name", { permits: 2, limit: 5 }), () => {});
    expect(await store.resize("name", 6)).toBe(5);
    expect(await store.inspect("name")).toMatchObject({ limit: 6, holders: [{ permits: 2 }] });
    expect(await store.list("", 10)).toHaveLength(1);
    expect(await store.revoke("name", { holder: "operator", why: "test" })).toHaveLength(1);
  });

  /** A claim that waits for the only connection of its pool, which is taken. */
  const claimWithoutConnection = async () => {
    freshSchema();
    const pool = new Pool({ connectionString: server.url, max: 1 });
    closing.push(() => pool.end());
    const store = postgresStore(pool, { schema });
    await store.setUp();
    const taken = await pool.connect();
    return { pool, store, taken, claim: store.claim(claimOf("name", { ttlMs: 1_000 }), () => {}) };
  };

  test("the error about a pool without a free connection has the name of its class", async () => {
    const { taken, claim } = await claimWithoutConnection();
    await expect(claim).rejects.toMatchObject({
      name: "StoreUnavailableError",
      message: expect.stringContaining("no connection within 500 ms"),
    });
    taken.release();
  });

  test("a statement whose timeout ends before its process gets the connection is not sent", async () => {
    const { pool, store, taken, claim } = await claimWithoutConnection();
    const refused = expect(claim).rejects.toThrow("no connection within 500 ms");
    await expect.poll(() => pool.waitingCount).toBe(1);
    taken.release();
    const blockedUntilMs = performance.now() + 600;
    while (performance.now() < blockedUntilMs);
    await refused;
    // It is the same connection: nothing was sent on it.
    expect([pool.totalCount, await store.inspect("name")]).toEqual([1, null]);
  });

  test("connections that the server ends while they are idle do not end the process", async () => {
    freshSchema();
    const { locks } = await open();
    await (await locks.acquire("name")).release();
    await sql(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'",
    );
    await pause(100);
    await (await locks.acquire("name", { wait: 5_000 })).release();
  });

  test.each(["Pool", "Client"] as const)(
    "all stores and fences on a %s have one listener for its errors, which goes with the last store",
    async (kind) => {
      freshSchema();
      const warnings: string[] = [];
      const warned = ({ name, message }: Error): void => void warnings.push(`${name}: ${message}`);
      process.on("warning", warned);
      closing.push(async () => process.off("warning", warned));
      const client =
        kind === "Pool" ? new Pool({ connectionString: server.url }) : new Client(server.url);
      if (client instanceof Client) await client.connect();
      closing.push(() => client.end());
      const listeners = (): number => client.listenerCount("error");
      const before = listeners();
      const stores = Array.from({ length: 15 }, () => postgresStore(client, { schema }));
      const [first, second] = [0, 1].map(() => createLocks(stores[0]!));
      await (await first!.acquire("name")).release();
      expect(listeners()).toBe(before + 1);
      // The process listens on behalf of the other one.
      await first!.close();
      for (const store of stores.slice(1)) await store.close();
      expect(listeners()).toBe(before + 1);
      await (await second!.acquire("name")).release();
      await second!.close();
      expect(listeners()).toBe(before);

      const session = createLocks(postgresSessionStore(client, { schema }));
      await (await session.acquire("name")).release();
      expect(listeners()).toBe(before + 1);
      await session.close();
      expect(listeners()).toBe(before);
      // A store that is used again after it was closed.
      await stores[0]!.inspect("name");
      expect(listeners()).toBe(before + 1);
      await stores[0]!.close();
      expect(listeners()).toBe(before);

      for (let i = 0; i < 15; i++) await postgresFence(client, { schema }).highest(undefined, "r");
      expect(listeners()).toBe(before + 1);
      await pause(10);
      expect(warnings).toEqual([]);
    },
  );

  test("a pool that is closed with its store may still report an error: its connections close later", async () => {
    freshSchema();
    const pool = new Pool({ connectionString: server.url });
    const locks = createLocks(postgresStore(pool, { schema, closeClient: true }));
    await (await locks.acquire("name")).release();
    await locks.close();
    expect(pool.emit("error", new Error("terminating connection"))).toBe(true);
  });

  test("a step that makes the row of a name waits for no row that is there", async () => {
    freshSchema();
    await open();
    // A row without a token, and the token of a deleted row: a row that is made now begins above that.
    await sql(`UPDATE ${schema}.deleted_names SET last_token = 7`);
    await sql(`INSERT INTO ${schema}.names (name) VALUES ('there')`);
    const other = new Client(server.url);
    await other.connect();
    closing.push(() => other.end());
    await other.query(`BEGIN; SELECT FROM ${schema}.names WHERE name = 'there' FOR UPDATE`);
    await sql(`BEGIN; SET LOCAL search_path = ${schema}; SET LOCAL lock_timeout = 500;
      SELECT ${functionName("make_names")}(ARRAY['there', 'made']); COMMIT`);
    expect(await sql(`SELECT last_token FROM ${schema}.names WHERE name = 'made'`)).toBe("7");
  });

  test.each([
    [
      "made",
      "INSERT INTO names (name) VALUES ('a')",
      "INSERT INTO names (name) VALUES ('b'), ('c')",
    ],
    [
      "locked",
      "SELECT FROM names WHERE name = 'a' FOR UPDATE",
      "SELECT FROM names WHERE name > 'a' FOR UPDATE NOWAIT",
    ],
  ])(
    "names are %s in order: a step that waits for the first has none of the others",
    async (what, takeFirst, takeOthers) => {
      freshSchema();
      const { store } = await open();
      if (what === "locked") await sql(`INSERT INTO ${schema}.names VALUES ('c'), ('a'), ('b')`);
      const connect = async (): Promise<Client> => {
        const client = new Client(server.url);
        await client.connect();
        closing.push(() => client.end());
        await client.query(`SET search_path = ${schema}; BEGIN`);
        return client;
      };
      const [first, others] = [await connect(), await connect()];
      await first.query(takeFirst);
      const claiming = store.claim(claimOf("", { names: ["c", "b", "a"] }), () => {});
      await until("the claim waits", async () => {
        const waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'transactionid'";
        return (await sql(waiting)) === "1";
      });
      await others.query(`SET LOCAL lock_timeout = 1000; ${takeOthers}`);
      for (const client of [first, others]) await client.query("ROLLBACK");
      expect(await claiming).toMatchObject({ kind: "granted" });
    },
  );

  test("a claim whose name is deleted while it waits for another one has none of the others when it makes it again", async () => {
    freshSchema();
    const stores = [await byPool(server.url, { schema }), await byPool(server.url, { schema })];
    closing.push(() => Promise.all(stores.map((store) => store.close())));
    await sql(`INSERT INTO ${schema}.names VALUES ('a'), ('b')`);
    const other = new Client(server.url);
    await other.connect();
    closing.push(() => other.end());
    await other.query(`BEGIN; SELECT FROM ${schema}.names WHERE name = 'a' FOR UPDATE`);
    const waiting = (many: number): Promise<void> =>
      until("the claims wait", async () => {
        const text = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted";
        return (await sql(text)) === String(many);
      });
    const claim = (store: PostgresStore) =>
      store.claim(claimOf("", { names: ["a", "b"] }), () => {});
    const first = claim(stores[0]!);
    await waiting(1);
    await sql(`DELETE FROM ${schema}.names WHERE name = 'b'`);
    // This one makes the name, and waits for "a" behind the first claim, which will look for the name.
    const second = claim(stores[1]!);
    await waiting(2);
    await other.query("COMMIT");
    const kinds = (await Promise.all([first, second])).map(({ kind }) => kind);
    expect(kinds.sort()).toEqual(["busy", "granted"]);
  });

  test("overlapping claims and batches of many clients do not deadlock", {
    timeout: 60_000,
  }, async () => {
    freshSchema();
    await open();
    const deadlocks = (): Promise<string> =>
      sql("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'");
    const before = await deadlocks();
    // The server looks for a deadlock before lock_timeout ends it unseen.
    const options = "-c deadlock_timeout=5ms -c application_name=overlap";
    const stores = await Promise.all(
      Array.from({ length: 8 }, () => byPool(server.url, { schema }, { max: 3, options })),
    );
    const granted: string[] = [];
    const claim = async (store: PostgresStore, claims: readonly Claim[]): Promise<Claim[]> => {
      const answers = await Promise.all(claims.map((one) => store.claim(one, () => {})));
      const own = claims.filter((_, i) => answers[i]!.kind === "granted");
      granted.push(...own.map(({ grantId }) => grantId));
      return own;
    };
    const places = (claims: readonly Claim[]) =>
      claims.flatMap(({ names, grantId }) => names.map((name) => ({ name, grantId })));
    for (let turn = 0; turn < 20; turn++) {
      await Promise.all(
        stores.map(async (store, c) => {
          // In every other turn all clients make the rows at once. Each has an order of its own.
          const names = Array.from(
            { length: 24 },
            (_, k) => `name ${turn >> 1} ${(k * 7 + c * 5 + turn) % 24}`,
          );
          // A claim of all names waits for their locks, and a batch of claims skips names that are locked.
          const all = claimOf("", { names });
          const each = names.map((name) => claimOf(name));
          const own = await claim(store, c % 2 === 0 ? [all] : each);
          const [, more] = await Promise.all([
            store.renew(places(own).map((place) => ({ ...place, seq: 2, ttlMs: 60_000 }))),
            claim(store, [claimOf("", { names: names.toReversed() })]),
          ]);
          await store.release(places([...own, ...more]));
        }),
      );
    }
    expect(granted.length).toBeGreaterThan(20);
    // A connection that ends has reported its deadlocks.
    await Promise.all(stores.map((store) => store.close()));
    const connected = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'overlap'";
    await expect.poll(() => sql(connected), { timeout: 10_000 }).toBe("0");
    expect(await deadlocks()).toBe(before);
  });
});
