import { contest, inFlight, interleave } from "../lib/contest.mjs";
import { barPlot } from "../lib/plots.mjs";
import { median, ratios, spread } from "../lib/statistics.mjs";

/** One attempt at a name that is held: it is answered "busy", and does not wait. */
export const settings = {
  rounds: 15,
  sequentialMs: 200,
  sliceMs: 1,
  width: 64,
  inFlightMs: 200,
  ttlMs: 600_000,
};
export const quick = { rounds: 2, sequentialMs: 15, inFlightMs: 20 };

export const columns = ({ yardstick, width }) => ({
  timeMs: ["1 in flight: p50", "ms"],
  timeRatio: [`p50 ÷ ${yardstick}`, "×"],
  answersPerSecond: [`${width} in flight: answers`, "/s"],
  throughputRatio: [`${width} in flight ÷ ${yardstick}`, "×"],
});

const NAME = "busy";

export async function measure({ contestants, place, options, progress }) {
  const { rounds, sequentialMs, sliceMs, width, inFlightMs, ttlMs, yardstick } = options;
  const opened = [];
  const closing = [];
  const openOne = async ({ open }) => {
    const adapter = await open(place, { ttlMs, kept: true });
    closing.push(() => adapter.close());
    return adapter;
  };
  try {
    for (const contestant of contestants) {
      const [holder, adapter] = [await openOne(contestant), await openOne(contestant)];
      const handle = await holder.acquire(NAME);
      closing.push(() => holder.release(handle));
      opened.push({ name: contestant.name, adapter });
    }
    const attempt = async ({ adapter }) => {
      if ((await adapter.tryAcquire(NAME)) !== null) throw new Error("was granted a held name");
    };
    const { turns, failures } = await contest(opened, {
      rounds: rounds + 1,
      turn: async (contestant) =>
        (await inFlight(width, inFlightMs, () => attempt(contestant))).perSecond,
      progress: (text) => progress(`${width} in flight, ${text}`),
    });
    const able = opened.filter(({ name }) => !failures.has(name));
    const times = new Map(able.map(({ name }) => [name, []]));
    for (let round = 0; round < rounds; round++) {
      progress(`1 in flight, round ${round + 1} of ${rounds}`);
      const samples = await interleave(able, { ms: sequentialMs, sliceMs, operate: attempt });
      for (const [name, samplesMs] of samples) times.get(name).push(median(samplesMs));
    }
    // The first round compiles what is hot.
    const rates = (name) => turns.get(name)?.slice(1);
    const figures = {};
    for (const { name } of able) {
      figures[name] = {
        timeMs: median(times.get(name)),
        timeRatio: ratios(times.get(name), times.get(yardstick)),
        answersPerSecond: spread(rates(name)).median,
        throughputRatio: ratios(rates(name), rates(yardstick)),
      };
    }
    return { figures, failures };
  } finally {
    for (const close of closing.reverse()) await close();
  }
}

export function plots({ figures }, { title, yardstick, width }) {
  return {
    throughput: barPlot({
      title: `${title}: attempts at a name that is held, ${width} in flight`,
      axis: `multiple of ${yardstick} (more is better)`,
      unit: "×",
      bars: Object.entries(figures).map(([label, of]) => ({ label, value: of.throughputRatio })),
      mark: 1,
    }),
  };
}
