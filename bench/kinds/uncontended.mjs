import { contest, inFlight, interleave } from "../lib/contest.mjs";
import { TERMS } from "../lib/contestant.mjs";
import { barPlot } from "../lib/plots.mjs";
import { startCpuMs } from "../lib/resources.mjs";
import { median, quantile, ratios, spread } from "../lib/statistics.mjs";

/** Acquire + release of names that nobody else wants, within this process. */
export const settings = {
  rounds: 15,
  sequentialMs: 300,
  sliceMs: 1,
  width: 64,
  /** How many names those in flight share. */
  names: Number.POSITIVE_INFINITY,
  inFlightMs: 200,
  /** The first round, which does not count. */
  warmUpMs: 200,
  operation: "pairs",
  /** A further contestant that the others are divided by, with 1 in flight. */
  otherYardstick: null,
  /** Whether the CPU time of a pair is shown, which depends less on the load of the machine; needs the probe `cpuMs`. */
  showsCpu: false,
};
const ONE = {
  pairs: "acquire + release",
  writes: "a write",
  tasks: "a task",
  takes: "a take",
  calls: "a call",
};
export const quick = { rounds: 2, sequentialMs: 15, inFlightMs: 20, warmUpMs: 20 };

export const columns = ({ yardstick, otherYardstick, width, operation, showsCpu }) => ({
  timeMs: ["1 in flight: p50", "ms"],
  p99Ms: ["p99", "ms"],
  timeRatio: [`p50 ÷ ${yardstick}`, "×"],
  ...(otherYardstick && { otherRatio: [`p50 ÷ ${otherYardstick}`, "×"] }),
  pairsPerSecond: [`${width} in flight: ${operation}`, "/s"],
  throughputRatio: [`${width} in flight ÷ ${yardstick}`, "×"],
  ...(showsCpu && {
    clientCpuMs: [`${width} in flight: CPU of the client a pair`, "ms"],
    serverCpuMs: ["of the server", "ms"],
  }),
});

export async function measure({ contestants, place, options, progress, cpuMs = () => 0 }) {
  const {
    rounds,
    sequentialMs,
    sliceMs,
    width,
    names,
    inFlightMs,
    warmUpMs,
    yardstick,
    otherYardstick,
  } = options;
  const opened = [];
  const close = () => Promise.all(opened.map(({ adapter }) => adapter.close()));
  try {
    for (const { name, open } of contestants) {
      opened.push({ name, adapter: await open(place, TERMS) });
    }
    const pair = async ({ adapter }, lane) =>
      adapter.release(await adapter.acquire(`name ${lane % names}`));
    const turn = async (contestant, round) => {
      const [clientMs, serverMs] = [startCpuMs(), cpuMs()];
      const { perSecond, done } = await inFlight(
        width,
        round === 0 ? warmUpMs : inFlightMs,
        (lane) => pair(contestant, lane),
      );
      return { perSecond, done, clientMs: clientMs(), serverMs: cpuMs() - serverMs };
    };
    // Many in flight first: by then, everybody's code is compiled, as in a process that has run for a while.
    const { turns, failures } = await contest(opened, {
      rounds: rounds + 1,
      turn,
      progress: (text) => progress(`${width} in flight, ${text}`),
    });
    const sequential = new Map(opened.map(({ name }) => [name, []]));
    for (let round = 0; round < rounds; round++) {
      progress(`1 in flight, round ${round + 1} of ${rounds}`);
      const samples = await interleave(opened, {
        ms: sequentialMs,
        sliceMs,
        operate: (contestant) => pair(contestant, 0),
      });
      for (const [name, samplesMs] of samples) {
        sequential.get(name).push({ p50Ms: median(samplesMs), p99Ms: quantile(samplesMs, 0.99) });
      }
    }
    const counted = new Map([...turns].map(([name, all]) => [name, all.slice(1)]));
    const rates = new Map(
      [...counted].map(([name, all]) => [name, all.map(({ perSecond }) => perSecond)]),
    );
    const msPerPair = (name, key) => {
      const sum = (of) => counted.get(name).reduce((total, one) => total + one[of], 0);
      return sum(key) / sum("done");
    };
    const times = new Map(
      [...sequential].map(([name, all]) => [name, all.map((one) => one.p50Ms)]),
    );
    const figures = Object.fromEntries(
      [...rates.keys()].map((name) => [
        name,
        {
          timeMs: median(times.get(name)),
          p99Ms: median(sequential.get(name).map((one) => one.p99Ms)),
          timeRatio: ratios(times.get(name), times.get(yardstick)),
          ...(times.has(otherYardstick) && {
            otherRatio: ratios(times.get(name), times.get(otherYardstick)),
          }),
          pairsPerSecond: spread(rates.get(name)).median,
          throughputRatio: ratios(rates.get(name), rates.get(yardstick)),
          clientCpuMs: msPerPair(name, "clientMs"),
          serverCpuMs: msPerPair(name, "serverMs"),
        },
      ]),
    );
    return { figures, failures };
  } finally {
    await close();
  }
}

export function plots({ figures }, { title, yardstick, width, operation }) {
  const bars = (key) => Object.entries(figures).map(([label, of]) => ({ label, value: of[key] }));
  return {
    time: barPlot({
      title: `${title}: time of ${ONE[operation]}, 1 in flight`,
      axis: `multiple of ${yardstick} (less is better)`,
      unit: "×",
      bars: bars("timeRatio"),
      mark: 1,
    }),
    throughput: barPlot({
      title: `${title}: throughput, ${width} in flight`,
      axis: `multiple of ${yardstick} (more is better)`,
      unit: "×",
      bars: bars("throughputRatio"),
      mark: 1,
    }),
  };
}
