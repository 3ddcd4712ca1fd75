import { sleepMs } from "./lib/clock.mjs";
import {
  expiresInMs,
  isAbsent,
  openClient,
  openNameQueue,
  openPredecessorQueue,
  openSession,
  secondsOf,
  toTheEdge,
} from "./lib/etcd-recipes.mjs";
import { holdfast } from "./lib/holdfast.mjs";

export const title = "etcd";

/** The bare commands on the same client. */
const raw = {
  name: "raw",
  pauseMs: 10,
  async open(place, terms) {
    const { client, lease, close } = await openSession(place, terms);
    return {
      async acquire(name) {
        const key = `raw/${name}`;
        const put = { key, value: "", lease };
        const take = { compare: [isAbsent(key)], success: [{ put }] };
        while (!(await client.txn(take)).succeeded) await sleepMs(raw.pauseMs);
        return key;
      },
      release: (key) => client.txn({ success: [{ delete: { key } }] }),
      close,
    };
  },
};

/** The floor of a handover. */
const watch = {
  name: "watch",
  async open(place) {
    const client = await openClient(place);
    const wakes = new Map();
    const watched = (key) =>
      new Promise((resolve) => {
        client.watch({ key }, { created: resolve, events: () => wakes.get(key)(), gap() {} });
      });
    return {
      async listen(name) {
        const key = `watch/${name}`;
        const isNew = !wakes.has(key);
        const woken = new Promise((resolve) => wakes.set(key, resolve));
        if (isNew) await watched(key);
        return { woken };
      },
      wake: (name) => client.txn({ success: [{ put: { key: `watch/${name}`, value: "" } }] }),
      close: () => client.close(),
    };
  },
};

// Two ways to wait, on the same client: what the second saves, and what it costs.

const predecessor = { name: "watch the predecessor", open: openPredecessorQueue };
const nameWatch = { name: "watch the name", open: openNameQueue };

async function peerClient({ endpoint }) {
  const { Etcd3 } = await import("etcd3");
  return new Etcd3({ hosts: `http://${endpoint}` });
}

/** Asks etcd when a peer's key expires, by a client that is not the peer's. */
async function expiryIn(place, range) {
  const client = await openClient(place);
  try {
    return await expiresInMs(client, range);
  } finally {
    await client.close();
  }
}

/** It does not wait, so the caller tries again. */
const lock = {
  name: "etcd3 lock",
  peer: true,
  needs: ["etcd3"],
  pauseMs: 10,
  async open(place, { ttlMs }) {
    const { EtcdLockFailedError } = await import("etcd3");
    const client = await peerClient(place);
    const attempt = (name) =>
      client
        .lock(`lock/${name}`)
        .ttl(secondsOf(ttlMs))
        .acquire()
        .catch((error) => {
          if (!(error instanceof EtcdLockFailedError)) throw error;
        });
    return {
      async acquire(name) {
        for (;;) {
          const held = await attempt(name);
          if (held !== undefined) return held;
          await sleepMs(lock.pauseMs);
        }
      },
      release: (held) => held.release(),
      close: async () => client.close(),
      expiresInMs: (name) => expiryIn(place, { key: `lock/${name}` }),
    };
  },
};

const election = {
  name: "etcd3 election",
  peer: true,
  needs: ["etcd3"],
  async open(place, { ttlMs }) {
    const client = await peerClient(place);
    return {
      acquire: (name) => client.election(name, secondsOf(ttlMs)).campaign("").wait(),
      release: (campaign) => campaign.resign(),
      close: async () => client.close(),
      expiresInMs: (name) =>
        expiryIn(place, { key: `election/${name}/`, rangeEnd: `election/${name}0` }),
    };
  },
};

const connected = holdfast(async ({ load }, { endpoint }, options) => {
  const [{ createLocks }, { etcdStore, openEtcdClient }] = await Promise.all([
    load("index.js"),
    load("stores/etcd/index.js"),
  ]);
  const client = await openEtcdClient({ endpoints: [endpoint] });
  return createLocks(etcdStore(client, { closeClient: true }), options);
});

const ours = connected.map((contestant) => ({
  ...contestant,
  async open(place, { ttlMs, ...terms }) {
    const adapter = await contestant.open(place, { ...terms, ttlMs: secondsOf(ttlMs) * 1_000 });
    const leftS = async (name) => (await adapter.expiresInMs(name)) / 1_000;
    return { ...adapter, expiresInMs: (name) => toTheEdge(() => leftS(name)) };
  },
}));

export const contestants = [raw, watch, ...ours, predecessor, nameWatch, lock, election];

export async function open() {
  const { Lab } = await import("../dist/verify/lab/lab.js");
  const lab = await Lab.open();
  const { servers } = await lab.etcd();
  const [server] = servers;
  return {
    place: { endpoint: `${server.address}:${server.port}` },
    commands: () => server.commands(),
    close: () => lab.close(),
  };
}

const recipes = ["watch the predecessor", "watch the name"];
const peers = ["etcd3 lock", "etcd3 election"];

export const measurements = [
  {
    kind: "uncontended",
    among: ["raw", "Holdfast", ...recipes, ...peers],
    yardstick: "raw",
    goals: [
      { figure: "timeRatio", goal: "≤ 1.05" },
      { figure: "throughputRatio", goal: "≥ 0.95" },
    ],
  },
  {
    kind: "handover",
    among: ["watch", "Holdfast", ...recipes, ...peers],
    yardstick: "watch",
    goals: [{ figure: "ratio", goal: "≤ 1.5" }],
  },
  {
    kind: "contention",
    among: ["Holdfast", ...recipes, ...peers],
    yardstick: "etcd3 election",
    // So long that a fair order shows: with three grants each, the odd one out costs 0.02 of the index.
    rounds: 3,
    ms: 6_000,
    goals: [
      { figure: "handoversPerSecond", goal: "≥ 2 × etcd3 election" },
      { figure: "commandsPerHandover", goal: "≤ 5" },
      { figure: "fairness", goal: "≥ 0.99" },
      { figure: "starved", goal: "≤ 0" },
      { figure: "heldTwice", goal: "≤ 0" },
    ],
  },
  {
    kind: "growth",
    // Each lock of etcd3 has a lease and a stream of its own: 10,000 take it minutes.
    among: ["Holdfast"],
    goals: [
      { figure: "bytesPerLease", goal: "≤ 600" },
      // One session: its renewals, and now and then a look at its keys.
      { figure: "commandsPerSecond", goal: "≤ 20" },
      { figure: "blockMs", goal: "≤ 10" },
      { figure: "lost", goal: "≤ 0" },
    ],
  },
  {
    kind: "recovery",
    among: ["Holdfast", ...peers],
    rounds: 5,
    ttlMs: 10_000,
    // The server looks for expired leases now and then; nobody can know before it does.
    goals: [{ figure: "p50Ms", goal: "≤ 1,000" }],
  },
];
