import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { sleepMs } from "./lib/clock.mjs";
import { holdfast } from "./lib/holdfast.mjs";
import { countCommands } from "./lib/redis-commands.mjs";

export const title = "Redis";

async function client({ url }) {
  const { Redis } = await import("ioredis");
  return new Redis(url);
}

/** The bare commands on the same client library. */
const raw = {
  name: "raw",
  needs: ["ioredis"],
  pauseMs: 10,
  async open(place, { ttlMs }) {
    const redis = await client(place);
    const sha = await redis.script(
      "LOAD",
      "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
    );
    return {
      async acquire(name) {
        const value = randomUUID();
        while ((await redis.set(name, value, "PX", ttlMs, "NX")) === null) {
          await sleepMs(raw.pauseMs);
        }
        return { name, value };
      },
      release: ({ name, value }) => redis.evalsha(sha, 1, name, value),
      close: async () => redis.disconnect(),
      expiresInMs: (name) => redis.pttl(name),
    };
  },
};

/** The least that a lock with a fencing token needs: the server's time and the last token, in the same step. */
const rawToken = {
  name: "raw with a token",
  needs: ["ioredis"],
  async open(place, { ttlMs }) {
    const redis = await client(place);
    const take = await redis.script(
      "LOAD",
      `local time = redis.call('TIME')
       local token = math.max(time[1] * 1000000 + time[2], (redis.call('GET', KEYS[2]) or 0) + 1)
       if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return nil end
       local text = string.format('%.0f', token)
       redis.call('SET', KEYS[2], text, 'PX', 60000)
       return text`,
    );
    const drop = await redis.script(
      "LOAD",
      "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
    );
    return {
      async acquire(name) {
        const value = randomUUID();
        const token = await redis.evalsha(take, 2, name, "last", value, ttlMs);
        return { name, value, token };
      },
      release: ({ name, value }) => redis.evalsha(drop, 1, name, value),
      close: async () => redis.disconnect(),
    };
  },
};

/** The floor of a handover. */
export const publish = {
  name: "publish",
  needs: ["ioredis"],
  async open(place) {
    const [redis, subscriber] = [await client(place), await client(place)];
    return {
      async listen(name) {
        const message = once(subscriber, "message");
        await subscriber.subscribe(name);
        return { woken: message.then(() => {}) };
      },
      wake: (name) => redis.publish(name, ""),
      async close() {
        redis.disconnect();
        subscriber.disconnect();
      },
    };
  },
};

// The peers wait with their defaults, but never give up.

const redisSemaphore = {
  name: "redis-semaphore",
  peer: true,
  needs: ["ioredis", "redis-semaphore"],
  pauseMs: 10,
  async open(place, { ttlMs }) {
    const { Mutex } = await import("redis-semaphore");
    const redis = await client(place);
    return {
      async acquire(name) {
        const mutex = new Mutex(redis, name, {
          lockTimeout: ttlMs,
          acquireTimeout: Number.MAX_SAFE_INTEGER,
        });
        await mutex.acquire();
        return mutex;
      },
      release: (mutex) => mutex.release(),
      close: async () => redis.disconnect(),
      expiresInMs: (name) => redis.pttl(`mutex:${name}`),
      isHeld: (mutex) => mutex.isAcquired,
    };
  },
};

const redlock = {
  name: "redlock 5",
  peer: true,
  slow: true,
  needs: ["ioredis", "redlock"],
  pauseMs: 200,
  async open(place, { ttlMs, kept }) {
    const { default: Redlock } = await import("redlock");
    const redis = await client(place);
    const locks = new Redlock([redis], { retryCount: -1 });
    // Every attempt that meets a held lock is an error event.
    locks.on("error", () => {});
    return {
      acquire: (name) =>
        kept ? heldBy((work) => locks.using([name], ttlMs, work)) : locks.acquire([name], ttlMs),
      release: (lock) => lock.release(),
      close: async () => redis.disconnect(),
      expiresInMs: (name) => redis.pttl(name),
    };
  },
};

const redlockUniversal = {
  name: "redlock-universal",
  peer: true,
  slow: true,
  needs: ["ioredis", "redlock-universal"],
  pauseMs: 100,
  async open(place, { ttlMs, kept }) {
    const { createLock, IoredisAdapter } = await import("redlock-universal");
    const redis = await client(place);
    const adapter = new IoredisAdapter(redis);
    return {
      async acquire(name) {
        const lock = createLock({ adapter, key: name, ttl: ttlMs, retryAttempts: 1e9 });
        if (kept) return heldBy((work) => lock.using(work));
        const handle = await lock.acquire();
        return { release: () => lock.release(handle) };
      },
      release: (lock) => lock.release(),
      close: async () => redis.disconnect(),
      expiresInMs: (name) => redis.pttl(name),
    };
  },
};

/** Acquire and release out of a function that holds while another runs. */
export function heldBy(using) {
  return new Promise((resolve, reject) => {
    const done = using(
      () =>
        new Promise((end) => {
          const release = () => {
            end();
            return done;
          };
          resolve({ release });
        }),
    );
    done.catch(reject);
  });
}

const ours = holdfast(
  async ({ load }, place, options) => {
    const [{ createLocks }, { redisStore }] = await Promise.all([
      load("index.js"),
      load("stores/redis/index.js"),
    ]);
    return createLocks(redisStore(await client(place), { closeClient: true }), options);
  },
  { needs: ["ioredis"] },
);

export const contestants = [
  raw,
  rawToken,
  publish,
  ...ours,
  redisSemaphore,
  redlock,
  redlockUniversal,
];

export async function open() {
  const { Lab } = await import("../dist/verify/lab/lab.js");
  const lab = await Lab.open();
  const server = await lab.redis();
  return {
    place: { url: server.url },
    commands: countCommands(server),
    close: () => lab.close(),
  };
}

const peers = ["redis-semaphore", "redlock 5", "redlock-universal"];

export const measurements = [
  {
    kind: "uncontended",
    among: ["raw", "raw with a token", "Holdfast", ...peers],
    yardstick: "raw",
    otherYardstick: "raw with a token",
    goals: [
      { figure: "timeRatio", goal: "≤ 1.08" },
      { figure: "otherRatio", goal: "≤ 1.15" },
      { figure: "throughputRatio", goal: "≥ 1" },
    ],
  },
  {
    kind: "handover",
    among: ["publish", "Holdfast", ...peers],
    yardstick: "publish",
    goals: [{ figure: "ratio", goal: "≤ 1.2" }],
  },
  {
    kind: "contention",
    among: ["raw", "Holdfast", ...peers],
    yardstick: "redis-semaphore",
    goals: [
      { figure: "handoversPerSecond", goal: "≥ 3 × best peer" },
      { figure: "commandsPerHandover", goal: "≤ 2.2" },
      { figure: "fairness", goal: "≥ 0.99" },
      { figure: "starved", goal: "≤ 0" },
    ],
  },
  {
    kind: "growth",
    among: ["Holdfast", ...peers],
    goals: [
      { figure: "bytesPerLease", goal: "≤ 600" },
      { figure: "commandsPerSecond", goal: "≤ 20" },
      { figure: "blockMs", goal: "≤ 10" },
    ],
  },
  {
    kind: "recovery",
    among: ["Holdfast", ...peers],
    goals: [{ figure: "p50Ms", goal: "≤ 20" }],
  },
  {
    kind: "recovery",
    id: "recovery-waiter",
    label: "recovery, the first waiter killed",
    killed: "waiter",
    among: ["Holdfast", ...peers],
    goals: [{ figure: "p50Ms", goal: "≤ 10" }],
  },
];
