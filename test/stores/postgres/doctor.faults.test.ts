import { Client } from "pg";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { Finding, Level } from "../../../src/doctor/finding.js";
import { examineStore } from "../../../src/examine.js";
import { Connections } from "../../../src/stores/postgres/connections.js";
import { judgeTransport } from "../../../src/stores/postgres/doctor/access.js";
import {
  type Facts,
  readFacts,
  type TableFacts,
} from "../../../src/stores/postgres/doctor/facts.js";
import {
  checkLockTable,
  checkPooler,
  checkReplicas,
  checkTransactions,
} from "../../../src/stores/postgres/doctor/server.js";
import { judgeSettings } from "../../../src/stores/postgres/doctor/settings.js";
import { judgeSize } from "../../../src/stores/postgres/doctor/tables.js";
import { openPool } from "../../../src/stores/postgres/open.js";
import type { LockKind } from "../../../src/stores/postgres/rights.js";
import { functionName } from "../../../src/stores/postgres/schema.js";
import { setUpPostgres, setupScript } from "../../../src/stores/postgres/setup.js";
import { parseStoreUrl } from "../../../src/stores/registry.js";
import { FalseClock } from "../../../src/verify/lab/clock.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { freePort } from "../../../src/verify/lab/ports.js";
import type { PostgresServer } from "../../../src/verify/lab/postgres.js";
import { until } from "../../../src/verify/lab/until.js";
import { describeWith, needs } from "../../support/needs.js";

const ofLevel = (findings: readonly Finding[], level: Level): string[] =>
  findings.filter((one) => one.level === level).map(({ about }) => about);

/** The only finding of this kind. */
function one(findings: readonly Finding[], about: string): Finding {
  const found = findings.filter((finding) => finding.about === about);
  expect(found.length, JSON.stringify(findings, null, 2)).toBe(1);
  return found[0]!;
}

describe("what a server tells", () => {
  const facts: Facts = {
    kind: "leases",
    version: "15.4",
    versionNumber: 150_004,
    encoding: "UTF8",
    database: "app",
    user: "app",
    isSuperuser: false,
    isStandby: false,
    isReadOnly: false,
    settings: {
      default_transaction_isolation: "read committed",
      synchronous_commit: "on",
      synchronous_standby_names: "",
      fsync: "on",
      full_page_writes: "on",
      autovacuum: "on",
    },
    schema: null,
    mayCreateSchema: false,
  };

  test.each([
    ["14.0", 140_000, "ok"],
    ["18.1", 180_001, "ok"],
    ["13.22", 130_022, "danger"],
    ["9.6.24", 90_624, "danger"],
  ])("version %s: %s %s", (version, versionNumber, level) => {
    const found = judgeSettings({ ...facts, version, versionNumber });
    expect(one(found, "version")).toMatchObject({
      level,
      what: expect.stringContaining(version),
    });
  });

  test("dead rows count when there are many, and more than live ones", () => {
    const table = (more: Partial<TableFacts>): TableFacts => ({
      name: "names",
      isUnlogged: false,
      bytes: 3 * 2 ** 20,
      liveRows: 10,
      deadRows: 0,
      isVacuumed: true,
      ...more,
    });
    expect(judgeSize([table({ deadRows: 40_000 })], "on").level).toBe("ok");
    expect(judgeSize([table({ liveRows: 100_000, deadRows: 90_000 })], "on").level).toBe("ok");
    expect(judgeSize([table({ deadRows: 60_000 })], "on")).toMatchObject({
      level: "note",
      what: expect.stringContaining("names 3 MB (rows: 10, dead: 60000)"),
    });
  });

  test.each([
    ["postgres://127.0.0.1/app", []],
    ["postgres://db.example.org/app?tls", []],
    ["postgres://db.example.org/app", ["transport"]],
  ])("%s: is not encrypted: %j", (url, notes) => {
    expect(ofLevel(judgeTransport(parseStoreUrl(url)), "note")).toEqual(notes);
  });
});

describeWith(["postgres", "pgbouncer"], "the doctor of PostgreSQL", () => {
  const DATABASE = "locks";
  let lab: Lab;
  let server: PostgresServer;
  /** URLs of the database, for its owner, a user of the locks, and the superuser. */
  let owner: string;
  let app: string;
  let root: string;

  const urlsAt = ({ address, port }: { address: string; port: number }, database = DATABASE) =>
    ["owner:sesame", "app:sesame", `postgres:${server.password}`].map(
      (login) => `postgres://${login}@${address}:${port}/${database}`,
    ) as [string, string, string];
  const sql = (text: string): Promise<string> => server.sql(`\\c ${DATABASE}\n${text}`);
  const setForApp = (setting: string): Promise<string> =>
    sql(`ALTER ROLE app IN DATABASE ${DATABASE} SET ${setting}`);

  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.postgres({ config: { max_prepared_transactions: "2" } });
    await server.sql(`CREATE ROLE owner LOGIN PASSWORD 'sesame'; CREATE ROLE app LOGIN PASSWORD 'sesame';
      CREATE ROLE other LOGIN PASSWORD 'sesame';\nCREATE DATABASE ${DATABASE} OWNER owner`);
    [owner, app, root] = urlsAt(server);
  });
  afterAll(() => lab?.close());

  // The tables are the owner's, and the user of the locks has the rights that it needs.
  beforeEach(async () => {
    await sql(`SET client_min_messages = warning; DROP SCHEMA IF EXISTS holdfast CASCADE;
      ALTER ROLE app IN DATABASE ${DATABASE} RESET ALL`);
    await setUpPostgres(parseStoreUrl(owner), "app");
  });

  test("no danger, and nothing to note, with a user that has what locks need and no more", async () => {
    const findings = await examineStore(app);
    expect(findings.filter(({ level }) => level !== "ok")).toEqual([]);
    expect(ofLevel(findings, "ok").sort()).toEqual([
      "access",
      "clock",
      "commit",
      "encoding",
      "isolation",
      "latency",
      "login",
      "persistence",
      "pooler",
      "replicas",
      "rights",
      "role",
      "size",
      "tables",
      "transactions",
      "trial",
      "version",
    ]);
  });

  test("locks of sessions need none of the rights, settings and safe disks of the lease table", async () => {
    await sql(`REVOKE ALL ON holdfast.names, holdfast.claims, holdfast.records FROM app;
      GRANT SELECT ON holdfast.names TO PUBLIC; ALTER TABLE holdfast.names SET UNLOGGED`);
    await setForApp("default_transaction_isolation = serializable");
    const findings = await examineStore(`${app}?mode=session`);
    expect(findings.filter(({ level }) => level !== "ok")).toEqual([]);
    expect(ofLevel(findings, "ok")).toContain("trial");
    expect(one(findings, "size").what).toMatch(/^session_locks \S+ MB \([^)]+\)$/);
  });

  test.each([
    [
      "REVOKE DELETE ON holdfast.session_locks FROM app",
      "rights",
      "DELETE ON holdfast.session_locks",
    ],
    [
      "REVOKE UPDATE ON SEQUENCE holdfast.session_tokens FROM app",
      "rights",
      "UPDATE ON holdfast.session_tokens",
    ],
    ["GRANT UPDATE ON SEQUENCE holdfast.session_tokens TO PUBLIC", "access", "(write)"],
    ["GRANT SELECT ON holdfast.session_locks TO PUBLIC", "access", "(read)"],
  ])("locks of sessions: %s", async (change, about, what) => {
    await sql(`GRANT USAGE ON SCHEMA holdfast TO PUBLIC; ${change}`);
    const findings = await examineStore(`${app}?mode=session`);
    // A lease table needs none of them.
    expect(ofLevel(await examineStore(app), "danger")).toEqual([]);
    expect(one(findings, about)).toMatchObject({
      level: "danger",
      what: expect.stringContaining(what),
    });
    expect(ofLevel(findings, "danger")).toEqual(about === "rights" ? ["rights", "trial"] : [about]);
  });

  test("a superuser and the owner of the tables have more rights than locks need", async () => {
    for (const [url, what] of [
      [root, /^postgres is a superuser/],
      [owner, /^owner owns the schema holdfast/],
    ] as const) {
      const findings = await examineStore(url);
      expect(ofLevel(findings, "danger")).toEqual([]);
      expect(one(findings, "login")).toMatchObject({
        level: "note",
        what: expect.stringMatching(what),
      });
      expect(one(findings, "trial").level).toBe("ok");
    }
  });

  test("makes no tables, and says whether the first lock can", async () => {
    await sql("DROP SCHEMA holdfast CASCADE");
    const can = await examineStore(owner);
    expect(one(can, "tables")).toMatchObject({
      level: "note",
      what: expect.stringContaining("owner will own them"),
    });
    expect(ofLevel(can, "danger")).toEqual([]);
    const cannot = await examineStore(app);
    expect(one(cannot, "tables")).toMatchObject({
      level: "danger",
      advice: expect.stringContaining("holdfast setup --store URL --grant USER"),
    });
    expect([...can, ...cannot].map(({ about }) => about)).not.toContain("trial");
    expect(await sql("SELECT to_regnamespace('holdfast') IS NULL")).toBe("t");

    // Made for the user, and empty.
    await sql("CREATE SCHEMA holdfast; GRANT USAGE, CREATE ON SCHEMA holdfast TO app");
    expect(one(await examineStore(app), "tables").level).toBe("note");
  });

  test("tables of another format", async () => {
    await sql(`CREATE OR REPLACE FUNCTION holdfast.format_version() RETURNS integer
      LANGUAGE sql IMMUTABLE AS 'SELECT 99'`);
    const findings = await examineStore(app);
    expect(ofLevel(findings, "danger")).toEqual(["tables"]);
    expect(one(findings, "tables").what).toContain("has format 99");
  });

  test("functions of another version only: they are not added, and it says whether the first lock can", async () => {
    const other = setupScript(parseStoreUrl(owner), "app").replaceAll(functionName(""), "_other");
    await sql(`DROP SCHEMA holdfast CASCADE; SET ROLE owner; ${other}`);
    const can = await examineStore(owner);
    expect(one(can, "tables")).toMatchObject({
      level: "note",
      what: expect.stringContaining("the first lock adds those of this one"),
    });
    expect(ofLevel(can, "danger")).toEqual([]);
    const cannot = await examineStore(app);
    expect(ofLevel(cannot, "danger")).toEqual(["tables"]);
    expect(one(cannot, "tables").advice).toContain("holdfast setup --store URL --grant USER");
    const count = "SELECT count(*) FROM pg_proc WHERE proname = '%'";
    expect(await sql(count.replace("%", functionName("requests")))).toBe("0");
    expect(await sql(count.replace("%", "requests_other"))).toBe("1");
  });

  test("rights that are missing, also before the user may enter the schema", async () => {
    await sql("REVOKE DELETE ON holdfast.names FROM app");
    expect(one(await examineStore(app), "rights")).toMatchObject({
      level: "danger",
      what: expect.stringContaining("app lacks DELETE ON holdfast.names: requests fail"),
      advice: expect.stringContaining("--grant app"),
    });
    await sql("REVOKE ALL ON SCHEMA holdfast FROM app");
    const findings = await examineStore(app);
    expect(ofLevel(findings, "danger")).toEqual(["rights", "trial"]);
    expect(one(findings, "rights").what).toContain("lacks USAGE ON SCHEMA holdfast");
  });

  test.each([
    ["GRANT SELECT ON holdfast.claims TO PUBLIC", "(read)"],
    ["GRANT UPDATE ON holdfast.names TO PUBLIC", "(write)"],
    ["GRANT CREATE ON SCHEMA holdfast TO PUBLIC", "(put functions beside them)"],
  ])("what everybody may do: %s", async (grant, deeds) => {
    await sql(`GRANT USAGE ON SCHEMA holdfast TO PUBLIC; ${grant}`);
    const findings = await examineStore(app);
    expect(ofLevel(findings, "danger")).toEqual(["access"]);
    expect(one(findings, "access").what).toContain(deeds);
    await sql(one(findings, "access").advice!);
    expect(one(await examineStore(app), "access").level).toBe("ok");
  });

  test("other users of the tables, also by a role that they are members of", async () => {
    // Without USAGE on the schema, nobody gets to the tables.
    await sql("GRANT INSERT ON holdfast.claims TO PUBLIC");
    expect(one(await examineStore(app), "access").level).toBe("ok");
    await sql("REVOKE ALL ON holdfast.claims FROM PUBLIC");

    await sql("GRANT pg_read_all_data TO other");
    const findings = await examineStore(app);
    await sql("REVOKE pg_read_all_data FROM other");
    expect(one(findings, "access")).toMatchObject({
      level: "note",
      what: expect.stringContaining("as well: other (read);"),
    });
    expect(one(await examineStore(root), "access").what).toContain("as well: app (read, write);");
  });

  test.each([
    ["default_transaction_isolation = serializable", "isolation", "danger", /"serializable"/],
    ["default_transaction_read_only = on", "role", "danger", /read_only is on/],
    ["synchronous_commit = off", "commit", "note", /Holdfast turns it on for itself/],
    ["synchronous_commit = local", "commit", "ok", /is local/],
  ] as const)("%s", async (setting, about, level, what) => {
    await setForApp(setting);
    const findings = await examineStore(app);
    expect(one(findings, about)).toMatchObject({ level, what: expect.stringMatching(what) });
    // Requests are refused where there is a danger, and only there.
    expect(one(findings, "trial").level).toBe(level === "danger" ? "danger" : "ok");
    expect(ofLevel(findings, "danger")).toEqual(level === "danger" ? [about, "trial"] : []);
  });

  test("tables that a crash empties, and those that are never cleaned up", async () => {
    await sql(`ALTER TABLE holdfast.names SET UNLOGGED;
      ALTER TABLE holdfast.names SET (autovacuum_enabled = off)`);
    const findings = await examineStore(app);
    expect(ofLevel(findings, "danger")).toEqual(["persistence"]);
    expect(one(findings, "persistence").what).toContain("UNLOGGED: holdfast.names.");
    expect(one(findings, "size")).toMatchObject({
      level: "note",
      what: expect.stringContaining("autovacuum is off for names:"),
    });
    await sql(one(findings, "persistence").advice!);
    expect(one(await examineStore(app), "persistence").level).toBe("ok");

    const script = setupScript(parseStoreUrl(owner), "app");
    const unlogged = script.replace("TABLE IF NOT EXISTS claims", "UNLOGGED TABLE claims");
    await sql(`DROP SCHEMA holdfast CASCADE; SET ROLE owner; ${unlogged}`);
    expect(one(await examineStore(app), "persistence")).toMatchObject({
      level: "danger",
      what: expect.stringContaining("UNLOGGED: holdfast.claims."),
      advice: expect.stringContaining('DROP SCHEMA "holdfast" CASCADE; then holdfast setup'),
    });
  });

  test("an encoding that lacks characters", async () => {
    await server.sql(`CREATE DATABASE latin OWNER owner
      ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'`);
    const [asOwner] = urlsAt(server, "latin");
    const findings = await examineStore(asOwner);
    expect(ofLevel(findings, "danger")).toEqual(["encoding"]);
    expect(one(findings, "encoding").what).toContain("the encoding LATIN1");
  });

  test("a server that loses what it has committed", async () => {
    const risky = await lab.postgres({
      config: {
        fsync: "off",
        full_page_writes: "off",
        autovacuum: "off",
        synchronous_commit: "off",
      },
    });
    await setUpPostgres(parseStoreUrl(risky.url));
    const findings = await examineStore(risky.url);
    expect(ofLevel(findings, "danger")).toEqual(["persistence", "persistence"]);
    expect(ofLevel(findings, "note").sort()).toEqual(["commit", "login", "size"]);
    expect(one(findings, "size").what).toContain("autovacuum is off:");
    expect(one(findings, "trial").level).toBe("ok");
    await risky.stop();
  });

  describe("transactions", () => {
    const check = (url: string, longMs?: number): Promise<Finding> =>
      withConnections(url, (connections) => checkTransactions(connections, longMs));

    test("that are open for long, prepared ones too; those of others are not seen by everybody", async () => {
      await using busy = await open(owner);
      await busy.client.query("BEGIN; CREATE TABLE mine ()");
      expect((await check(root)).level).toBe("ok");
      await until("the transaction is old enough", 5_000, async () =>
        /process \d+ \(user owner, idle in transaction\), for 0 min/.test(
          (await check(root, 50)).what,
        ),
      );
      expect(await check(root, 50)).toMatchObject({ level: "note" });
      expect(await check(app, 50)).toMatchObject({
        level: "unknown",
        what: expect.stringContaining("(sessions of theirs: 1)"),
        advice: expect.stringContaining("pg_read_all_stats"),
      });
      await busy.client.query("PREPARE TRANSACTION 'forgotten'");
      expect((await check(root, 0)).what).toContain(
        "prepared transaction 'forgotten' (user owner)",
      );
      await busy.client.query("ROLLBACK PREPARED 'forgotten'");
      expect((await check(root, 0)).level).toBe("ok");
      // One that has neither written nor is reading keeps nothing from being cleaned up.
      await busy.client.query("BEGIN");
      expect((await check(root, 0)).level).toBe("ok");
    });
  });

  test.each([
    ["transaction", {}, "note", /in transaction mode stands in between: waiters poll/],
    ["session", {}, "ok", /in session mode: waiters are notified/],
    ["session", { default_pool_size: "1" }, "note", /a message did not pass it: waiters poll/],
  ] as const)("a pooler in %s mode %j", async (mode, more, level, what) => {
    const pooler = await lab.pgbouncer(server, { config: { pool_mode: mode, ...more } });
    const url = urlsAt(pooler)[2];
    expect(
      await withConnections(url, (connections) => checkPooler(connections, "leases")),
    ).toMatchObject({
      level,
      what: expect.stringMatching(what),
    });
    const findings = await examineStore(`${url}?mode=session`);
    expect(ofLevel(findings, "danger")).toEqual(["pooler"]);
    expect(one(findings, "pooler").what).toContain("every claim is refused");
    await pooler.stop();
  });

  test("the room for locks of sessions, which all users of the server share", async () => {
    const aboutRoom = { about: "lock table", what: expect.stringMatching(/of about \d+ locks/) };
    expect(one(await examineStore(`${app}?mode=session`), "lock table")).toMatchObject({
      ...aboutRoom,
      level: "ok",
    });
    await using busy = await open(root);
    await busy.client.query(`SELECT pg_advisory_lock(i) FROM generate_series(1, (
      SELECT current_setting('max_locks_per_transaction')::integer * current_setting('max_connections')::integer / 2 + 100
    )) AS i`);
    expect(await withConnections(app, checkLockTable)).toMatchObject({
      ...aboutRoom,
      level: "note",
    });
  });

  test("a server that can't be reached, or lets the user not in, is no finding", async () => {
    const nowhere = `postgres://127.0.0.1:${await freePort()}/app`;
    for (const [url, message] of [
      [nowhere, /can't connect to PostgreSQL at .*ECONNREFUSED/],
      [app.replace("sesame", "sesam"), /refuses the user name or the password/],
      [`${app}x`, /has no such database/],
    ] as const) {
      await expect(examineStore(url)).rejects.toMatchObject({
        code: "STORE_UNAVAILABLE",
        message: expect.stringMatching(message),
      });
    }
  });

  test("a clock that is wrong", async (context) => {
    needs(context, "faketime");
    const clock = await FalseClock.open(lab);
    const own = await lab.postgres({ site: clock.site() });
    await setUpPostgres(parseStoreUrl(own.url));
    expect(one(await examineStore(own.url), "clock").level).toBe("ok");
    const jump = clock.jump(31_000);
    await jump.inject();
    const findings = await examineStore(own.url);
    await jump.heal();
    await own.stop();
    expect(ofLevel(findings, "danger")).toEqual(["clock"]);
    expect(one(findings, "clock").what).toMatch(/3[01]\.\d s ahead of this machine's/);
  });

  test("a standby, and the grants that a failover to it can lose", {
    timeout: 60_000,
  }, async () => {
    const prepared = { max_prepared_transactions: "2" };
    const standby = await lab.postgres({
      standbyOf: server,
      config: { ...prepared, cluster_name: "copy" },
    });
    const [, asApp] = urlsAt(standby);
    const findings = await examineStore(asApp);
    expect(ofLevel(findings, "danger")).toEqual(["role", "trial"]);
    expect(one(findings, "role").what).toContain("a standby");

    await untilReplicas(
      app,
      "note",
      /^1 standby is attached, and synchronous_standby_names is empty/,
    );
    const setNames = (names: string): Promise<string> =>
      sql(`ALTER SYSTEM SET synchronous_standby_names = '${names}';\nSELECT pg_reload_conf()`);
    try {
      await setNames("copy");
      const safe = /^1 standby is attached, and a grant waits for "copy"/;
      await untilReplicas(app, "ok", safe);
      await untilReplicas(root, "ok", safe);
      await untilReplicas(app, "note", /after a failover, each name is granted/, "sessions");
      expect(one(await examineStore(app), "trial").level).toBe("ok");
      await setForApp("synchronous_commit = local");
      await untilReplicas(app, "note", /^synchronous_commit is local/);
      await setNames("none");
      await untilReplicas(root, "danger", /is "none", and no such standby is attached/);
    } finally {
      await setNames("");
      await standby.stop();
    }
  });
});

/** The server reads its settings, and standbys attach, some time later. No trial: a grant may wait for a standby. */
function untilReplicas(
  url: string,
  level: Level,
  what: RegExp,
  kind: LockKind = "leases",
): Promise<void> {
  return until(`replicas are ${level}: ${what}`, 20_000, () =>
    withConnections(url, async (connections) => {
      const facts = await readFacts(connections, "holdfast", kind);
      const found = one(await checkReplicas(connections, facts), "replicas");
      return found.level === level && what.test(found.what);
    }),
  );
}

async function withConnections<T>(
  url: string,
  use: (connections: Connections) => Promise<T>,
): Promise<T> {
  const connections = new Connections(await openPool(parseStoreUrl(url)));
  try {
    return await use(connections);
  } finally {
    await connections.close();
  }
}

interface OpenClient extends AsyncDisposable {
  readonly client: Client;
}

async function open(url: string): Promise<OpenClient> {
  const client = new Client({ connectionString: url });
  await client.connect();
  return { client, [Symbol.asyncDispose]: () => client.end() };
}
