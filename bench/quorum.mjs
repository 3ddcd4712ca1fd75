import { randomUUID } from "node:crypto";
import { sleepMs } from "./lib/clock.mjs";
import { holdfast } from "./lib/holdfast.mjs";
import { countCommands } from "./lib/redis-commands.mjs";
import { heldBy, publish } from "./redis.mjs";

export const title = "a quorum of five Redis servers";

const NODES = 5;
const MAJORITY = 3;

async function clients({ urls }) {
  const { Redis } = await import("ioredis");
  return urls.map((url) => new Redis(url));
}

const disconnectAll = async (nodes) => {
  for (const node of nodes) node.disconnect();
};

/** The bare commands on the same client library, to all servers at once. */
const raw = {
  name: "raw",
  needs: ["ioredis"],
  pauseMs: 10,
  async open(place, { ttlMs }) {
    const nodes = await clients(place);
    const script =
      "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
    const [sha] = await Promise.all(nodes.map((node) => node.script("LOAD", script)));
    const release = ({ name, value }) =>
      Promise.all(nodes.map((node) => node.evalsha(sha, 1, name, value)));
    return {
      async acquire(name) {
        for (;;) {
          const value = randomUUID();
          const set = (node) => node.set(name, value, "PX", ttlMs, "NX");
          const votes = (await Promise.all(nodes.map(set))).filter((reply) => reply !== null);
          if (votes.length >= MAJORITY) return { name, value };
          await release({ name, value });
          await sleepMs(raw.pauseMs * Math.random());
        }
      },
      release,
      close: () => disconnectAll(nodes),
    };
  },
};

/** Resolves at the third reply. */
const majorityOf = (replies) =>
  new Promise((resolve, reject) => {
    let count = 0;
    const replied = (reply) => ++count === MAJORITY && resolve(reply);
    for (const reply of replies) reply.then(replied, reject);
  });

const load = (path) => import(new URL(`../dist/${path}`, import.meta.url).href);

/** The requests of Holdfast without its code: `codeOf(scripts)` on all servers, whose third reply ends a request. */
const bare = (name, codeOf) => ({
  name,
  needs: ["ioredis"],
  async open(place, { ttlMs }) {
    const nodes = await clients(place);
    const [{ SCRIPTS }, { encodeClaim, encodeRelease }] = await Promise.all(
      ["scripts.js", "requests.js"].map((file) => load(`stores/quorum/${file}`)),
    );
    const shas = await Promise.all(nodes.map((node) => node.script("LOAD", codeOf(SCRIPTS))));
    const markers = await Promise.all(nodes.map((node) => node.get("holdfast-quorum:marker")));
    const send = ({ keys, args }) =>
      majorityOf(
        nodes.map((node, i) =>
          node.evalsha(shas[i], 2, ...keys, markers[i], "60000", "unread none", ...args),
        ),
      );
    const usual = { ttlMs, seq: 1, atLeastMs: 0, register: "if-busy", holder: "bench" };
    let number = 0;
    return {
      async acquire(lane) {
        number = Math.max(number + 2, (Date.now() + 1) * 1_000);
        const ballot = { name: `${name} ${lane}`, id: randomUUID(), number };
        await send(encodeClaim({ ...ballot, ...usual }));
        return ballot;
      },
      release: (ballot) =>
        send(encodeRelease({ ...ballot, unused: false, wakes: true, keptOutMs: 0 })),
      close: () => disconnectAll(nodes),
    };
  },
});

const scriptsAlone = bare("scripts alone", ({ ballots }) => ballots.code);
const emptyScripts = bare("empty scripts", () => "return '+'");

/**
 * What a handover takes with bare commands: the release deletes and publishes on all servers; at the third message the
 * waiter claims on all, and goes on at the third reply.
 */
const bareCommands = {
  name: "bare commands",
  needs: ["ioredis"],
  async open(place, { ttlMs }) {
    const [nodes, subscribers] = [await clients(place), await clients(place)];
    const script =
      "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end redis.call('del', KEYS[1]) return redis.call('publish', KEYS[1], '')";
    const [sha] = await Promise.all(nodes.map((node) => node.script("LOAD", script)));
    let messages = 0;
    let wake = () => {};
    for (const subscriber of subscribers) {
      subscriber.on("message", () => ++messages === MAJORITY && wake());
    }
    const release = ({ name, value }) =>
      majorityOf(nodes.map((node) => node.evalsha(sha, 1, name, value)));
    /** Whether a majority has recorded the value. */
    const claim = (name, value) =>
      new Promise((resolve, reject) => {
        let [votes, replies] = [0, 0];
        const replied = (reply) => {
          if (reply !== null && ++votes === MAJORITY) resolve(true);
          if (++replies === NODES) resolve(votes >= MAJORITY);
        };
        for (const node of nodes) node.set(name, value, "PX", ttlMs, "NX").then(replied, reject);
      });
    let isListening = false;
    return {
      async acquire(name) {
        for (;;) {
          messages = 0;
          const woken = new Promise((resolve) => {
            wake = resolve;
          });
          const value = randomUUID();
          if (await claim(name, value)) return { name, value };
          await release({ name, value });
          if (isListening) await woken;
          else await Promise.all(subscribers.map((subscriber) => subscriber.subscribe(name)));
          isListening = true;
        }
      },
      release,
      close: () => disconnectAll([...nodes, ...subscribers]),
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
    const { RedlockMutex } = await import("redis-semaphore");
    const nodes = await clients(place);
    return {
      async acquire(name) {
        const mutex = new RedlockMutex(nodes, name, {
          lockTimeout: ttlMs,
          acquireTimeout: Number.MAX_SAFE_INTEGER,
        });
        await mutex.acquire();
        return mutex;
      },
      release: (mutex) => mutex.release(),
      close: () => disconnectAll(nodes),
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
    const nodes = await clients(place);
    const locks = new Redlock(nodes, { retryCount: -1 });
    // Every attempt that meets a held lock is an error event.
    locks.on("error", () => {});
    return {
      acquire: (name) =>
        kept ? heldBy((work) => locks.using([name], ttlMs, work)) : locks.acquire([name], ttlMs),
      release: (lock) => lock.release(),
      close: () => disconnectAll(nodes),
    };
  },
};

const redlockUniversal = {
  name: "redlock-universal",
  peer: true,
  slow: true,
  needs: ["ioredis", "redlock-universal"],
  pauseMs: 100,
  async open(place, { ttlMs }) {
    const { createRedlock, IoredisAdapter } = await import("redlock-universal");
    const nodes = await clients(place);
    const adapters = nodes.map((node) => new IoredisAdapter(node));
    return {
      async acquire(name) {
        const lock = createRedlock({ adapters, key: name, ttl: ttlMs, retryAttempts: 1e9 });
        const handle = await lock.acquire();
        return { release: () => lock.release(handle) };
      },
      release: (lock) => lock.release(),
      close: () => disconnectAll(nodes),
    };
  },
};

const connect = async ({ load }, place, options) => {
  const [{ createLocks }, { quorumStore }] = await Promise.all([
    load("index.js"),
    load("stores/quorum/index.js"),
  ]);
  return createLocks(quorumStore(await clients(place), { closeClients: true }), options);
};

const ours = holdfast(connect, { needs: ["ioredis"] });
const ONE_STOPPED = "one of five stopped";
const oursWithOneStopped = {
  ...ours.at(-1),
  name: ONE_STOPPED,
  open: (place, terms) => ours.at(-1).open({ ...place, urls: place.urlsWithOneStopped }, terms),
};

export const contestants = [
  raw,
  { ...publish, open: ({ urls }) => publish.open({ url: urls[0] }) },
  scriptsAlone,
  emptyScripts,
  bareCommands,
  ...ours,
  oursWithOneStopped,
  redisSemaphore,
  redlock,
  redlockUniversal,
];

export async function open() {
  const { Lab } = await import("../dist/verify/lab/lab.js");
  const lab = await Lab.open();
  const start = () => Promise.all(Array.from({ length: NODES }, () => lab.redis()));
  const [servers, others] = [await start(), await start()];
  const urlsOf = (some) => some.map(({ url }) => url);
  // A node is put into service while all nodes answer.
  for (const some of [servers, others]) {
    const locks = await connect({ load }, { urls: urlsOf(some) }, {});
    await (await locks.acquire("first")).release();
    await locks.close();
  }
  await others[0].pause();
  const counts = servers.map((server) => countCommands(server));
  return {
    place: { urls: urlsOf(servers), urlsWithOneStopped: urlsOf(others) },
    commands: async () =>
      (await Promise.all(counts.map((count) => count()))).reduce((a, b) => a + b, 0),
    close: () => lab.close(),
  };
}

const peers = ["redis-semaphore", "redlock 5", "redlock-universal"];

export const measurements = [
  {
    kind: "uncontended",
    among: ["raw", "Holdfast", scriptsAlone.name, emptyScripts.name, ...peers],
    yardstick: "raw",
    goals: [
      { figure: "timeRatio", goal: "≤ 1.1" },
      { figure: "throughputRatio", goal: "≥ 1.4" },
    ],
  },
  {
    kind: "uncontended",
    id: "one-stopped",
    label: "acquire + release with one of five servers stopped",
    among: ["Holdfast", ONE_STOPPED],
    yardstick: "Holdfast",
    goals: [{ figure: "timeRatio", goal: "≤ 1.2", who: ONE_STOPPED }],
  },
  {
    kind: "handover",
    among: ["publish", bareCommands.name, "Holdfast", ...peers],
    yardstick: "publish",
    goals: [{ figure: "ratio", goal: "≤ 2" }],
  },
  {
    kind: "draining",
    among: ["Holdfast", ...peers],
    yardstick: "redis-semaphore",
    rounds: 5,
    limitMs: 20_000,
    goals: [
      { figure: "handoversPerSecond", goal: "≥ 3 × best peer" },
      { figure: "failed", goal: "≤ 0" },
    ],
  },
  {
    kind: "contention",
    among: ["Holdfast", ...peers],
    yardstick: "redis-semaphore",
    goals: [
      { figure: "handoversPerSecond", goal: "≥ 3 × best peer" },
      { figure: "failed", goal: "≤ 0" },
      { figure: "starved", goal: "≤ 0" },
    ],
  },
  {
    kind: "growth",
    among: ["Holdfast"],
    goals: [
      { figure: "bytesPerLease", goal: "≤ 600" },
      { figure: "commandsPerSecond", goal: "≤ 100" },
      { figure: "blockMs", goal: "≤ 10" },
    ],
  },
];
