import { randomUUID } from "node:crypto";
import { sleepMs } from "./lib/clock.mjs";
import { holdfast } from "./lib/holdfast.mjs";

export const title = "PostgreSQL";

/** As many connections for everybody who has a pool. */
const CONNECTIONS = 10;

async function openPool({ url }) {
  const { default: pg } = await import("pg");
  return new pg.Pool({ connectionString: url, max: CONNECTIONS });
}

/** The bare statements on the same client: a row for a lease, committed synchronously. */
const raw = {
  name: "raw",
  needs: ["pg"],
  pauseMs: 10,
  async open(place, { ttlMs }) {
    const pool = await openPool(place);
    const take = `INSERT INTO raw_locks VALUES ($1, $2, clock_timestamp() + $3 * interval '1 ms')
      ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, expires = excluded.expires
      WHERE raw_locks.expires <= clock_timestamp() RETURNING name`;
    const tryAcquire = async (name) => {
      const owner = randomUUID();
      const { rows } = await pool.query(take, [name, owner, ttlMs]);
      return rows.length === 0 ? null : { name, owner };
    };
    const renew = `UPDATE raw_locks SET expires = clock_timestamp() + $3 * interval '1 ms'
      WHERE name = $1 AND owner = $2`;
    return {
      async acquire(name) {
        for (;;) {
          const taken = await tryAcquire(name);
          if (taken !== null) return taken;
          await sleepMs(raw.pauseMs);
        }
      },
      tryAcquire,
      renewAll: (handles) =>
        Promise.all(handles.map(({ name, owner }) => pool.query(renew, [name, owner, ttlMs]))),
      release: ({ name, owner }) =>
        pool.query("DELETE FROM raw_locks WHERE name = $1 AND owner = $2", [name, owner]),
      close: () => pool.end(),
      async expiresInMs(name) {
        const left =
          "SELECT extract(epoch FROM expires - clock_timestamp()) * 1000 AS ms FROM raw_locks WHERE name = $1";
        return Number((await pool.query(left, [name])).rows[0].ms);
      },
    };
  },
};

/** The floor of a handover. */
const notify = {
  name: "NOTIFY",
  needs: ["pg"],
  async open(place) {
    const [pool, listener] = [await openPool(place), await (await openPool(place)).connect()];
    const waiting = new Map();
    listener.on("notification", ({ channel }) => waiting.get(channel)?.());
    return {
      async listen(name) {
        const woken = new Promise((resolve) => waiting.set(name, resolve));
        await listener.query(`LISTEN "${name}"`);
        return { woken };
      },
      wake: (name) => pool.query("SELECT pg_notify($1, '')", [name]),
      async close() {
        await listener.end();
        await pool.end();
      },
    };
  },
};

/** Session-level advisory locks, each on the connection that waits for it: no lease, no token. */
const advisory = {
  name: "advisory locks",
  needs: ["pg"],
  async open(place) {
    const pool = await openPool(place);
    return {
      async acquire(name) {
        const connection = await pool.connect();
        await connection.query("SELECT pg_advisory_lock(hashtextextended($1, 0))", [name]);
        return { connection, name };
      },
      async tryAcquire(name) {
        const text = "SELECT pg_try_advisory_lock(hashtextextended($1, 0)) AS is_granted";
        const { rows } = await pool.query(text, [name]);
        // The lock would stay with a connection of the pool.
        if (rows[0].is_granted) throw new Error("was granted a held name");
        return null;
      },
      async release({ connection, name }) {
        await connection.query("SELECT pg_advisory_unlock(hashtextextended($1, 0))", [name]);
        connection.release();
      },
      close: () => pool.end(),
    };
  },
};

/** A connection for each lock. */
const advisoryLock = {
  name: "advisory-lock",
  peer: true,
  needs: ["advisory-lock"],
  async open({ url }) {
    const { default: module } = await import("advisory-lock");
    const createMutex = (module.default ?? module)(url);
    return {
      acquire: (name) => createMutex(name).lock(),
      release: (unlock) => unlock(),
      close: async () => {},
    };
  },
};

/** A schema for each build: the tables of the other may have another format. */
const schemaOf = (build) => build.toLowerCase();

const connected = (name, storeOptions, maker = "postgresStore") =>
  holdfast(async ({ load, name: build }, place, options) => {
    const [{ createLocks }, { [maker]: makeStore }] = await Promise.all([
      load("index.js"),
      load("stores/postgres/index.js"),
    ]);
    const store = makeStore(await openPool(place), {
      schema: schemaOf(build),
      closeClient: true,
      ...storeOptions,
    });
    await store.setUp();
    return createLocks(store, options);
  }).map((contestant) => ({
    ...contestant,
    name: name === null ? contestant.name : `${contestant.name} ${name}`,
    needs: ["pg"],
  }));

const durable = "with durableRelease";
const sessions = "sessions";
export const contestants = [
  raw,
  notify,
  advisory,
  ...connected(null, {}),
  ...connected(durable, { durableRelease: true }),
  ...connected(sessions, {}, "postgresSessionStore"),
  advisoryLock,
];

export async function open() {
  const { Lab } = await import("../dist/verify/lab/lab.js");
  const lab = await Lab.open();
  const server = await lab.postgres({ config: { max_connections: "400" } });
  await server.sql(
    "CREATE TABLE raw_locks (name text PRIMARY KEY, owner text NOT NULL, expires timestamptz NOT NULL)",
  );
  const number = async (text) => Number(await server.sql(text));
  return {
    place: { url: server.url },
    commands: () => server.commands(),
    logBytes: () => number("SELECT pg_current_wal_insert_lsn() - '0/0'"),
    sizeBytes: (contestant) =>
      number(
        contestant === "raw"
          ? "SELECT pg_total_relation_size('raw_locks')"
          : `SELECT sum(pg_total_relation_size(oid)) FROM pg_class
              WHERE relkind = 'r' AND relnamespace = '${schemaOf(contestant)}'::regnamespace`,
      ),
    close: () => lab.close(),
  };
}

const sizes = { kind: "size", among: ["raw", "Holdfast"], yardstick: "raw" };
const MILLION = 1_000_000;

export const measurements = [
  {
    kind: "uncontended",
    among: [
      ...["raw", "advisory locks", "Holdfast", `Holdfast ${durable}`, `Holdfast ${sessions}`],
      "advisory-lock",
    ],
    yardstick: "raw",
    goals: [
      { figure: "timeRatio", goal: "≤ 1" },
      { figure: "timeRatio", goal: "≤ 1.2", who: `Holdfast ${durable}` },
      // It draws a token: 1.13 times the pair in a prototype.
      { figure: "timeRatio", goal: "≤ 1.13 × advisory locks", who: `Holdfast ${sessions}` },
      { figure: "throughputRatio", goal: "≥ 3" },
    ],
  },
  {
    kind: "busy",
    among: ["raw", "advisory locks", "Holdfast"],
    yardstick: "raw",
    goals: [
      { figure: "timeRatio", goal: "≤ 0.5" },
      { figure: "throughputRatio", goal: "≥ 2" },
    ],
  },
  {
    kind: "renewals",
    among: ["raw", "Holdfast"],
    yardstick: "raw",
    goals: [{ figure: "ratio", goal: "≤ 30" }],
  },
  {
    kind: "log",
    among: ["raw", "Holdfast", `Holdfast ${durable}`],
    yardstick: "raw",
    goals: [{ figure: "ratio", goal: "≤ 1.2" }],
  },
  {
    kind: "handover",
    among: ["NOTIFY", "Holdfast", `Holdfast ${sessions}`, "advisory locks", "advisory-lock"],
    yardstick: "NOTIFY",
    goals: [{ figure: "ratio", goal: "≤ 2.5" }],
  },
  {
    kind: "draining",
    among: ["NOTIFY", "Holdfast", "advisory locks", "advisory-lock"],
    yardstick: "NOTIFY",
    goals: [{ figure: "ratio", goal: "≥ 0.5" }],
  },
  {
    kind: "contention",
    among: ["raw", "Holdfast", `Holdfast ${sessions}`, "advisory locks", "advisory-lock"],
    yardstick: "advisory locks",
    goals: [
      { figure: "handoversPerSecond", goal: "≥ 3 × raw" },
      { figure: "handoversPerSecond", goal: "≥ 0.5 × advisory locks" },
      { figure: "commandsPerHandover", goal: "≤ 2.5" },
      { figure: "fairness", goal: "≥ 0.99" },
      { figure: "starved", goal: "≤ 0" },
      { figure: "heldTwice", goal: "≤ 0" },
    ],
  },
  {
    kind: "growth",
    among: ["Holdfast"],
    goals: [
      { figure: "bytesPerLease", goal: "≤ 600" },
      { figure: "commandsPerSecond", goal: "≤ 20" },
      { figure: "blockMs", goal: "≤ 10" },
      { figure: "lost", goal: "≤ 0" },
    ],
  },
  {
    kind: "recovery",
    among: ["raw", "Holdfast"],
    rounds: 5,
    goals: [{ figure: "p50Ms", goal: "≤ 50" }],
  },
  { ...sizes, label: "size, one name" },
  { ...sizes, id: "size-many", label: "size, 10,000 names", names: 10_000 },
  { ...sizes, id: "size-million", label: "size, one name", acquires: MILLION, byName: true },
  {
    ...sizes,
    id: "size-many-million",
    label: "size, 10,000 names",
    names: 10_000,
    acquires: MILLION,
    byName: true,
  },
];
