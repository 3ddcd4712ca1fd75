/** The value below which `share` of the values lie, interpolated between neighbours. */
export function quantile(values, share) {
  if (values.length === 0) return Number.NaN;
  const sorted = Float64Array.from(values).sort();
  const at = (sorted.length - 1) * share;
  const low = sorted[Math.floor(at)];
  return low + (sorted[Math.ceil(at)] - low) * (at % 1);
}

export const median = (values) => quantile(values, 0.5);

/** The median, the smallest and the largest of the rounds. A ratio without a divisor is left out. */
export function spread(rounds) {
  const values = rounds.filter(Number.isFinite);
  return { median: median(values), low: quantile(values, 0), high: quantile(values, 1) };
}

/** Each round's value as a multiple of the yardstick's value in the same round, if that was measured. */
export function ratios(values, yardstick) {
  if (yardstick === undefined) return undefined;
  return spread(values.map((value, round) => value / yardstick[round]));
}

/** Jain's index: 1 when all have the same share, 1/n when one has it all, 0 when nobody has any. */
export function jain(shares) {
  const sum = shares.reduce((a, b) => a + b, 0);
  const squares = shares.reduce((a, b) => a + b * b, 0);
  return squares === 0 ? 0 : (sum * sum) / (shares.length * squares);
}
