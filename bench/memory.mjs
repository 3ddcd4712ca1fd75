import { register } from "node:module";
import { holdfast } from "./lib/holdfast.mjs";

export const title = "Memory";

async function connectMemory({ load }, _place, options) {
  const { connect } = await load("index.js");
  return connect("memory:", options);
}

/** Lets core/events.js be loaded with functions that return at once. */
function removeEvents() {
  const hook = `export async function load(url, context, next) {
    const loaded = await next(url, context);
    if (!url.endsWith("/core/events.js")) return loaded;
    const whole = String(loaded.source);
    const source = whole.replace(/^export function (emit|publish)\\(.*\\{$/gm, "$& return;");
    if (source === whole) throw new Error("there is no emit in " + url);
    return { ...loaded, source };
  }`;
  register(`data:text/javascript,${encodeURIComponent(hook)}`);
}

export const contestants = [
  {
    name: "async-mutex",
    peer: true,
    needs: ["async-mutex"],
    async open() {
      const { Mutex } = await import("async-mutex");
      const mutexes = new Map();
      return {
        acquire(name) {
          const mutex = mutexes.get(name) ?? new Mutex();
          mutexes.set(name, mutex);
          return mutex.acquire();
        },
        release: async (release) => release(),
        close: async () => {},
      };
    },
  },
  ...holdfast(connectMemory),
  {
    ...holdfast(async ({ load }, place, options) => {
      removeEvents();
      await load("core/events.js");
      return connectMemory({ load }, place, options);
    }).at(-1),
    name: "without events",
  },
  {
    ...holdfast(async ({ load }, place, options) => {
      const { prometheusMetrics } = await load("observe/metrics.js");
      prometheusMetrics();
      return connectMemory({ load }, place, options);
    }).at(-1),
    name: "with metrics",
  },
];

export const open = async () => ({ place: {}, close: async () => {} });

const both = { among: ["async-mutex", "Holdfast"], yardstick: "async-mutex" };

// A mutex in memory has no lease, no token, no deadline and no list of who waits.
export const measurements = [
  {
    kind: "uncontended",
    ...both,
    goals: [{ figure: "throughputRatio", goal: "≥ 0.4" }],
  },
  {
    kind: "contention",
    ...both,
    contenders: 64,
    processes: 1,
    holdMs: 0,
    ms: 1_000,
    warmUpMs: 1_000,
    rounds: 9,
    goals: [
      { figure: "ratio", goal: "≥ 0.4" },
      { figure: "fairness", goal: "≥ 0.99" },
      { figure: "starved", goal: "≤ 0" },
    ],
  },
  {
    kind: "growth",
    among: ["Holdfast"],
    goals: [
      { figure: "bytesPerLease", goal: "≤ 600" },
      { figure: "blockMs", goal: "≤ 10" },
      { figure: "lost", goal: "≤ 0" },
    ],
  },
  {
    kind: "listeners",
    among: ["without events", "Holdfast", "with metrics"],
    yardstick: "without events",
    goals: [
      { figure: "ratio", goal: "≤ 1.1" },
      { figure: "ratio", goal: "≤ 8", who: "with metrics" },
      { figure: "grownBytes", goal: "≤ 1,000,000" },
      { figure: "grownBytes", goal: "≤ 1,000,000", who: "with metrics" },
    ],
  },
];
