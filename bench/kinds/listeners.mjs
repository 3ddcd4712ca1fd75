import { contest, inFlight } from "../lib/contest.mjs";
import { heapBytes } from "../lib/resources.mjs";
import { median, ratios } from "../lib/statistics.mjs";

/** What it costs when somebody listens to the events: acquire + release, each contestant in its own process. */
export const settings = {
  rounds: 15,
  ms: 300,
  pairs: 1_000_000,
  warmUpPairs: 50_000,
  step: 50_000,
};
export const quick = { rounds: 2, ms: 20, pairs: 1_000, warmUpPairs: 100, step: 500 };

export const flags = ["--expose-gc"];

export const columns = ({ yardstick, pairs }) => ({
  pairMs: ["1 in flight: a pair", "ms"],
  ratio: [`÷ ${yardstick}`, "×"],
  pairs: ["then, pairs", "count"],
  grownBytes: [`growth of the heap in ${pairs.toLocaleString("en")} pairs`, "bytes"],
});

export async function measure({ contestants, start, options, progress }) {
  const { rounds, ms, pairs, yardstick } = options;
  const processes = new Map();
  try {
    for (const { name } of contestants) processes.set(name, await start(name));
    const { turns, failures } = await contest(contestants, {
      rounds: rounds + 1,
      turn: ({ name }) => processes.get(name).call("rate", { ms }),
      progress,
    });
    const times = new Map(
      // The first round compiles.
      [...turns].map(([name, rates]) => [name, rates.slice(1).map((rate) => 1_000 / rate)]),
    );
    const figures = {};
    for (const [name, timesMs] of times) {
      progress(`${name}: ${pairs} pairs`);
      figures[name] = {
        pairMs: median(timesMs),
        ratio: ratios(timesMs, times.get(yardstick)),
        pairs,
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
  // In parts, because a call has a timeout.
  for (let from = 0; from < pairs; from += step) await call("run", { from, to: from + step });
  return (await call("heap")) - beforeBytes;
}

export const inChild = {
  rate: ({ ms }, { adapter }) =>
    inFlight(1, ms, async () => adapter.release(await adapter.acquire("name"))),
  async run({ from, to }, { adapter }) {
    for (let i = from; i < to; i++) await adapter.release(await adapter.acquire(`name ${i}`));
  },
  heap: async () => heapBytes(),
};

export const plots = () => ({});
