import { spawnSync } from "node:child_process";
import { contest } from "../lib/contest.mjs";
import { median, spread } from "../lib/statistics.mjs";

/** The time to start a process. Here `open(place)` returns the arguments of Node. */
export const settings = { rounds: 15 };
export const quick = { rounds: 2 };

export const columns = ({ yardstick }) => ({
  p50Ms: ["p50", "ms"],
  aboveMs: [`on top of ${yardstick}`, "ms"],
});

export async function measure({ contestants, place, options, progress }) {
  const { rounds, yardstick } = options;
  const turn = async ({ name, open }) => {
    const { args, cwd } = await open(place);
    const fromMs = performance.now();
    const { status } = spawnSync(process.execPath, args, { cwd, stdio: "ignore" });
    if (status !== 0) throw new Error(`${name} ended with ${status}`);
    return performance.now() - fromMs;
  };
  const { turns, failures } = await contest(contestants, { rounds, turn, progress });
  const base = turns.get(yardstick);
  const figures = {};
  for (const [name, ms] of turns) {
    figures[name] = {
      p50Ms: median(ms),
      aboveMs: base && spread(ms.map((one, round) => one - base[round])),
    };
  }
  return { figures, failures };
}

export const plots = () => ({});
