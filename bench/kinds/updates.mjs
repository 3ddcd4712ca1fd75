import { sleepMs } from "../lib/clock.mjs";
import { contest, inFlight } from "../lib/contest.mjs";
import { TERMS } from "../lib/contestant.mjs";
import { linePlot } from "../lib/plots.mjs";
import { median, ratios } from "../lib/statistics.mjs";

/** Read, work, write of one value by more and more writers at once. A lost update ends the measurement. */
export const settings = {
  rounds: 3,
  ms: 500,
  warmUpMs: 100,
  /** Between read and write. */
  workMs: 1,
  /** Each has connections of its own; the writers are spread over them. */
  clients: 4,
  mostWriters: 32,
};
export const quick = { rounds: 1, ms: 40, warmUpMs: 10, mostWriters: 2 };

export const columns = ({ yardstick, mostWriters }) => ({
  alone: ["1 writer", "/s"],
  aloneRatio: [`÷ ${yardstick}`, "×"],
  many: [`${mostWriters} writers`, "/s"],
  manyRatio: [`÷ ${yardstick}`, "×"],
  readsEach: [`${mostWriters} writers: reads for an update`, "count"],
});

/** 1, 2, 4, … */
const levels = (most) => Array.from({ length: Math.log2(most) + 1 }, (_, i) => 2 ** i);

export async function measure({ contestants, place, options, progress }) {
  const { rounds, ms, warmUpMs, workMs, clients, mostWriters, yardstick } = options;
  const opened = [];
  try {
    for (const { name, open } of contestants) {
      const adapters = [];
      opened.push({ name, adapters });
      for (let i = 0; i < clients; i++) adapters.push(await open(place, TERMS));
    }
    const turn = async ({ name, adapters }, round) => {
      const at = [];
      for (const writers of levels(mostWriters)) {
        const counter = `${name} ${round} ${writers}`;
        await adapters[0].make(counter);
        let reads = 0;
        const work = async () => {
          reads++;
          await sleepMs(workMs);
        };
        const { perSecond, done } = await inFlight(writers, round === 0 ? warmUpMs : ms, (lane) =>
          adapters[lane % clients].update(counter, work),
        );
        const there = await adapters[0].count(counter);
        if (there !== done) throw new Error(`${done} updates were made, and ${there} are there`);
        at.push({ writers, perSecond, readsEach: reads / done });
      }
      return at;
    };
    const { turns, failures } = await contest(opened, { rounds: rounds + 1, turn, progress });
    const counted = new Map([...turns].map(([name, all]) => [name, all.slice(1)]));
    const rates = (name, i) => counted.get(name)?.map((at) => at.at(i).perSecond);
    const figures = {};
    const series = [];
    for (const [name, all] of counted) {
      figures[name] = {
        alone: median(rates(name, 0)),
        aloneRatio: ratios(rates(name, 0), rates(yardstick, 0)),
        many: median(rates(name, -1)),
        manyRatio: ratios(rates(name, -1), rates(yardstick, -1)),
        readsEach: median(all.map((at) => at.at(-1).readsEach)),
      };
      const points = levels(mostWriters).map((writers, i) => [writers, median(rates(name, i))]);
      series.push({ label: name, points });
    }
    return { figures, failures, series };
  } finally {
    await Promise.all(opened.flatMap(({ adapters }) => adapters.map((one) => one.close())));
  }
}

export function plots({ series }, { title, store, workMs }) {
  return {
    updates: linePlot({
      title: `${title}: updates of one value in ${store}, ${workMs} ms of work each`,
      axis: "writers at once",
      unit: "/s",
      series,
    }),
  };
}
