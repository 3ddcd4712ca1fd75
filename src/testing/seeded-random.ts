import type { Random } from "../core/random.js";

/**
 * Draws the same numbers and grantIds for the same seed (mulberry32). The grantIds are no secrets:
 * for tests only.
 */
export function seededRandom(seed: number): Random {
  let state = seed >>> 0;
  const unit = (): number => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  let ids = 0;
  return {
    unit,
    grantId: () => `${seed}-${++ids}-${Math.floor(unit() * 2 ** 32).toString(36)}`.padEnd(24, "0"),
  };
}
