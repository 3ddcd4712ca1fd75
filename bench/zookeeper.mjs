import { holdfast } from "./lib/holdfast.mjs";
import { cpuMsOf } from "./lib/resources.mjs";
import {
  openClient,
  openNativeDriver,
  openPureDriver,
  recipeOn,
} from "./lib/zookeeper-recipes.mjs";

export const title = "ZooKeeper";

/** The bare requests on the same client: no queue, no proof, and nobody else may want the name. */
const raw = {
  name: "raw",
  async open(place, terms) {
    const client = await openClient(place, terms);
    return {
      async acquire(name) {
        const path = `/raw-${Buffer.from(name).toString("hex")}`;
        await client.create(path, { mode: "ephemeral" });
        return path;
      },
      release: (path) => client.delete(path),
      close: () => client.close(),
    };
  },
};

/** The floor of a handover. */
const watch = {
  name: "watch",
  async open(place, terms) {
    const client = await openClient(place, terms);
    const wakes = new Map();
    const pathOf = (name) => `/watch-${Buffer.from(name).toString("hex")}`;
    return {
      async listen(name) {
        const path = pathOf(name);
        const isNew = !wakes.has(path);
        const woken = new Promise((resolve) => wakes.set(path, resolve));
        if (isNew) {
          await client.create(path);
          await client.addWatch(path, {}, () => wakes.get(path)());
        }
        return { woken };
      },
      wake: (name) => client.setData(pathOf(name), ""),
      close: () => client.close(),
    };
  },
};

const recipe = (name, needs, openDriver) => ({
  name,
  peer: true,
  needs: [needs],
  open: async (place, terms) => recipeOn(await openDriver(place, terms), needs),
});
const pure = recipe("node-zookeeper-client", "node-zookeeper-client", openPureDriver);
const native = recipe("zookeeper (native)", "zookeeper", openNativeDriver);

const ours = holdfast(async ({ load }, { server }, options) => {
  const [{ createLocks }, { zookeeperStore }] = await Promise.all([
    load("index.js"),
    load("stores/zookeeper/index.js"),
  ]);
  return createLocks(zookeeperStore({ servers: [server] }), options);
});

export const contestants = [raw, watch, ...ours, pure, native];

export async function open() {
  const { Lab } = await import("../dist/verify/lab/lab.js");
  const lab = await Lab.open();
  // Sessions as long as the ttls need them.
  const config = { maxSessionTimeout: "120000" };
  const { servers } = await lab.zookeeper({ timing: "default", config });
  const [server] = servers;
  return {
    place: { server: `${server.address}:${server.port}` },
    commands: () => server.commands(),
    packets: () => server.packets(),
    cpuMs: () => cpuMsOf(server.pid),
    close: () => lab.close(),
  };
}

const peers = [pure.name, native.name];
const PROCESSES = 4;

export const measurements = [
  {
    kind: "uncontended",
    among: ["raw", "Holdfast", ...peers],
    yardstick: "raw",
    // Some thousands of pairs: until then, a pair takes several times the CPU.
    warmUpMs: 5_000,
    showsCpu: true,
    goals: [
      { figure: "timeRatio", goal: "≤ 1.12" },
      { figure: "timeRatio", goal: "≤ 1 × best peer" },
      { figure: "throughputRatio", goal: "≥ 1.8" },
      { figure: "throughputRatio", goal: "≥ 1 × best peer" },
    ],
  },
  {
    kind: "handover",
    among: ["watch", "Holdfast", ...peers],
    yardstick: "watch",
    goals: [
      { figure: "ratio", goal: "≤ 1.2" },
      { figure: "ratio", goal: "≤ 1 × best peer" },
    ],
  },
  {
    kind: "handover",
    id: "handover-five",
    label: "handover with five processes",
    processes: 5,
    among: ["watch", "Holdfast", ...peers],
    yardstick: "watch",
    goals: [{ figure: "ratio", goal: "≤ 1.75" }],
  },
  {
    kind: "draining",
    among: ["watch", "Holdfast", ...peers],
    yardstick: "watch",
    processes: PROCESSES,
    goals: [
      // The request, its reply, and an event for each process.
      { figure: "packetsPerHandover", goal: `≤ ${2 + PROCESSES}` },
      { figure: "handoversPerSecond", goal: "≥ 1 × best peer" },
    ],
  },
  {
    kind: "contention",
    among: ["Holdfast", ...peers],
    yardstick: native.name,
    rounds: 3,
    ms: 6_000,
    goals: [
      { figure: "handoversPerSecond", goal: "≥ 1 × best peer" },
      { figure: "commandsPerHandover", goal: "≤ 5" },
      { figure: "fairness", goal: "≥ 0.99" },
      { figure: "starved", goal: "≤ 0" },
      { figure: "heldTwice", goal: "≤ 0" },
    ],
  },
  {
    kind: "growth",
    // A round takes 20,000 locks one after another.
    rounds: 2,
    among: ["Holdfast"],
    goals: [
      { figure: "bytesPerLease", goal: "≤ 600" },
      // One session: its proofs, and now and then a look at its nodes.
      { figure: "commandsPerSecond", goal: "≤ 20" },
      { figure: "blockMs", goal: "≤ 10" },
      { figure: "lost", goal: "≤ 0" },
    ],
  },
  {
    kind: "list",
    among: ["Holdfast"],
    goals: [{ figure: "p50Ms", goal: "≤ 250" }],
  },
];
