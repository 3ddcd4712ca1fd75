import { connect } from "../dist/index.js";
import { keyedQueue, rateLimiter } from "../dist/lockfree/index.js";

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

async function client({ url }) {
  const { Redis } = await import("ioredis");
  return new Redis(url);
}

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

export const contestants = [...inProcess, ...onRedis, ...limiters];

export async function open() {
  const { Lab } = await import("../dist/verify/lab/lab.js");
  const lab = await Lab.open();
  const server = await lab.redis();
  return { place: { url: server.url }, close: () => lab.close() };
}

const names = (all) => all.map(({ name }) => name);
const ROUNDS = { kind: "uncontended", rounds: 9 };
const queues = { ...ROUNDS, operation: "tasks", among: names(inProcess), yardstick: "p-queue" };
const shared = { ...queues, among: names(onRedis), yardstick: "a lock for each task" };

export const measurements = [
  { ...queues, id: "queue", label: "tasks of 64 keys in one process" },
  { ...queues, id: "queue-one-key", label: "tasks of one key in one process", names: 1 },
  { ...shared, id: "queue-redis", label: "tasks of 64 keys on Redis" },
  { ...shared, id: "queue-redis-one-key", label: "tasks of one key on Redis", names: 1 },
  {
    ...ROUNDS,
    id: "limiter",
    label: "limiters on Redis",
    operation: "takes",
    among: names(limiters),
    yardstick: "raw script",
  },
];
