import {
  type Attributes,
  type MeterProvider,
  metrics,
  type Observable,
  type TracerProvider,
  trace,
} from "@opentelemetry/api";
import { InvalidArgumentError } from "../core/errors.js";
import { checkOptions, show } from "../core/validate.js";
import { type LabelOptions, type Labels, Measurement } from "./measurement.js";
import { bucketsOf, METRIC_NAMES, METRICS, type MetricName } from "./metric-table.js";
import { Spans } from "./spans.js";

export type { LabelOptions } from "./measurement.js";

/** Options of `instrument`. */
export interface InstrumentOptions extends LabelOptions {
  /** Gets the metrics. Default: the global one. */
  meterProvider?: MeterProvider | undefined;
  /** Gets the spans. Default: the global one. */
  tracerProvider?: TracerProvider | undefined;
}

/** Ends what `instrument` began. */
export interface Instrumentation {
  /** Ends the subscriptions and the spans that are open. May be called again. */
  stop(): void;
  /** The same as `stop`. */
  [Symbol.dispose](): void;
}

const SCOPE = "holdfast";

/**
 * Metrics and spans of all `Locks` of this thread, for OpenTelemetry. Call it once, after your SDK
 * has set its providers and before the first lock. Needs the package `@opentelemetry/api`. Throws
 * `InvalidArgumentError` for a bad option. docs/metrics.md lists metrics and spans.
 *
 * @example
 * const instrumentation = instrument({ names: (name) => name.split(":")[0]! });
 */
export function instrument(options: InstrumentOptions = {}): Instrumentation {
  checkOptions(options, "the options of instrument", [
    "meterProvider",
    "tracerProvider",
    "names",
    "maxGroups",
  ]);
  const { meterProvider, tracerProvider, ...labels } = options;
  checkProvider(meterProvider, "meterProvider", "getMeter");
  checkProvider(tracerProvider, "tracerProvider", "getTracer");
  const endMetrics = measureInto(meterProvider ?? metrics.getMeterProvider(), labels);
  const spans = new Spans((tracerProvider ?? trace.getTracerProvider()).getTracer(SCOPE));
  const stop = (): void => {
    endMetrics();
    spans.stop();
  };
  return { stop, [Symbol.dispose]: stop };
}

function checkProvider(provider: object | undefined, option: string, method: string): void {
  if (provider === undefined || typeof Reflect.get(Object(provider), method) === "function") return;
  throw new InvalidArgumentError(
    `${option} is ${show(provider)}; it must be a provider of OpenTelemetry, with ${method}()`,
  );
}

/** Returns a function that ends it. */
function measureInto(provider: MeterProvider, options: LabelOptions): () => void {
  const meter = provider.getMeter(SCOPE);
  const attributesOf = rememberedAttributes();
  const record = new Map<MetricName, (value: number, attributes: Attributes) => void>();
  const gauges = new Map<MetricName, Observable>();
  for (const name of METRIC_NAMES) {
    const { kind, ucum, help, isSum } = METRICS[name];
    const id = `${SCOPE}.${name}`;
    const about = { description: help, unit: ucum };
    if (kind === "counter") {
      const counter = meter.createCounter(id, about);
      record.set(name, (value, attributes) => counter.add(value, attributes));
    } else if (kind === "histogram") {
      const advice = { explicitBucketBoundaries: [...bucketsOf(name)] };
      const histogram = meter.createHistogram(id, { ...about, advice });
      record.set(name, (value, attributes) => histogram.record(value, attributes));
    } else if (isSum) gauges.set(name, meter.createObservableUpDownCounter(id, about));
    else gauges.set(name, meter.createObservableGauge(id, about));
  }
  const measurement = new Measurement(
    { record: (name, labels, value) => record.get(name)!(value, attributesOf(labels)) },
    options,
  );
  const observables = [...gauges.values()];
  const observe: Parameters<typeof meter.addBatchObservableCallback>[0] = (result) => {
    measurement.readGauges((name, labels, value) => {
      result.observe(gauges.get(name)!, value, attributesOf(labels));
    });
  };
  meter.addBatchObservableCallback(observe, observables);
  return () => {
    meter.removeBatchObservableCallback(observe, observables);
    measurement.stop();
  };
}

/** Labels under OpenTelemetry's naming: `holdfast.store` for `store`. */
function rememberedAttributes(): (labels: Labels) => Attributes {
  const made = new WeakMap<Labels, Attributes>();
  return (labels) => {
    let attributes = made.get(labels);
    if (attributes === undefined) {
      const entries = Object.entries(labels).map(([key, value]) => [`${SCOPE}.${key}`, value]);
      attributes = Object.fromEntries(entries) as Attributes;
      made.set(labels, attributes);
    }
    return attributes;
  };
}
