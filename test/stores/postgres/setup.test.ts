import { createHash, randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { Client, Pool } from "pg";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { connect } from "../../../src/connect.js";
import { LOCK_LIMIT } from "../../../src/core/store.js";
import { postgresFence } from "../../../src/fence/postgres.js";
import {
  DEFAULT_SCHEMA,
  FORMAT,
  functionName,
  setupSql,
} from "../../../src/stores/postgres/schema.js";
import { setUpPostgres, setupScript } from "../../../src/stores/postgres/setup.js";
import { parseStoreUrl } from "../../../src/stores/registry.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { PostgresServer } from "../../../src/verify/lab/postgres.js";
import { describeWith } from "../../support/needs.js";

test("the tables are those of the format", () => {
  const tables = [
    ...setupSql(DEFAULT_SCHEMA).matchAll(/^CREATE (UNLOGGED TABLE|TABLE|INDEX|SEQUENCE) .*?;$/gms),
  ]
    .map(([statement]) => statement.replaceAll(/--.*$/gm, "").replaceAll(/\s+/g, " "))
    .join("\n");
  const hash = createHash("sha256").update(tables).digest("hex").slice(0, 12);
  // If they have changed, raise FORMAT: functions of other versions work on the same tables.
  expect({ FORMAT, hash }).toEqual({ FORMAT: 2, hash: "d6025bc2cfd8" });
});

describeWith(["postgres"], "the set-up of a database", () => {
  let lab: Lab;
  let server: PostgresServer;
  /** URLs of a fresh database, for its owner (no superuser) and for a user without rights. */
  let owner: string;
  let app: string;
  let database: string;

  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.postgres();
    await server.sql(`CREATE ROLE owner LOGIN PASSWORD 'sesame'; CREATE ROLE app LOGIN PASSWORD 'sesame';
      CREATE ROLE other LOGIN PASSWORD 'sesame'`);
  });
  afterAll(() => lab?.close());

  let databases = 0;
  beforeEach(async () => {
    database = `db${++databases}`;
    await server.sql(`CREATE DATABASE ${database} OWNER owner`);
    const url = (user: string): string =>
      `postgres://${user}:sesame@${server.address}:${server.port}/${database}`;
    [owner, app] = [url("owner"), url("app")];
  });

  const setUp = (url: string, grantee?: string) => setUpPostgres(parseStoreUrl(url), grantee);

  const as = async <T>(url: string, use: (client: Client) => Promise<T>): Promise<T> => {
    const client = new Client({ connectionString: url });
    await client.connect();
    try {
      return await use(client);
    } finally {
      await client.end();
    }
  };
  const sql = (url: string, text: string) => as(url, (client) => client.query(text));

  const lockAndWait = async (url: string): Promise<void> => {
    const locks = await connect(url, { ttl: 10_000, wait: 5_000 });
    try {
      const first = await locks.acquire("job");
      const waiting = locks.acquire("job");
      await first.release();
      const second = await waiting;
      await second.renew();
      await second.release();
    } finally {
      await locks.close();
    }
  };

  test("is made once, also by many at the same time", async () => {
    const results = await Promise.all(Array.from({ length: 5 }, () => setUp(owner)));
    // Those that came at the same moment have run the statements too, and changed nothing.
    expect(results).toContainEqual({ what: "the schema holdfast", isMade: true });
    expect(await setUp(owner)).toEqual({ what: "the schema holdfast", isMade: false });
    await lockAndWait(owner);
  });

  test("a user without the right to make it is told what to do, and a grant is enough", async () => {
    const refused = {
      code: "STORE_UNAVAILABLE",
      retryable: false,
      message: expect.stringMatching(
        /^the user at PostgreSQL at \S+ lacks a right that Holdfast needs \(permission denied for \w+ \w+\): let the owner .*"holdfast setup --store URL --grant USER".*--print/,
      ),
    };
    await expect(connect(app)).rejects.toMatchObject(refused);
    await expect(setUp(app)).rejects.toMatchObject(refused);
    await setUp(owner);
    // The schema is there, and the user may not enter it.
    await expect(connect(app)).rejects.toMatchObject(refused);
    await sql(owner, "GRANT USAGE ON SCHEMA holdfast TO app");
    const locks = await connect(app);
    await expect(locks.acquire("job")).rejects.toMatchObject(refused);
    await locks.close();
    expect(await setUp(owner, "app")).toEqual({ what: "the schema holdfast", isMade: false });
    await lockAndWait(app);
    // A user of the locks may not pass its rights on; the server itself would only warn.
    await expect(setUp(app, "other")).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
      message: expect.stringMatching(
        /may not grant "other" these rights: USAGE ON SCHEMA holdfast;.* UPDATE ON holdfast.session_tokens/,
      ),
    });
    await expect(setUp(owner, "nobody")).rejects.toMatchObject({
      code: "INVALID_ARGUMENT",
      message: expect.stringContaining('has no role "nobody"'),
    });
    await expect(setUp(owner, "")).rejects.toMatchObject({ code: "INVALID_ARGUMENT" });
  });

  test("the error shows the SQL that gives the missing right", async () => {
    const role = 'we"b';
    await server.sql(
      `CREATE ROLE "we""b" LOGIN PASSWORD 'sesame'; CREATE DATABASE "a""b" OWNER owner`,
    );
    const at = (url: string, name: string): string => url.replace(/\w+$/, encodeURIComponent(name));
    const web = app.replace("//app:", `//${encodeURIComponent(role)}:`);
    const shown = async (refused: Promise<unknown>): Promise<string> => {
      const { message } = (await refused.catch((error: unknown) => error)) as Error;
      return / or this: (GRANT .*;)$/.exec(message)?.[1] ?? message;
    };
    const grants = async (database: string, refused: () => Promise<unknown>): Promise<string> => {
      const statements = await shown(refused());
      await sql(at(owner, database), statements);
      return statements;
    };

    const inOwn = at(web, 'a"b');
    const create = 'GRANT CREATE ON DATABASE "a""b" TO "we""b";';
    expect(await shown(setUp(inOwn))).toBe(create);
    expect(await grants('a"b', () => connect(inOwn))).toBe(create);
    await lockAndWait(inOwn);

    await sql(owner, "CREATE SCHEMA holdfast");
    expect(await grants(database, () => connect(web))).toBe(
      'GRANT USAGE, CREATE ON SCHEMA "holdfast" TO "we""b";',
    );
    await sql(owner, 'DROP SCHEMA holdfast; REVOKE ALL ON DATABASE "a""b" FROM "we""b"');

    await setUp(owner);
    const first = await grants(database, () => connect(web));
    expect(setupScript(parseStoreUrl(owner), role).split("\n")).toEqual(
      expect.arrayContaining(first.split(/(?<=;) /)),
    );
    await lockAndWait(web);
    const sessions = await connect(`${web}?mode=session`);
    await (await sessions.acquire("job")).release();
    await sql(owner, `REVOKE UPDATE ON SEQUENCE holdfast.session_tokens FROM "we""b"`);
    expect(await shown(sessions.acquire("job"))).toBe(first);
    await sessions.close();
    await sql(owner, `REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA holdfast FROM PUBLIC`);
    expect(await grants(database, () => connect(web).then((one) => one.acquire("job")))).toBe(
      'GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA "holdfast" TO "we""b";',
    );
    await lockAndWait(web);
  });

  test("an empty schema that an administrator has made for the user is enough", async () => {
    await sql(owner, "CREATE SCHEMA holdfast; GRANT USAGE, CREATE ON SCHEMA holdfast TO app");
    expect(await setUp(app)).toMatchObject({ isMade: true });
    await lockAndWait(app);
  });

  test("psql runs the printed statements, twice too, and they refuse another format", async () => {
    const hostile = 'a"b; DROP TABLE x';
    await server.sql(`CREATE ROLE "a""b; DROP TABLE x"`);
    for (const grantee of ["app", "app", hostile]) {
      const script = setupScript(parseStoreUrl(owner), grantee);
      // In ASCII, so that it is the same in every encoding.
      expect(script).toMatch(/^BEGIN;\n[\n -~]*\nCOMMIT;$/);
      await server.sql(`\\c ${database}\nSET ROLE owner;\n${script}`);
    }
    await lockAndWait(app);
    const { rows } = await sql(
      owner,
      "SELECT has_table_privilege('a\"b; DROP TABLE x', 'holdfast.names', 'UPDATE') AS may",
    );
    expect(rows).toEqual([{ may: true }]);

    const later = `CREATE OR REPLACE FUNCTION holdfast.format_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT ${FORMAT + 1}'`;
    await sql(owner, later);
    await expect(sql(owner, setupScript(parseStoreUrl(owner)))).rejects.toThrow(
      `the schema holdfast has format ${FORMAT + 1}, and these statements make format ${FORMAT}`,
    );
    await expect(setUp(owner)).rejects.toMatchObject({ code: "UNSUPPORTED" });
  });

  test.each([
    ["of another version", "_0123456789ab"],
    ["without a version", ""],
  ])(
    "a schema with functions %s gets those of this one, and both work on the same names",
    async (_, suffix) => {
      const ours = functionName("");
      const script = setupScript(parseStoreUrl(owner), "app").replaceAll(ours, suffix);
      await sql(owner, script.replace("FOUND THEN 'released'", "FOUND THEN 'released by old'"));
      const old = (kind: string): Promise<string> =>
        as(app, async (client) => {
          const request = requestOf(kind, "old", "default:job", LOCK_LIMIT, LOCK_LIMIT);
          const call = `SELECT holdfast.requests${suffix}($1, true, NULL, 1000, false) AS replies`;
          const { rows } = await client.query(call, [request]);
          return rows[0].replies[0];
        });
      await old("claim");

      await expect(connect(app)).rejects.toMatchObject({
        code: "STORE_UNAVAILABLE",
        retryable: false,
        message: expect.stringMatching(
          /^the schema holdfast of PostgreSQL at \S+ has only functions of another version .*\(permission denied for schema holdfast\): .*"holdfast setup --store URL --grant USER" .*--print/,
        ),
      });
      const results = await Promise.all(Array.from({ length: 5 }, () => setUp(owner, "app")));
      const what = "the functions of this version in the schema holdfast";
      expect(results).toContainEqual({ what, isMade: true });
      expect(await setUp(owner)).toEqual({ what: "the schema holdfast", isMade: false });

      const locks = await connect(app, { ttl: 10_000, wait: 10_000 });
      expect((await locks.inspect("job"))?.holders).toMatchObject([{ holder: "h" }]);
      const waiting = locks.acquire("job");
      await expect.poll(async () => (await locks.inspect("job"))?.waiting).toBe(1);
      expect(await old("release")).toBe("released");
      const lease = await waiting;
      expect(await old("claim")).toMatch(/busy/);
      await lease.release();
      // Its functions are as they were.
      await old("claim");
      expect(await old("release")).toBe("released by old");
      await locks.close();
    },
  );

  test("functions that somebody drops in use are named in the error", async () => {
    const locks = await connect(owner);
    await sql(owner, "DROP SCHEMA holdfast CASCADE");
    await expect(locks.acquire("job", { wait: 0 })).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
      message: expect.stringMatching(
        /has somebody dropped them\? "holdfast setup" makes them again/,
      ),
    });
    await locks.close();
  });

  test("a database that can't store every name is refused, with the reason; its fences take what it can", async () => {
    await server.sql(`CREATE DATABASE latin OWNER owner
      ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'`);
    const latin = owner.replace(/\w+$/, "latin");
    const refused = {
      code: "UNSUPPORTED",
      message: expect.stringMatching(
        /^the database of PostgreSQL at \S+ has the encoding LATIN1, .* ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0/,
      ),
    };
    await expect(connect(latin)).rejects.toMatchObject(refused);
    await expect(connect(`${latin}?mode=session`)).rejects.toMatchObject(refused);
    await expect(setUp(latin)).rejects.toMatchObject(refused);
    await expect(sql(latin, setupScript(parseStoreUrl(latin)))).rejects.toThrow(/encoding LATIN1/);
    expect((await sql(latin, "SELECT to_regnamespace('holdfast') AS made")).rows).toEqual([
      { made: null },
    ]);

    // The statements that the error shows.
    await server.sql(
      "CREATE DATABASE locks OWNER owner ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0",
    );
    await lockAndWait(owner.replace(/\w+$/, "locks"));

    const pool = new Pool({ connectionString: latin });
    const fence = postgresFence(pool);
    const token = 7n;
    await fence.enter(undefined, "K\u00f6nig", { token, floor: token });
    expect(await fence.highest(undefined, "K\u00f6nig")).toBe(token);
    await expect(fence.enter(undefined, "5 \u20ac", { token, floor: token })).rejects.toMatchObject(
      {
        code: "STORE_UNAVAILABLE",
        retryable: false,
        message: expect.stringMatching(/has no equivalent in encoding "LATIN1"/),
      },
    );
    await pool.end();
  });

  test("words of SQL are good names for a schema, and PostgreSQL's own are refused", async () => {
    const pool = new Pool({ connectionString: owner });
    for (const schema of ["user", "order", "table"]) {
      const url = `${app}?schema=${schema}`;
      await setUp(`${owner}?schema=${schema}`, "app");
      await lockAndWait(url);
      const locks = await connect(`${url}&mode=session`);
      const lease = await locks.acquire("job");
      expect(await locks.inspect("job")).toMatchObject({ holders: [{ token: lease.token }] });
      await locks.close();
      const fence = postgresFence(pool, { schema });
      await fence.enter(undefined, "stock", lease);
      expect(await fence.highest(undefined, "stock")).toBe(lease.token);
    }
    await pool.end();
    for (const schema of ["pg_locks", "pg_", "information_schema"]) {
      await expect(connect(`${owner}?schema=${schema}`)).rejects.toMatchObject({
        code: "INVALID_ARGUMENT",
        message: expect.stringContaining("PostgreSQL keeps"),
      });
    }
  });

  test("a user of least rights has the fences of the set-up, and each of their rights is needed", async () => {
    // The schema is there from a lock, and another user's.
    await lockAndWait(owner);
    const made = { what: "the table of fences in the schema holdfast", isMade: true };
    expect(await setUp(owner, "app")).toEqual(made);
    expect(await setUp(owner, "app")).toMatchObject({ isMade: false });
    const pool = new Pool({ connectionString: app });
    const locks = await connect(app);
    const useFence = async (): Promise<void> => {
      const fence = postgresFence(pool);
      await locks.withLock("stock", { fence }, async (lease) => {
        await fence.guard(undefined, "stock", lease, { strict: true });
        expect(await fence.highest(undefined, "stock")).toBe(lease.token);
        await fence.reset(undefined, "stock", lease.token);
      });
    };
    await useFence();
    for (const right of ["SELECT", "INSERT", "UPDATE"]) {
      await sql(owner, `REVOKE ${right} ON holdfast.fences FROM app`);
      await expect(useFence(), right).rejects.toMatchObject({ cause: { code: "42501" } });
      await sql(owner, `GRANT ${right} ON holdfast.fences TO app`);
    }
    await useFence();
    await locks.close();

    // By psql, too. And CREATE on the database alone is not enough in a schema of another user's.
    await sql(owner, "DROP SCHEMA holdfast CASCADE");
    await sql(owner, "CREATE SCHEMA holdfast; GRANT USAGE ON SCHEMA holdfast TO app");
    await sql(owner, `GRANT CREATE ON DATABASE ${database} TO app`);
    const entering = (): Promise<void> =>
      postgresFence(pool).enter(undefined, "stock", { token: 7n, floor: 7n });
    await expect(entering()).rejects.toMatchObject({ cause: { code: "42501" } });
    await sql(owner, setupScript(parseStoreUrl(owner), "app"));
    await entering();
    await pool.end();
  });

  test("the rights that it grants are enough, and each of them is needed", {
    timeout: 120_000,
  }, async () => {
    // As in a database where functions are not everybody's.
    await sql(owner, "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC");
    await setUp(owner, "app");
    await as(app, callAll);
    // Those that the page shows.
    const page = readFileSync(new URL("../../../docs/stores/postgres.md", import.meta.url), "utf8");
    await sql(
      owner,
      `REVOKE ALL ON ALL TABLES IN SCHEMA holdfast FROM app; REVOKE ALL ON SCHEMA holdfast FROM app;
        REVOKE ALL ON ALL SEQUENCES IN SCHEMA holdfast FROM app; ${/```sql\n(GRANT.*?)```/s.exec(page)![1]}`,
    );
    await as(app, callAll);
    const all = "SELECT, INSERT, UPDATE, DELETE".split(", ");
    const rights = [
      "USAGE ON SCHEMA holdfast",
      "EXECUTE ON ALL FUNCTIONS IN SCHEMA holdfast",
      ...["names", "claims", "records", "meters", "session_locks"].flatMap((table) =>
        all.map((right) => `${right} ON holdfast.${table}`),
      ),
      ...["SELECT", "UPDATE"].map((right) => `${right} ON holdfast.deleted_names`),
      "UPDATE ON SEQUENCE holdfast.session_tokens",
    ];
    await as(owner, (admin) =>
      as(app, async (client) => {
        for (const right of rights) {
          await admin.query(`REVOKE ${right} FROM app`);
          await expect(callAll(client), right).rejects.toMatchObject({ code: "42501" });
          await admin.query(`GRANT ${right} TO app`);
        }
        await callAll(client);
      }),
    );
    // And no others.
    await expect(sql(app, "TRUNCATE holdfast.names")).rejects.toMatchObject({ code: "42501" });
    await expect(sql(app, "SELECT last_value FROM holdfast.session_tokens")).rejects.toMatchObject({
      code: "42501",
    });
    await expect(sql(app, "DELETE FROM holdfast.deleted_names")).rejects.toMatchObject({
      code: "42501",
    });
    await expect(sql(app, "CREATE TABLE holdfast.mine ()")).rejects.toMatchObject({
      code: "42501",
    });
  });
});

let sessions = 0;

/** Calls every function that the store calls, in all the ways that touch another table. */
async function callAll(client: Client): Promise<void> {
  const name = randomUUID();
  const call = (fn: string, args: string, values: readonly unknown[] = []): Promise<unknown> =>
    client.query(`SELECT holdfast.${functionName(fn)}(${args})`, [...values]);
  const request = (kind: string, id: string): Promise<unknown> =>
    call("requests", "$1, false, NULL, 1000, false", [requestOf(kind, id, name)]);
  const renew = (...ids: readonly string[]): Promise<unknown> =>
    call("renewals", "$1, $2, $3, $4, NULL, 1000, false", [
      ids.map(() => name),
      ids,
      ids.map(() => 2),
      ids.map(() => 60_000_000),
    ]);
  for (const id of ["a", "b", "c"]) await request("queue", id);
  await renew("a");
  await renew("b", "c");
  await call("resize_name", "$1, 3, 1000", [name]);
  await call("describe_names", "'', NULL, 10");
  for (const id of ["a", "b"]) await request("release", id);
  await call("revoke_name", "$1, 'me', 'why', 1000", [name]);
  await request("claim", "d");
  await request("unused", "d");
  await call("delete_free_names", "512, -1000000, 1000");

  const write = (key: string, keepUs: number): Promise<unknown> =>
    call("write_record", "$1, 'value', $2, $3, 'token', NULL, 1, 1000", [
      key,
      randomUUID(),
      keepUs,
    ]);
  const take = (units: number): Promise<unknown> =>
    call("take_from_meter", "$1, $2, 2, 1000, 4, 1000", [name, units]);
  for (const keepUs of [60_000_000, 1]) await write(name, keepUs);
  await call("read_record", "$1, 1000", [name]);
  for (const units of [1, 1]) await take(units);
  for (const table of ["records", "meters"]) {
    await call("delete_expired", "$1, '', 10, 1000", [table]);
  }

  // Each session has a number and, for its lock, the next one.
  const session = 2 * ++sessions;
  await call("begin_session", "$1", [session]);
  const claim =
    "$1, ARRAY[$2::bigint], ARRAY['a'], ARRAY[$3], ARRAY['h'], ARRAY[1000], ARRAY[true], ARRAY[false]";
  await call("claim_session_locks", claim, [session, session + 1, name]);
  await call("describe_session_locks", "'', NULL, 10");
  const release = "ARRAY[$1::bigint], ARRAY['a'], ARRAY[true], ARRAY[true]";
  await call("release_session_locks", release, [session + 1]);
}

const requestOf = (kind: string, id: string, name: string, permits = 1, limit = 2): string =>
  JSON.stringify([
    { kind, id, names: [name], seq: 1, permits, limit, ttl: 60_000_000, atLeast: 0, holder: "h" },
  ]);
