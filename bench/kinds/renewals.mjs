import { interleave } from "../lib/contest.mjs";
import { barPlot } from "../lib/plots.mjs";
import { median, quantile, ratios } from "../lib/statistics.mjs";

/** All leases of a process are renewed at once. The yardstick renews one. */
export const settings = { rounds: 15, leases: 1_000, ms: 500, sliceMs: 1, ttlMs: 600_000 };
export const quick = { rounds: 2, leases: 20, ms: 20 };

export const columns = ({ yardstick, leases }) => ({
  leases: ["leases", "count"],
  timeMs: ["all renewed: p50", "ms"],
  p99Ms: ["p99", "ms"],
  ratio: [`${leases.toLocaleString("en")} ÷ one of ${yardstick}`, "×"],
});

export async function measure({ contestants, place, options, progress }) {
  const { rounds, leases, ms, sliceMs, ttlMs, yardstick } = options;
  const opened = [];
  try {
    for (const { name, open } of contestants) {
      const adapter = await open(place, { ttlMs, kept: true });
      opened.push({ name, adapter, handles: [] });
      const count = name === yardstick ? 1 : leases;
      const names = Array.from({ length: count }, (_, i) => `name ${i}`);
      opened.at(-1).handles = await Promise.all(names.map((one) => adapter.acquire(one)));
    }
    const operate = ({ adapter, handles }) => adapter.renewAll(handles);
    // Compiles what is hot.
    for (const one of opened) for (let i = 0; i < 3; i++) await operate(one);
    const times = new Map(opened.map(({ name }) => [name, []]));
    const all = new Map(opened.map(({ name }) => [name, []]));
    for (let round = 0; round < rounds; round++) {
      progress(`round ${round + 1} of ${rounds}`);
      for (const [name, samplesMs] of await interleave(opened, { ms, sliceMs, operate })) {
        times.get(name).push(median(samplesMs));
        all.get(name).push(...samplesMs);
      }
    }
    const figures = {};
    for (const { name, handles } of opened) {
      figures[name] = {
        leases: handles.length,
        timeMs: median(times.get(name)),
        p99Ms: quantile(all.get(name), 0.99),
        ratio: ratios(times.get(name), times.get(yardstick)),
      };
    }
    return { figures, failures: new Map() };
  } finally {
    for (const { adapter, handles } of opened) {
      await Promise.all(handles.map((handle) => adapter.release(handle)));
      await adapter.close();
    }
  }
}

export function plots({ figures }, { title, yardstick, leases }) {
  return {
    time: barPlot({
      title: `${title}: ${leases} leases renewed at once`,
      axis: `multiple of one renewal of ${yardstick} (less is better)`,
      unit: "×",
      bars: Object.entries(figures).map(([label, { ratio }]) => ({ label, value: ratio })),
      mark: 1,
    }),
  };
}
