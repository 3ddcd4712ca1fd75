import { connect } from "../dist/index.js";
import { changing, optimistic, postgresRow, redisText } from "../dist/lockfree/index.js";

export const title = "Without a lock";

const RETRIES = 1_000;

/** The least that a compare-and-set in Redis needs. */
const SET_IF = `if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1`;

/** `way(client, locks)` → `update(counter, work)`. */
const onRedis = (name, way, locking = false) => ({
  name,
  needs: ["ioredis"],
  async open({ redisUrl }, { ttlMs }) {
    const { Redis } = await import("ioredis");
    const client = new Redis(redisUrl);
    const locks = locking ? await connect(redisUrl, { ttl: ttlMs, wait: "1m" }) : null;
    return {
      make: (counter) => client.set(counter, "0"),
      count: async (counter) => Number(await client.get(counter)),
      update: await way(client, locks),
      async close() {
        await locks?.close();
        client.disconnect();
      },
    };
  },
});

const redis = [
  onRedis(
    "Redis, withLock",
    (client, locks) => (counter, work) =>
      locks.withLock(counter, async () => {
        const value = await client.get(counter);
        await work();
        await client.set(counter, String(Number(value) + 1));
      }),
    true,
  ),
  onRedis("Redis, optimistic", (client) => async (counter, work) => {
    const add = async (value) => {
      await work();
      return String(Number(value) + 1);
    };
    await optimistic({ ...changing(redisText(client, counter), add), retries: RETRIES });
  }),
  onRedis("Redis, raw", async (client) => {
    const sha = await client.script("LOAD", SET_IF);
    return async (counter, work) => {
      let value;
      do {
        value = await client.get(counter);
        await work();
      } while ((await client.evalsha(sha, 1, counter, value, String(Number(value) + 1))) === 0);
    };
  }),
];

const onPostgres = (name, way, locking = false) => ({
  name,
  needs: ["pg"],
  async open({ postgresUrl }, { ttlMs }) {
    const { default: pg } = await import("pg");
    const pool = new pg.Pool({ connectionString: postgresUrl, max: 4 });
    await pool.query(MAKE_TABLE);
    const locks = locking ? await connect(postgresUrl, { ttl: ttlMs, wait: "1m" }) : null;
    return {
      make: (counter) => pool.query("INSERT INTO counters VALUES ($1, 0, 0)", [counter]),
      count: async (counter) => (await pool.query(READ, [counter])).rows[0].count,
      update: way(pool, locks),
      async close() {
        await locks?.close();
        await pool.end();
      },
    };
  },
});

const MAKE_TABLE =
  "CREATE TABLE IF NOT EXISTS counters (name text PRIMARY KEY, count integer, version bigint)";
const READ = "SELECT count, version FROM counters WHERE name = $1";
const SET = "UPDATE counters SET count = $2 WHERE name = $1";
const SET_IF_SAME =
  "UPDATE counters SET count = $2, version = version + 1 WHERE name = $1 AND version = $3";

const postgres = [
  onPostgres(
    "PostgreSQL, withLock",
    (pool, locks) => (counter, work) =>
      locks.withLock(counter, async () => {
        const { rows } = await pool.query(READ, [counter]);
        await work();
        await pool.query(SET, [counter, rows[0].count + 1]);
      }),
    true,
  ),
  onPostgres("PostgreSQL, optimistic", (pool) => async (counter, work) => {
    const add = async ({ count }) => {
      await work();
      return { count: count + 1 };
    };
    const row = postgresRow(pool, "counters", { name: counter });
    await optimistic({ ...changing(row, add), retries: RETRIES });
  }),
  onPostgres("PostgreSQL, raw", (pool) => async (counter, work) => {
    for (;;) {
      const { count, version } = (await pool.query(READ, [counter])).rows[0];
      await work();
      const { rowCount } = await pool.query(SET_IF_SAME, [counter, count + 1, version]);
      if (rowCount === 1) return;
    }
  }),
];

export const contestants = [...redis, ...postgres];

export async function open() {
  const { Lab } = await import("../dist/verify/lab/lab.js");
  const lab = await Lab.open();
  const [{ url: redisUrl }, { url: postgresUrl }] = await Promise.all([
    lab.redis(),
    lab.postgres(),
  ]);
  return { place: { redisUrl, postgresUrl }, close: () => lab.close() };
}

const measurement = (id, store, all) => ({
  kind: "updates",
  id,
  store,
  label: `updates of one value in ${store}`,
  among: all.map(({ name }) => name),
  yardstick: `${store}, withLock`,
});

export const measurements = [
  measurement("redis", "Redis", redis),
  measurement("postgres", "PostgreSQL", postgres),
];
