import { join } from "node:path";
import { connect } from "../dist/index.js";
import { idempotent, keyedQueue, rateLimiter } from "../dist/lockfree/index.js";
import { openSqlite } from "../dist/stores/sqlite/index.js";
import { openFolder } from "./lib/folder.mjs";

export const title = "Without a lock";

/** The kind measures an acquire and a release of a name: here one step is the whole of it. */
const step = (name, open, more = {}) => ({
  name,
  ...more,
  async open(place) {
    const { run, close = async () => {} } = await open(place);
    return { acquire: run, release: async () => {}, close };
  },
});

const byName = (make) => {
  const made = new Map();
  return (name) => {
    const one = made.get(name) ?? make(name);
    made.set(name, one);
    return one;
  };
};

async function work() {}

const inProcess = [
  step(
    "p-queue",
    async () => {
      const { default: PQueue } = await import("p-queue");
      const queueOf = byName(() => new PQueue({ concurrency: 1 }));
      return { run: (name) => queueOf(name).add(work) };
    },
    { peer: true, needs: ["p-queue"] },
  ),
  step(
    "async-lock",
    async () => {
      const { default: AsyncLock } = await import("async-lock");
      const lock = new AsyncLock({ maxPending: Number.POSITIVE_INFINITY });
      return { run: (name) => lock.acquire(name, work) };
    },
    { peer: true, needs: ["async-lock"] },
  ),
  step("keyedQueue", async () => {
    const queue = keyedQueue();
    return { run: (name) => queue.run(name, work), close: () => queue.close() };
  }),
];

async function client({ url }) {
  const { Redis } = await import("ioredis");
  return new Redis(url);
}

const DELETE_IF = `
  if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
  return 0`;

/** Without a queue: only for keys that nobody else wants. */
const rawLock = step(
  "raw SET NX PX + compare-delete",
  async (place) => {
    const redis = await client(place);
    const sha = await redis.script("LOAD", DELETE_IF);
    let calls = 0;
    const run = async (name) => {
      const value = String(++calls);
      if ((await redis.set(`raw:${name}`, value, "PX", 30_000, "NX")) === null) {
        throw new Error(`${name} is locked`);
      }
      await work();
      await redis.evalsha(sha, 1, `raw:${name}`, value);
    };
    return { run, close: async () => redis.disconnect() };
  },
  { needs: ["ioredis"] },
);

/** New keys must not fill the memory; known ones must stay known. */
const keepMsOf = (isReplay) => (isReplay ? 3_600_000 : 10_000);

const GET_OR_BEGIN = `
  local known = redis.call('GET', KEYS[1])
  if known then return known end
  redis.call('SET', KEYS[1], 'running', 'PX', ARGV[1])
  return false`;

/** Each call has a key of its own; as a replay, each has the key of an earlier one. */
const keysFor = (isReplay) => {
  let calls = 0;
  return (name) => (isReplay ? name : `${name}:${++calls}`);
};

const rawKeyed = (label, isReplay) =>
  step(
    `raw script, ${label}`,
    async (place) => {
      const redis = await client(place);
      const sha = await redis.script("LOAD", GET_OR_BEGIN);
      const [keyOf, keepMs] = [keysFor(isReplay), keepMsOf(isReplay)];
      const run = async (name) => {
        const key = `raw:${keyOf(name)}`;
        const known = await redis.evalsha(sha, 1, key, keepMs);
        if (known === null) await redis.set(key, "done", "PX", keepMs);
      };
      return { run, close: async () => redis.disconnect() };
    },
    { needs: ["ioredis"] },
  );

/** The same with Holdfast; `call(locks, key, keepMs)`. */
const keyed = (label, isReplay, call) =>
  step(
    label,
    async ({ url }) => {
      const locks = await connect(url, { namespace: "keyed" });
      const [keyOf, keepMs] = [keysFor(isReplay), keepMsOf(isReplay)];
      return { run: (name) => call(locks, keyOf(name), keepMs), close: () => locks.close() };
    },
    { needs: ["ioredis"] },
  );

const firstCalls = [
  rawKeyed("first call", false),
  keyed("idempotent, first call", false, (locks, key, keep) =>
    idempotent(locks, key, { keep }, () => "done"),
  ),
  keyed("once", false, (locks, key, every) => locks.once(key, { every }, work)),
];

const replays = [
  rawKeyed("replay", true),
  keyed("idempotent, replay", true, (locks, key, keep) =>
    idempotent(locks, key, { keep }, () => "done"),
  ),
];

const onRedis = [
  step(
    "a lock for each task",
    async ({ url }) => {
      const locks = await connect(url, { namespace: "lock" });
      return { run: (name) => locks.withLock(name, work), close: () => locks.close() };
    },
    { needs: ["ioredis"] },
  ),
  step(
    "keyedQueue on Redis",
    async ({ url }) => {
      // Its own names: the contestants take turns, and must not wait for each other.
      const locks = await connect(url, { namespace: "queue" });
      const queue = keyedQueue(locks);
      const close = async () => {
        await queue.close();
        await locks.close();
      };
      return { run: (name) => queue.run(name, work), close };
    },
    { needs: ["ioredis"] },
  ),
];

/** So many that nobody is refused: a refusal may cost less. */
const PER_SECOND = 1_000_000;

/** The least that a limiter needs: one number for each name, by the server's time. */
const RAW_TAKE = `
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local full = math.max(redis.call('GET', KEYS[1]) or 0, now) + ARGV[1]
  if full - now > ARGV[2] + 0 then return {0, full - now} end
  redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000))
  return {1, full - now}`;

function checkAllowed(isAllowed) {
  if (!isAllowed) throw new Error("was refused");
}

const limiters = [
  step(
    "raw script",
    async (place) => {
      const redis = await client(place);
      const sha = await redis.script("LOAD", RAW_TAKE);
      const run = async (name) => {
        const [allowed] = await redis.evalsha(sha, 1, `raw:${name}`, 1, PER_SECOND);
        checkAllowed(allowed === 1);
      };
      return { run, close: async () => redis.disconnect() };
    },
    { needs: ["ioredis"] },
  ),
  step(
    "rateLimiter",
    async ({ url }) => {
      const locks = await connect(url);
      const numbers = { limit: PER_SECOND, per: "1s" };
      const limiterOf = byName((name) => rateLimiter(locks, name, numbers));
      const run = async (name) => checkAllowed((await limiterOf(name).take()).allowed);
      return { run, close: () => locks.close() };
    },
    { needs: ["ioredis"] },
  ),
  step(
    "rate-limiter-flexible",
    async (place) => {
      const { RateLimiterRedis } = await import("rate-limiter-flexible");
      const redis = await client(place);
      const limiter = new RateLimiterRedis({
        storeClient: redis,
        points: PER_SECOND,
        duration: 1,
      });
      return { run: (name) => limiter.consume(name), close: async () => redis.disconnect() };
    },
    { peer: true, needs: ["ioredis", "rate-limiter-flexible"] },
  ),
  step(
    "bottleneck",
    async (place) => {
      const { default: Bottleneck } = await import("bottleneck");
      const { Redis } = await import("ioredis");
      const connection = new Bottleneck.IORedisConnection({ client: await client(place), Redis });
      const reservoir = {
        reservoir: PER_SECOND,
        reservoirRefreshAmount: PER_SECOND,
        reservoirRefreshInterval: 1_000,
      };
      const limiterOf = byName((id) => new Bottleneck({ id, connection, ...reservoir }));
      return {
        run: (name) => limiterOf(name).schedule(work),
        close: () => connection.disconnect(),
      };
    },
    { peer: true, needs: ["ioredis", "bottleneck"] },
  ),
];

/** `urlOf(place)` names a store. */
const limiterOn = (store, urlOf, more) =>
  step(
    `rateLimiter on ${store}`,
    async (place) => {
      const locks = await connect(urlOf(place));
      const numbers = { limit: PER_SECOND, per: "1s" };
      const limiterOf = byName((name) => rateLimiter(locks, name, numbers));
      const run = async (name) => checkAllowed((await limiterOf(name).take()).allowed);
      return { run, close: () => locks.close() };
    },
    more,
  );

const limitersOnSqlite = [
  step("raw statement on SQLite", async ({ folder }) => {
    const db = await openSqlite(join(folder, "raw.db"));
    db.exec("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL");
    db.exec("CREATE TABLE meters (key TEXT PRIMARY KEY, full_us INTEGER NOT NULL) WITHOUT ROWID");
    const take = db.prepare(
      `INSERT INTO meters VALUES (:key, :now + 1) ON CONFLICT DO UPDATE
       SET full_us = max(full_us, :now) + 1 WHERE max(full_us, :now) + 1 - :now <= :burst`,
    );
    const run = async (key) => {
      const now = Date.now() * 1_000;
      checkAllowed(Number(take.run({ key, now, burst: PER_SECOND }).changes) === 1);
      // As with any asynchronous limiter, others run between its takes.
      await new Promise((resolve) => setImmediate(resolve));
    };
    return { run, close: async () => db.close() };
  }),
  limiterOn("SQLite", ({ folder }) => `sqlite:${join(folder, "locks.db")}`),
];

const limitersOnPostgres = [
  step(
    "raw statement on PostgreSQL",
    async ({ postgresUrl }) => {
      const { default: pg } = await import("pg");
      // A take is not waited for on the disk, as with rateLimiter.
      const options = "-c synchronous_commit=off";
      const pool = new pg.Pool({ connectionString: postgresUrl, options });
      await pool.query("CREATE TABLE raw_meters (key text PRIMARY KEY, full_us bigint NOT NULL)");
      const now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
      const text = `INSERT INTO raw_meters AS m VALUES ($1, ${now} + 1) ON CONFLICT (key) DO UPDATE
        SET full_us = greatest(m.full_us, ${now}) + 1
        WHERE greatest(m.full_us, ${now}) + 1 - ${now} <= $2`;
      const run = async (key) => {
        const values = [key, PER_SECOND];
        checkAllowed((await pool.query({ name: "take", text, values })).rowCount === 1);
      };
      return { run, close: () => pool.end() };
    },
    { needs: ["pg"] },
  ),
  limiterOn("PostgreSQL", ({ postgresUrl }) => postgresUrl, { needs: ["pg"] }),
];

export const contestants = [
  ...inProcess,
  rawLock,
  ...onRedis,
  ...firstCalls,
  ...replays,
  ...limiters,
  ...limitersOnSqlite,
  ...limitersOnPostgres,
];

export async function open() {
  const { Lab } = await import("../dist/verify/lab/lab.js");
  const lab = await Lab.open();
  const [redis, postgres] = await Promise.all([lab.redis(), lab.postgres()]);
  const { place, close } = await openFolder();
  return {
    place: { ...place, url: redis.url, postgresUrl: postgres.url },
    close: async () => {
      await close();
      await lab.close();
    },
  };
}

const names = (all) => all.map(({ name }) => name);
const ROUNDS = { kind: "uncontended", rounds: 9 };
const queues = { ...ROUNDS, operation: "tasks", among: names(inProcess), yardstick: "p-queue" };
const shared = { ...queues, among: names(onRedis), yardstick: "a lock for each task" };

const takes = { ...ROUNDS, operation: "takes" };
const keys = { ...ROUNDS, operation: "calls" };

export const measurements = [
  { ...queues, id: "queue", label: "tasks of 64 keys in one process" },
  { ...queues, id: "queue-one-key", label: "tasks of one key in one process", names: 1 },
  {
    ...shared,
    id: "queue-redis",
    label: "tasks of 64 keys on Redis",
    among: names([rawLock, ...onRedis]),
    yardstick: rawLock.name,
  },
  { ...shared, id: "queue-redis-one-key", label: "tasks of one key on Redis", names: 1 },
  {
    ...takes,
    id: "limiter",
    label: "limiters on Redis",
    among: names(limiters),
    yardstick: "raw script",
  },
  {
    ...takes,
    id: "limiter-sqlite",
    label: "limiters on SQLite",
    among: names(limitersOnSqlite),
    yardstick: "raw statement on SQLite",
  },
  {
    ...takes,
    id: "limiter-postgres",
    label: "limiters on PostgreSQL",
    among: names(limitersOnPostgres),
    yardstick: "raw statement on PostgreSQL",
  },
  {
    ...keys,
    id: "idempotent",
    label: "calls with a new key on Redis",
    among: names(firstCalls),
    yardstick: "raw script, first call",
  },
  {
    ...keys,
    id: "replay",
    label: "calls with a known key on Redis",
    among: names(replays),
    yardstick: "raw script, replay",
  },
];
