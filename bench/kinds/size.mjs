import { TERMS } from "../lib/contestant.mjs";

/** How large the store is after many acquires of the same names; it cleans up as it does by default. */
export const settings = { acquires: 50_000, names: 1, width: 64 };
export const quick = { acquires: 200, names: 20 };

export const columns = ({ yardstick }) => ({
  acquires: ["acquires", "count"],
  names: ["names", "count"],
  bytes: ["tables and indexes", "bytes"],
  bytesPerName: ["for each name", "bytes"],
  ratio: [`size ÷ ${yardstick}`, "×"],
  seconds: ["took (s)", "count"],
});

const STEPS = 10;

export async function measure({ contestants, place, sizeBytes, options, progress }) {
  const { acquires, names, width, yardstick } = options;
  const figures = {};
  const failures = new Map();
  for (const { name, open } of contestants) {
    try {
      const adapter = await open(place, TERMS);
      const fromMs = performance.now();
      let next = 0;
      // Nobody waits for a name, or waiting would be measured.
      const lanes = Math.min(width, names);
      const lane = async (number) => {
        for (let i = next++; i < acquires; i = next++) {
          if (i % Math.ceil(acquires / STEPS) === 0) progress(`${name}: ${i} of ${acquires}`);
          const which = (i - (i % lanes)) % names;
          await adapter.release(await adapter.acquire(`name ${(which + number) % names}`));
        }
      };
      await Promise.all(Array.from({ length: lanes }, (_, number) => lane(number)));
      const seconds = (performance.now() - fromMs) / 1_000;
      await adapter.close();
      const bytes = await sizeBytes(name);
      figures[name] = { acquires, names, bytes, bytesPerName: bytes / names, seconds };
    } catch (error) {
      failures.set(name, error);
    }
  }
  const base = figures[yardstick]?.bytes;
  for (const of of Object.values(figures)) of.ratio = base && of.bytes / base;
  return { figures, failures };
}

export const plots = () => ({});
