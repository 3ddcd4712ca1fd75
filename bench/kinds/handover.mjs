import { machineMs, sleepMs } from "../lib/clock.mjs";
import { contest } from "../lib/contest.mjs";
import { barPlot, distributionPlot } from "../lib/plots.mjs";
import { allStarted } from "../lib/processes.mjs";
import { rssBytes } from "../lib/resources.mjs";
import { median, quantile, ratios } from "../lib/statistics.mjs";

/**
 * From the call of release in one process to the waiter running in another. Further processes wait behind that
 * one, except for a waker without a lock, which has no queue.
 */
export const settings = { processes: 2, rounds: 15, turnMs: 600, idleMs: 5_000, warmUps: 3 };
export const quick = { rounds: 1, turnMs: 30, idleMs: 100, warmUps: 1 };

export const columns = ({ yardstick }) => ({
  p50Ms: ["p50", "ms"],
  p99Ms: ["p99", "ms"],
  maxMs: ["max", "ms"],
  ratio: [`p50 ÷ ${yardstick}`, "×"],
  samples: ["samples", "count"],
  idleCpuPercent: ["idle waiter's CPU", "%"],
  rssMegabytes: ["its process", "MB"],
});

const NAME = "name";
/** By when a waiter has surely left its ticket, or listens. */
const SETTLED_MS = 10;

export async function measure({ contestants, start, options, progress }) {
  const { processes, rounds, turnMs, idleMs, warmUps, yardstick } = options;
  const pairs = new Map();
  const open = async ({ name }) => {
    const starts = Array.from({ length: processes }, () => start(name));
    const [holder, waiter, ...others] = await allStarted(starts);
    pairs.set(name, { holder, waiter, others });
    // Compiles what is hot, and learns of the other.
    for (let i = 0; i < warmUps; i++) await handOver(pairs.get(name), SETTLED_MS);
  };
  const turn = async ({ name, pauseMs = SETTLED_MS }) => {
    const samplesMs = [];
    const fromMs = performance.now();
    do {
      const holdMs = SETTLED_MS + Math.random() * pauseMs;
      samplesMs.push(await handOver(pairs.get(name), holdMs));
    } while (performance.now() - fromMs < turnMs);
    return samplesMs;
  };
  const failures = new Map();
  const inTurn = async (rounds, turn, progress) => {
    const able = contestants.filter(({ name }) => !failures.has(name));
    const result = await contest(able, { rounds, turn, progress });
    for (const [name, error] of result.failures) failures.set(name, error);
    return result.turns;
  };
  try {
    await inTurn(1, open, () => progress("starting"));
    const turns = await inTurn(rounds, turn, progress);
    const idles = await inTurn(
      1,
      ({ name }) => idle(pairs.get(name), idleMs),
      () => progress("idle"),
    );
    const samples = {};
    const figures = {};
    for (const [name, [resources]] of idles) {
      const all = turns.get(name);
      samples[name] = all.flat();
      figures[name] = {
        p50Ms: median(samples[name]),
        p99Ms: quantile(samples[name], 0.99),
        maxMs: quantile(samples[name], 1),
        ratio: ratios(all.map(median), turns.get(yardstick)?.map(median)),
        samples: samples[name].length,
        ...resources,
      };
    }
    return { figures, failures, samples };
  } finally {
    for (const { holder, waiter, others } of pairs.values())
      await Promise.all([holder, waiter, ...others].map((one) => one.kill()));
  }
}

async function handOver({ holder, waiter, others }, holdMs) {
  await holder.call("hold");
  await waiter.call("ask");
  if (others.length > 0) await sleepMs(SETTLED_MS);
  for (const one of others) await one.call("askBehind");
  await sleepMs(holdMs);
  // All at once: if another is first after all, it has to release the name.
  const [grantedMs, releasedMs] = await Promise.all([
    waiter.call("granted"),
    holder.call("release"),
    ...others.map((one) => one.call("granted")),
  ]);
  return grantedMs - releasedMs;
}

async function idle({ holder, waiter }, idleMs) {
  await holder.call("hold");
  await waiter.call("ask");
  await waiter.call("startCpu");
  await sleepMs(idleMs);
  const idleCpuPercent = await waiter.call("readCpu");
  const rssMegabytes = (await waiter.call("rss")) / 1e6;
  await Promise.all([waiter.call("granted"), holder.call("release")]);
  return { idleCpuPercent, rssMegabytes };
}

export const inChild = {
  async hold(_, self) {
    self.handle = await self.adapter.acquire?.(NAME);
  },
  async release(_, { adapter, handle }) {
    const atMs = machineMs();
    await (adapter.wake === undefined ? adapter.release(handle) : adapter.wake(NAME));
    return atMs;
  },
  async ask(_, self) {
    const { adapter } = self;
    const asked =
      adapter.listen === undefined ? adapter.acquire(NAME) : (await adapter.listen(NAME)).woken;
    self.granted = asked.then((handle) => ({ handle, atMs: machineMs() }));
  },
  async askBehind(_, self) {
    const { adapter } = self;
    self.granted = adapter.acquire?.(NAME).then((handle) => ({ handle, atMs: machineMs() }));
  },
  async granted(_, { adapter, granted }) {
    if (granted === undefined) return null;
    const { handle, atMs } = await granted;
    await adapter.release?.(handle);
    return atMs;
  },
  async rss() {
    return rssBytes();
  },
};

export function plots({ figures, samples }, { title, processes, yardstick }) {
  const axis = "release → the waiter runs";
  const drawn = {
    latency: distributionPlot({
      title: `${title}: handover between two of ${processes} processes`,
      axis,
      unit: "ms",
      series: Object.entries(samples).map(([label, values]) => ({ label, values })),
    }),
  };
  if (figures[yardstick] === undefined) return drawn;
  drawn.ratio = barPlot({
    title: `${title}: handover between two of ${processes} processes`,
    axis: `p50 as a multiple of ${yardstick} (less is better)`,
    unit: "×",
    bars: Object.entries(figures).map(([label, { ratio }]) => ({ label, value: ratio })),
    mark: 1,
  });
  return drawn;
}
