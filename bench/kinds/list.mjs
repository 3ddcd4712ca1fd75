import { median, quantile } from "../lib/statistics.mjs";

/** One process lists all names that another one holds. */
export const settings = { names: 10_000, rounds: 15, width: 256 };
export const quick = { names: 200, rounds: 2 };

export const columns = ({ names }) => ({
  p50Ms: [`${names.toLocaleString("en")} names, p50`, "ms"],
  maxMs: ["max", "ms"],
  listed: ["listed", "count"],
});

export async function measure({ contestants, start, options, progress }) {
  const { names, rounds, width } = options;
  const figures = {};
  const failures = new Map();
  for (const { name } of contestants) {
    const processes = [];
    try {
      for (let i = 0; i < 2; i++) processes.push(await start(name));
      const [holder, reader] = processes;
      progress(`${name} takes ${names} names`);
      await holder.call("fill", { names, width });
      const samples = [];
      for (let round = 0; round <= rounds; round++) {
        progress(`${name}, round ${round} of ${rounds}`);
        samples.push(await reader.call("list", { names }));
      }
      // The first compiles what is hot.
      const timesMs = samples.slice(1).map(({ ms }) => ms);
      figures[name] = {
        p50Ms: median(timesMs),
        maxMs: quantile(timesMs, 1),
        listed: Math.min(...samples.map(({ listed }) => listed)),
      };
    } catch (error) {
      failures.set(name, error);
    } finally {
      await Promise.all(processes.map((one) => one.kill()));
    }
  }
  return { figures, failures };
}

export const inChild = {
  async fill({ names, width }, { adapter }) {
    let next = 0;
    await Promise.all(
      Array.from({ length: width }, async () => {
        while (next < names) await adapter.acquire(`listed ${next++}`);
      }),
    );
  },
  async list({ names }, { adapter }) {
    const fromMs = performance.now();
    const { length: listed } = await adapter.list(names);
    return { ms: performance.now() - fromMs, listed };
  },
};

export const plots = () => ({});
