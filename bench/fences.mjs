import { closeSync, fsyncSync, mkdirSync, openSync, renameSync, writeSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { openFileFence } from "../dist/fence/file.js";
import { fencedFetch, guardNode } from "../dist/fence/http.js";
import { memoryFence } from "../dist/fence/memory.js";
import { guardRow, postgresFence } from "../dist/fence/postgres.js";
import { redisFence } from "../dist/fence/redis.js";
import { sqliteFence } from "../dist/fence/sqlite.js";
import { openSqlite } from "../dist/stores/sqlite/index.js";
import { openFolder } from "./lib/folder.mjs";

export const title = "Fences";

const LEASE = { token: 5n, floor: 5n };

/** A write of one value, by the same means with and without the guard; `open(place, isGuarded)` → `{ write, close }`. */
const pair = (what, open, needs = []) =>
  [false, true].map((isGuarded) => ({
    name: `${what}, ${isGuarded ? "guarded" : "plain"}`,
    needs,
    async open(place) {
      const { write, close } = await open(place, isGuarded);
      // The kind measures an acquire and a release of a name: here a write is the whole of it.
      return { acquire: write, release: async () => {}, close };
    },
  }));

async function sqlite({ folder }, isGuarded) {
  const db = await openSqlite(join(folder, `${isGuarded}.db`));
  db.exec("PRAGMA journal_mode = WAL; CREATE TABLE cell (name TEXT PRIMARY KEY, value INTEGER)");
  const fence = sqliteFence(db);
  const set = db.prepare("INSERT OR REPLACE INTO cell VALUES (?, ?)");
  let value = 0;
  return {
    async write(name) {
      db.exec("BEGIN IMMEDIATE");
      if (isGuarded) fence.guardSync(db, name, LEASE);
      set.run(name, ++value);
      db.exec("COMMIT");
      // Like any asynchronous write it lets others run.
      await new Promise(setImmediate);
    },
    close: async () => db.close(),
  };
}

async function postgres({ postgresUrl }, isGuarded) {
  const { default: pg } = await import("pg");
  const pool = new pg.Pool({ connectionString: postgresUrl, max: 10 });
  const table = `cell_${isGuarded}`;
  await pool.query(`CREATE TABLE ${table} (name text PRIMARY KEY, value integer)`);
  const fence = postgresFence(pool, { schema: "bench" });
  const set = `INSERT INTO ${table} VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value`;
  let value = 0;
  return {
    async write(name) {
      const tx = await pool.connect();
      try {
        await tx.query("BEGIN");
        if (isGuarded) await fence.guard(tx, name, LEASE);
        await tx.query(set, [name, ++value]);
        await tx.query("COMMIT");
      } finally {
        tx.release();
      }
    },
    close: () => pool.end(),
  };
}

/** Check and write are one statement. */
async function postgresRow({ postgresUrl }) {
  const { default: pg } = await import("pg");
  const pool = new pg.Pool({ connectionString: postgresUrl, max: 10 });
  await pool.query(
    "CREATE TABLE cell_row (name text PRIMARY KEY, value integer, fence_token bigint)",
  );
  const known = new Set();
  let value = 0;
  return {
    async acquire(name) {
      if (!known.has(name)) {
        await pool.query("INSERT INTO cell_row VALUES ($1, 0) ON CONFLICT DO NOTHING", [name]);
        known.add(name);
      }
      const tx = await pool.connect();
      try {
        await tx.query("BEGIN");
        await guardRow(tx, "cell_row", { name }, LEASE, { set: { value: ++value } });
        await tx.query("COMMIT");
      } finally {
        tx.release();
      }
    },
    release: async () => {},
    close: () => pool.end(),
  };
}

async function redis({ redisUrl }, isGuarded) {
  const { Redis } = await import("ioredis");
  const client = new Redis(redisUrl);
  const fence = redisFence(client);
  let value = 0;
  return {
    async write(name) {
      if (!isGuarded) return client.set(`plain:${name}`, ++value);
      const tx = { commands: [["SET", `guarded:${name}`, ++value]] };
      await fence.guard(tx, name, LEASE);
      await fence.commit(tx);
    },
    close: async () => client.disconnect(),
  };
}

/** The plain write is as durable: a new file, synced, renamed, and its folder synced. */
async function files({ folder }, isGuarded) {
  const at = join(folder, `files-${isGuarded}`);
  mkdirSync(at);
  const fence = await openFileFence(at);
  let value = 0;
  const sync = (path, flags, text) => {
    const file = openSync(path, flags);
    if (text !== undefined) writeSync(file, text);
    fsyncSync(file);
    closeSync(file);
  };
  return {
    async write(name) {
      if (isGuarded) return fence.replace(name, LEASE, String(++value));
      const temporary = join(at, `${name}.new`);
      sync(temporary, "w", String(++value));
      renameSync(temporary, join(at, name));
      sync(at, "r");
      await new Promise(setImmediate);
    },
    close: async () => fence.close(),
  };
}

async function http(_place, isGuarded) {
  const fence = memoryFence();
  const cells = new Map();
  const server = createServer(async (request, response) => {
    const resource = () => decodeURIComponent(request.url);
    const fenced = isGuarded ? await guardNode({ fence, resource }, request, response) : null;
    if (fenced === false) return;
    let body = "";
    for await (const part of request) body += part;
    const set = () => cells.set(request.url, body);
    if (!isGuarded) set();
    else {
      await fence.transaction(async (tx) => {
        await fence.guard(tx, resource(), fenced);
        set();
      });
    }
    response.end();
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${server.address().port}/`;
  const send = isGuarded ? fencedFetch(LEASE) : fetch;
  let value = 0;
  return {
    async write(name) {
      const reply = await send(`${url}${encodeURIComponent(name)}`, {
        method: "PUT",
        body: String(++value),
      });
      if (!reply.ok) throw new Error(`the service replied ${reply.status}`);
      await reply.text();
    },
    async close() {
      server.closeAllConnections();
      server.close();
    },
  };
}

export const contestants = [
  ...pair("SQLite", sqlite),
  ...pair("PostgreSQL", postgres, ["pg"]),
  { name: "PostgreSQL, guardRow with set", needs: ["pg"], open: postgresRow },
  ...pair("Redis", redis, ["ioredis"]),
  ...pair("files", files),
  ...pair("HTTP", http),
];

export async function open() {
  const { Lab } = await import("../dist/verify/lab/lab.js");
  const { place, close } = await openFolder();
  const lab = await Lab.open();
  const [{ url: redisUrl }, { url: postgresUrl }] = await Promise.all([
    lab.redis(),
    lab.postgres(),
  ]);
  return {
    place: { ...place, redisUrl, postgresUrl },
    async close() {
      await lab.close();
      await close();
    },
  };
}

/**
 * The goal is at least 0.8 of the rate of plain writes, by one writer. Guarded and plain writes take turns, so load
 * meets both alike.
 */
const RATE_GOAL = "≤ 1.25";

const measurement = (id, what, goals = [], others = []) => ({
  kind: "uncontended",
  id,
  label: `a guarded write against a plain one, ${what}`,
  operation: "writes",
  width: 8,
  among: [`${what}, plain`, `${what}, guarded`, ...others],
  yardstick: `${what}, plain`,
  goals: goals.map((goal) => ({ who: `${what}, guarded`, figure: "timeRatio", goal })),
});

export const measurements = [
  measurement("sqlite-fence", "SQLite", [RATE_GOAL]),
  measurement("postgres-fence", "PostgreSQL", [RATE_GOAL], ["PostgreSQL, guardRow with set"]),
  measurement("redis-fence", "Redis", [RATE_GOAL]),
  measurement("file-fence", "files"),
  measurement("http-fence", "HTTP"),
];
