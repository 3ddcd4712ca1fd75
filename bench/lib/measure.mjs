/** Shared by the benchmarks: alternating rounds, medians, tables. */

export function quantile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
}

const median = (values) => quantile(values, 0.5);

/**
 * Runs the contestants in turn, round by round, so that whatever else the machine does meets all of
 * them. `run(ms)` works for about that long and returns `{ done, elapsedMs, samplesMs? }`.
 */
export async function contest(contestants, { rounds = 7, roundMs = 400 } = {}) {
  const results = new Map(contestants.map(({ name }) => [name, { rates: [], samplesMs: [] }]));
  for (const { run } of contestants) await run(roundMs / 2);
  for (let round = 0; round < rounds; round++) {
    for (const { name, run } of contestants) {
      const { done, elapsedMs, samplesMs = [] } = await run(roundMs);
      const result = results.get(name);
      result.rates.push((done / elapsedMs) * 1_000);
      for (const sample of samplesMs) result.samplesMs.push(sample);
    }
  }
  return results;
}

/** Repeats `pair` one after another, timing each. */
export function sequentially(pair) {
  return async (ms) => {
    const samplesMs = [];
    const startedMs = performance.now();
    let nowMs = startedMs;
    while (nowMs - startedMs < ms) {
      await pair(0);
      const endedMs = performance.now();
      samplesMs.push(endedMs - nowMs);
      nowMs = endedMs;
    }
    return { done: samplesMs.length, elapsedMs: nowMs - startedMs, samplesMs };
  };
}

/** Keeps `width` pairs in flight; each lane has its number. */
export function inFlight(width, pair) {
  return async (ms) => {
    const startedMs = performance.now();
    const samplesMs = [];
    const lane = async (number) => {
      while (performance.now() - startedMs < ms) {
        const fromMs = performance.now();
        await pair(number);
        samplesMs.push(performance.now() - fromMs);
      }
    };
    await Promise.all(Array.from({ length: width }, (_, number) => lane(number)));
    return { done: samplesMs.length, elapsedMs: performance.now() - startedMs, samplesMs };
  };
}

/** Rates as a table, with each round's ratio to the yardstick's: the median of ratios, and their spread. */
export function rateTable(results, yardstick) {
  const base = results.get(yardstick).rates;
  const rows = [...results].map(([name, { rates, samplesMs }]) => {
    const ratios = rates.map((rate, round) => rate / base[round]);
    return [
      name,
      Math.round(median(rates)).toLocaleString("en"),
      formatMs(quantile(samplesMs, 0.5)),
      formatMs(quantile(samplesMs, 0.99)),
      `${median(ratios).toFixed(2)} (${Math.min(...ratios).toFixed(2)}–${Math.max(...ratios).toFixed(2)})`,
    ];
  });
  return table(["", "pairs/s", "p50", "p99", `÷ ${yardstick}`], rows);
}

export function table(head, rows) {
  const line = (cells) => `| ${cells.join(" | ")} |`;
  return [line(head), line(head.map((_, i) => (i === 0 ? "---" : "---:"))), ...rows.map(line)].join(
    "\n",
  );
}

export const formatMs = (ms) =>
  ms === undefined ? "–" : ms < 1 ? `${(ms * 1_000).toFixed(1)} µs` : `${ms.toFixed(2)} ms`;

/** The machine's monotonic clock: comparable between processes. */
export const machineMs = () => Number(process.hrtime.bigint()) / 1e6;
