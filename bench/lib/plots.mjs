import { format } from "./format.mjs";

const WIDTH = 720;
const LEFT = 190;
const RIGHT = 90;
const TOP = 44;
const ROW = 30;
const PLOT = WIDTH - LEFT - RIGHT;
/** Told apart without red and green, on white and on black. */
const COLOURS = ["#4477aa", "#ee6677", "#ccbb44", "#228833", "#66ccee", "#aa3377", "#999999"];
/** A wider range than this is shown on a logarithmic axis. */
const WIDE = 30;

const STYLE = `
  text { font: 13px system-ui, sans-serif; fill: #222; }
  .title { font-weight: 600; font-size: 15px; }
  .small { font-size: 11px; fill: #666; }
  .grid { stroke: #ddd; } .axis, .whisker { stroke: #444; } .mark { stroke: #444; stroke-dasharray: 4 3; }
  .bar { fill: ${COLOURS[0]}; } .line { fill: none; stroke-width: 2; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6e6e6; } .small { fill: #aaa; }
    .grid { stroke: #3a3a3a; } .axis, .whisker, .mark { stroke: #bbb; }
  }`;

/**
 * A bar each, whiskers from low to high, a dashed line at `mark`.
 * `bars`: `{ label, value }`, where value is a number or a spread.
 */
export function barPlot({ title, axis, unit, bars, mark }) {
  const spreads = bars.map(({ label, value }) => ({ label, ...asSpread(value) })).filter(isNumber);
  const values = spreads.flatMap(({ median, low, high }) => [median, low, high]);
  const scale = scaleFor(Number.isFinite(mark) ? [...values, mark] : values, { fromZero: true });
  const bottom = TOP + spreads.length * ROW;
  const rows = spreads.map(({ label, median, low, high }, i) => {
    const y = TOP + i * ROW + ROW / 2;
    const [end, from, to] = [median, low, high].map(scale.at);
    return [
      text(LEFT - 10, y + 4, label, 'text-anchor="end"'),
      `<rect class="bar" x="${LEFT}" y="${y - 8}" width="${round(end - LEFT)}" height="16"/>`,
      line("whisker", from, y, to, y),
      line("whisker", from, y - 4, from, y + 4),
      line("whisker", to, y - 4, to, y + 4),
      text(Math.max(end, to) + 8, y + 4, format(median, unit)),
    ].join("\n");
  });
  const at = !Number.isFinite(mark)
    ? ""
    : line("mark", scale.at(mark), TOP, scale.at(mark), bottom);
  return svg(title, bottom + 44, [xAxis(scale, axis, unit, bottom), ...rows, at]);
}

/** The share of samples that took no longer than x. `series`: `{ label, values }`. */
export function distributionPlot({ title, axis, unit, series }) {
  const shown = series
    .map((one) => ({ ...one, values: one.values.filter(Number.isFinite).sort((a, b) => a - b) }))
    .filter(({ values }) => values.length > 0);
  const scale = scaleFor(
    shown.flatMap(({ values }) => [values[0], values.at(-1)]),
    { fromZero: false },
  );
  const height = 220;
  const bottom = TOP + height;
  const y = (share) => round(bottom - share * height);
  const shares = [0, 0.5, 0.9, 0.99, 1].map((share) =>
    [
      line("grid", LEFT, y(share), LEFT + PLOT, y(share)),
      // 0.99 has its line, and no room for its name.
      share === 0.99
        ? ""
        : text(LEFT - 10, y(share) + 4, `${share * 100} %`, 'class="small" text-anchor="end"'),
    ].join(""),
  );
  const lines = shown.map(({ values }, i) => {
    const points = steps(values, 200).map(
      ([value, share]) => `${round(scale.at(value))},${y(share)}`,
    );
    return `<polyline class="line" stroke="${COLOURS[i % COLOURS.length]}" points="${points.join(" ")}"/>`;
  });
  const legend = shown.map(({ label, values }, i) =>
    legendLine(`${label} (${values.length} samples)`, i, bottom),
  );
  const body = [xAxis(scale, axis, unit, bottom), ...shares, ...lines, ...legend];
  return svg(title, bottom + 58 + shown.length * 20, body);
}

/** Lines through points. `series`: `{ label, points: [[x, y]] }`; `unit` is that of y. */
export function linePlot({ title, axis, unit, series }) {
  const points = series.flatMap((one) => one.points);
  const xs = [...new Set(points.map(([x]) => x))].sort((a, b) => a - b);
  // Equally far apart, because each is a multiple of the one before.
  const apart = PLOT / Math.max(1, xs.length - 1);
  const scale = { at: (x) => round(LEFT + xs.indexOf(x) * apart), ticks: xs, note: "" };
  const heights = scaleFor(
    points.map(([, y]) => y),
    { fromZero: true },
  );
  const height = 260;
  const bottom = TOP + height;
  const y = (value) => round(bottom - ((heights.at(value) - LEFT) / PLOT) * height);
  const grid = heights.ticks.map((tick) =>
    [
      line("grid", LEFT, y(tick), LEFT + PLOT, y(tick)),
      text(LEFT - 10, y(tick) + 4, format(tick, unit), 'class="small" text-anchor="end"'),
    ].join(""),
  );
  const lines = series.map((one, i) => {
    const at = one.points.map(([x, value]) => `${scale.at(x)},${y(value)}`);
    return `<polyline class="line" stroke="${COLOURS[i % COLOURS.length]}" points="${at.join(" ")}"/>`;
  });
  const legend = series.map(({ label }, i) => legendLine(label, i, bottom));
  const body = [xAxis(scale, axis, "count", bottom), ...grid, ...lines, ...legend];
  return svg(title, bottom + 58 + series.length * 20, body);
}

function legendLine(label, i, bottom) {
  const below = bottom + 58 + i * 20;
  return [
    `<rect x="${LEFT}" y="${below - 10}" width="14" height="10" fill="${COLOURS[i % COLOURS.length]}"/>`,
    text(LEFT + 22, below, label),
  ].join("");
}

function escapeXml(words) {
  const entities = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  // Control characters are not allowed in XML, not even as entities.
  return String(words)
    .replace(/\p{Cc}/gu, " ")
    .replace(/[&<>"]/g, (character) => entities[character]);
}

const asSpread = (value) =>
  typeof value === "number" ? { median: value, low: value, high: value } : (value ?? {});
const isNumber = ({ median, low, high }) => [median, low, high].every(Number.isFinite);
const round = (number) => Math.round(number * 10) / 10;

function scaleFor(values, { fromZero }) {
  const smallest = Math.min(...values);
  const largest = Math.max(...values);
  const across = (share) => round(LEFT + Math.min(1, Math.max(0, share)) * PLOT);
  if (smallest > 0 && largest / smallest > WIDE) {
    const from = Math.floor(Math.log10(smallest * 0.999));
    const to = Math.ceil(Math.log10(largest));
    return {
      at: (value) => across((Math.log10(value) - from) / (to - from)),
      ticks: Array.from({ length: to - from + 1 }, (_, i) => 10 ** (from + i)),
      note: ", logarithmic",
    };
  }
  const low = values.length === 0 || fromZero ? Math.min(0, smallest) : smallest;
  // Room even where all are alike, or there are none.
  const high = Math.max(largest, low + Math.max(1e-6, Math.abs(low) * 1e-6));
  const step = niceStep((high - low) / 5);
  const from = Math.floor(low / step) * step;
  const to = Math.ceil(high / step) * step;
  return {
    at: (value) => across((value - from) / (to - from)),
    ticks: Array.from({ length: Math.round((to - from) / step) + 1 }, (_, i) => from + i * step),
    note: "",
  };
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((step) => step * power >= rough * 0.999);
}

/** So many points that nothing is lost to the eye, however many samples there are. */
function steps(sorted, points) {
  const every = Math.max(1, Math.floor(sorted.length / points));
  const at = [[sorted[0], 0]];
  for (let i = 0; i < sorted.length; i += every) at.push([sorted[i], (i + 1) / sorted.length]);
  return [...at, [sorted.at(-1), 1]];
}

function xAxis({ at, ticks, note }, label, unit, bottom) {
  const marks = ticks.map((tick) =>
    [
      line("grid", at(tick), TOP, at(tick), bottom),
      text(
        at(tick),
        bottom + 16,
        String(Number(tick.toPrecision(6))),
        'class="small" text-anchor="middle"',
      ),
    ].join(""),
  );
  const words = `${label}${["×", "index", "count"].includes(unit) ? "" : `, ${unit}`}${note}`;
  return [
    ...marks,
    line("axis", LEFT, bottom, LEFT + PLOT, bottom),
    text(LEFT + PLOT / 2, bottom + 34, words, 'class="small" text-anchor="middle"'),
  ].join("\n");
}

const text = (x, y, words, attributes = "") =>
  `<text x="${round(x)}" y="${round(y)}" ${attributes}>${escapeXml(words)}</text>`;
const line = (name, x1, y1, x2, y2) =>
  `<line class="${name}" x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}"/>`;

function svg(title, height, body) {
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" role="img">
<title>${escapeXml(title)}</title>
<style>${STYLE}
</style>
${text(16, 24, title, 'class="title"')}
${body.join("\n")}
</svg>
`;
}
