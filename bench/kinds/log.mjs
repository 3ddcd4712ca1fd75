import { contest } from "../lib/contest.mjs";
import { TERMS } from "../lib/contestant.mjs";
import { barPlot } from "../lib/plots.mjs";
import { ratios, spread } from "../lib/statistics.mjs";

/** How much an acquire and release adds to the server's log, 1 in flight. */
export const settings = { rounds: 10, pairs: 500, names: 100 };
export const quick = { rounds: 2, pairs: 20, names: 5 };

export const columns = ({ yardstick }) => ({
  bytesPerPair: ["log for a pair", "bytes"],
  ratio: [`log ÷ ${yardstick}`, "×"],
});

export async function measure({ contestants, place, logBytes, options, progress }) {
  const { rounds, pairs, names, yardstick } = options;
  const opened = [];
  try {
    for (const { name, open } of contestants) {
      opened.push({ name, adapter: await open(place, TERMS) });
    }
    const turn = async ({ adapter }) => {
      const before = await logBytes();
      for (let i = 0; i < pairs; i++) {
        await adapter.release(await adapter.acquire(`name ${i % names}`));
      }
      return ((await logBytes()) - before) / pairs;
    };
    // The first change of a page after a checkpoint puts the whole page into the log: the first round is left out.
    const { turns, failures } = await contest(opened, { rounds: rounds + 1, turn, progress });
    const bytes = (name) => turns.get(name)?.slice(1);
    const figures = {};
    for (const name of turns.keys()) {
      figures[name] = {
        bytesPerPair: spread(bytes(name)),
        ratio: ratios(bytes(name), bytes(yardstick)),
      };
    }
    return { figures, failures };
  } finally {
    await Promise.all(opened.map(({ adapter }) => adapter.close()));
  }
}

export function plots({ figures }, { title, yardstick }) {
  return {
    bytes: barPlot({
      title: `${title}: log of an acquire and release`,
      axis: `multiple of ${yardstick} (less is better)`,
      unit: "×",
      bars: Object.entries(figures).map(([label, { ratio }]) => ({ label, value: ratio })),
      mark: 1,
    }),
  };
}
