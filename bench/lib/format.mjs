const inUnit = {
  ms: (value) =>
    value !== 0 && Math.abs(value) < 1 ? `${(value * 1_000).toFixed(1)} µs` : `${digits(value)} ms`,
  "%": (value) => `${value < 1 ? value.toFixed(2) : value.toFixed(1)} %`,
  "×": (value) => value.toFixed(2),
  index: (value) => value.toFixed(3),
  bytes: (value) => `${count(value)} B`,
  MB: (value) => `${value.toFixed(0)} MB`,
  "/s": (value) => `${value < 10 ? value.toFixed(1) : count(value)}/s`,
  count: (value) => (value < 10 ? String(Number(value.toFixed(1))) : count(value)),
};

const digits = (value) => (Math.abs(value) < 100 ? value.toFixed(2) : count(value));
const count = (value) => Math.round(value).toLocaleString("en");

/** A number, or a spread as "median (low–high)"; "–" for what was not measured. */
export function format(value, unit) {
  if (value === undefined || value === null || Number.isNaN(value)) return "–";
  if (typeof value === "number") return inUnit[unit](value);
  const { median, low, high } = value;
  if (low === high) return format(median, unit);
  return `${format(median, unit)} (${format(low, unit)}–${format(high, unit)})`;
}
