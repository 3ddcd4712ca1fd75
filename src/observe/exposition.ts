import { InvalidArgumentError } from "../core/errors.js";
import { show } from "../core/validate.js";
import type { Labels } from "./measurement.js";
import { bucketsOf, METRICS, type MetricName } from "./metric-table.js";

/** The two formats that Prometheus reads. */
export type Format = "text" | "openmetrics";

export const CONTENT_TYPES: Record<Format, string> = {
  text: "text/plain; version=0.0.4; charset=utf-8",
  openmetrics: "application/openmetrics-text; version=1.0.0; charset=utf-8",
};

/** The format that the client prefers, by its `Accept` header; text, if it has none. */
export function negotiate(accept: string | null | undefined): Format {
  if (typeof (accept ?? "") !== "string") {
    throw new InvalidArgumentError(
      `accept is ${show(accept)}; it must be the Accept header of the request`,
    );
  }
  let openmetrics = 0;
  let text = 0;
  for (const range of (accept ?? "").toLowerCase().split(",")) {
    const [type, ...parameters] = range.split(";").map((part) => part.trim());
    const value = (key: string): string | undefined =>
      parameters.find((one) => one.startsWith(`${key}=`))?.slice(key.length + 1);
    const given = Number(value("q") ?? 1);
    const weight = Number.isFinite(given) ? given : 0;
    if (type === "application/openmetrics-text") {
      const isOurs = ["1.0.0", "0.0.1", undefined].includes(value("version"));
      if (isOurs) openmetrics = Math.max(openmetrics, weight);
    } else if (["text/plain", "text/*", "*/*"].includes(type!)) text = Math.max(text, weight);
  }
  return openmetrics > 0 && openmetrics >= text ? "openmetrics" : "text";
}

/** Counts of the values in each bucket, not cumulative; the last one is beyond all bounds. */
export class Histogram {
  readonly bounds: readonly number[];
  readonly counts: number[];
  sum = 0;

  constructor(metric: MetricName) {
    this.bounds = bucketsOf(metric);
    this.counts = new Array(this.bounds.length + 1).fill(0);
  }

  add(value: number): void {
    let at = 0;
    while (at < this.bounds.length && value > this.bounds[at]!) at++;
    this.counts[at]!++;
    this.sum += value;
  }
}

/** One metric with all its series. */
export function writeMetric(
  metric: MetricName,
  series: Iterable<readonly [Labels, number | Histogram]>,
  format: Format,
): string {
  const { kind, unit, help } = METRICS[metric];
  const name = unit === null ? `holdfast_${metric}` : `holdfast_${metric}_${unit}`;
  const sample = kind === "counter" ? `${name}_total` : name;
  // OpenMetrics names a family without the suffix of its samples, and tells its unit.
  const family = format === "openmetrics" ? name : sample;
  const lines = [`# HELP ${family} ${help}`, `# TYPE ${family} ${kind}`];
  if (format === "openmetrics" && unit !== null) lines.push(`# UNIT ${family} ${unit}`);
  for (const [labels, value] of series) {
    if (typeof value === "number") lines.push(`${sample}${braces(labels)} ${number(value)}`);
    else lines.push(...histogramLines(name, labels, value));
  }
  return `${lines.join("\n")}\n`;
}

function histogramLines(name: string, labels: Labels, histogram: Histogram): string[] {
  let count = 0;
  const buckets = histogram.counts.map((more, i) => {
    count += more;
    // OpenMetrics asks for "1.0"; the same text in both formats keeps it one series.
    const bound = histogram.bounds[i];
    const le = bound === undefined ? "+Inf" : Number.isInteger(bound) ? `${bound}.0` : `${bound}`;
    return `${name}_bucket${braces({ ...labels, le })} ${count}`;
  });
  const all = braces(labels);
  return [...buckets, `${name}_sum${all} ${number(histogram.sum)}`, `${name}_count${all} ${count}`];
}

function braces(labels: Labels): string {
  const entries = Object.entries(labels);
  if (entries.length === 0) return "";
  return `{${entries.map(([key, value]) => `${key}="${escaped(value)}"`).join(",")}}`;
}

/** Anybody may have chosen the text: a quote or a line break must not end the label. */
const escaped = (text: string): string =>
  text.toWellFormed().replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n");

/** At most nine digits behind the point: sums of seconds need no more. */
const number = (value: number): string => String(Math.round(value * 1e9) / 1e9);
