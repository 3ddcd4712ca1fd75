import { contest } from "../lib/contest.mjs";
import { heapBytes } from "../lib/resources.mjs";
import { median, ratios } from "../lib/statistics.mjs";

/**
 * The cost of listening to the events: acquire + release, each contestant in its own
 * process. CPU time, because processes in turn meet a busy machine differently.
 */
export const settings = {
  rounds: 15,
  roundPairs: 20_000,
  pairs: 1_000_000,
  warmUpPairs: 50_000,
  // A call has a timeout.
  step: 50_000,
};
export const quick = { rounds: 2, roundPairs: 200, pairs: 1_000, warmUpPairs: 100, step: 500 };

export const flags = ["--expose-gc"];

export const columns = ({ yardstick, pairs }) => ({
  pairMs: ["CPU time of a pair", "ms"],
  ratio: [`÷ ${yardstick}`, "×"],
  grownBytes: [`growth of the heap in ${pairs.toLocaleString("en")} pairs`, "bytes"],
});

export async function measure({ contestants, start, options, progress }) {
  const { rounds, roundPairs, yardstick } = options;
  const processes = new Map();
  try {
    for (const { name } of contestants) processes.set(name, await start(name));
    const { turns, failures } = await contest(contestants, {
      rounds: rounds + 1,
      turn: ({ name }) => processes.get(name).call("cost", { pairs: roundPairs }),
      progress,
    });
    // The first round compiles.
    const times = new Map([...turns].map(([name, all]) => [name, all.slice(1)]));
    const figures = {};
    for (const [name, timesMs] of times) {
      progress(`${name}: growth`);
      figures[name] = {
        pairMs: median(timesMs),
        ratio: ratios(timesMs, times.get(yardstick)),
        grownBytes: await growth(processes.get(name), options),
      };
    }
    return { figures, failures };
  } finally {
    await Promise.all([...processes.values()].map((one) => one.kill()));
  }
}

async function growth({ call }, { pairs, warmUpPairs, step }) {
  await call("run", { from: 0, to: warmUpPairs });
  const beforeBytes = await call("heap");
  for (let from = 0; from < pairs; from += step) await call("run", { from, to: from + step });
  return (await call("heap")) - beforeBytes;
}

export const inChild = {
  async cost({ pairs }, { adapter }) {
    const before = process.cpuUsage();
    for (let i = 0; i < pairs; i++) await adapter.release(await adapter.acquire("name"));
    const { user, system } = process.cpuUsage(before);
    return (user + system) / 1_000 / pairs;
  },
  async run({ from, to }, { adapter }) {
    for (let i = from; i < to; i++) await adapter.release(await adapter.acquire(`name ${i}`));
  },
  heap: async () => heapBytes(),
};

export const plots = () => ({});
