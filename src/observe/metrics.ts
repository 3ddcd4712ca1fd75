import { CONTENT_TYPES, Histogram, negotiate, writeMetric } from "./exposition.js";
import { type LabelOptions, type Labels, Measurement, type Sink } from "./measurement.js";
import { METRIC_NAMES, METRICS, type MetricName } from "./metric-table.js";

export type { LabelOptions } from "./measurement.js";

/** The metrics of this thread since `prometheusMetrics()` was called. */
export interface PrometheusMetrics {
  /**
   * All metrics, for the body of your `/metrics` endpoint. With the request's `Accept` header, in
   * OpenMetrics if the client prefers it; otherwise in the text format of Prometheus. Throws
   * `InvalidArgumentError` for anything but a string.
   */
  text(accept?: string | null): string;
  /** The `Content-Type` of `text(accept)`. */
  contentType(accept?: string | null): string;
  /** Ends the subscriptions. Counters keep their values, gauges are gone. May be called again. */
  stop(): void;
  /** The same as `stop`. */
  [Symbol.dispose](): void;
}

/**
 * Counts the events of all `Locks` of this thread, for Prometheus. Call it once, before the first
 * lock. Throws `InvalidArgumentError` for a bad option. docs/metrics.md lists the metrics.
 *
 * @example
 * ```ts
 * import { createServer } from "node:http";
 * import { prometheusMetrics } from "holdfast/metrics";
 *
 * const metrics = prometheusMetrics({ names: (name) => name.split(":")[0]! });
 * createServer((request, response) => {
 *   const { accept } = request.headers;
 *   response.setHeader("Content-Type", metrics.contentType(accept));
 *   response.end(metrics.text(accept));
 * }).listen(9464);
 * ```
 */
export function prometheusMetrics(options: LabelOptions = {}): PrometheusMetrics {
  const registry = new Registry();
  const measurement = new Measurement(registry, options);
  const stop = (): void => measurement.stop();
  return {
    text(accept) {
      const gauges = new Registry();
      measurement.readGauges((metric, labels, value) => gauges.record(metric, labels, value));
      const format = negotiate(accept);
      const metrics = METRIC_NAMES.map((name) => {
        const { of } = METRICS[name].kind === "gauge" ? gauges : registry;
        return writeMetric(name, of[name], format);
      });
      return format === "openmetrics" ? `${metrics.join("")}# EOF\n` : metrics.join("");
    },
    contentType: (accept) => CONTENT_TYPES[negotiate(accept)],
    stop,
    [Symbol.dispose]: stop,
  };
}

type Values = Map<Labels, number | Histogram>;

/** The value of each series. Equal labels are one object. */
class Registry implements Sink {
  readonly of = Object.fromEntries(METRIC_NAMES.map((name) => [name, new Map()])) as Record<
    MetricName,
    Values
  >;

  record(metric: MetricName, labels: Labels, value: number): void {
    const series = this.of[metric];
    const before = series.get(labels);
    if (METRICS[metric].kind !== "histogram") {
      series.set(labels, ((before as number | undefined) ?? 0) + value);
    } else if (before === undefined) {
      const histogram = new Histogram(metric);
      histogram.add(value);
      series.set(labels, histogram);
    } else (before as Histogram).add(value);
  }
}
