/** A metric under both names: `holdfast_wait_seconds` for Prometheus, `holdfast.wait` for OpenTelemetry. */
export interface Metric {
  readonly kind: "counter" | "histogram" | "gauge";
  /** The end of the name for Prometheus. */
  readonly unit: "seconds" | "ratio" | null;
  /** For OpenTelemetry, by UCUM: of a count, what is counted. */
  readonly ucum: string;
  readonly help: string;
  /** Whether a gauge may be added up over processes; of others, the highest counts. */
  readonly isSum: boolean;
}

const counter = (counted: string, help: string): Metric => {
  return { kind: "counter", unit: null, ucum: `{${counted}}`, help, isSum: true };
};
const histogram = (unit: "seconds" | "ratio", help: string): Metric => {
  return { kind: "histogram", unit, ucum: unit === "seconds" ? "s" : "1", help, isSum: true };
};
const count = (counted: string, help: string): Metric => {
  return { kind: "gauge", unit: null, ucum: `{${counted}}`, help, isSum: true };
};
const longest = (help: string): Metric => {
  return { kind: "gauge", unit: "seconds", ucum: "s", help, isSum: false };
};

/** Every metric. docs/metrics.md says the same, and a test compares them. */
export const METRICS = {
  acquires: counter("acquire", "Acquires that have ended, by outcome."),
  wait: histogram("seconds", "How long an acquire took, by outcome."),
  hold: histogram("seconds", "How long a lease was held, by its end."),
  renewals: counter("renewal", "Renewals of leases, by outcome."),
  renewal_remaining: histogram(
    "ratio",
    "What was left of a lease when it was renewed, as a share of its usable time.",
  ),
  jeopardies: counter("lease", "Leases whose renewals began to fail."),
  recoveries: counter("lease", "Leases that were renewed again after that, or given back in time."),
  losses: counter("lease", "Leases that were lost, by reason."),
  handovers: counter("grant", "Grants of which a waiter learned by a notification."),
  revocations: counter("lease", "Leases that this process has taken by force."),
  unprotected_runs: counter("run", "Runs of work without the lock, by onUnavailable: run."),
  stale_tokens: counter("token", "Tokens that a fence has refused."),
  request: histogram("seconds", "Round-trip time of a request to the store, by command."),
  stall: histogram("seconds", "How late the timer of leases and waiters fired, beyond 50 ms."),
  waiters: count("acquire", "Acquires of this process that are pending."),
  longest_wait: longest("How long the oldest pending acquire of this process has waited."),
  held_leases: count("lease", "Leases that this process holds."),
  longest_hold: longest("The age of the oldest lease that this process holds, and of its token."),
  jeopardized_leases: count("lease", "Leases of this process whose renewals fail now."),
} as const satisfies Record<string, Metric>;

/** The name of a metric, without prefix and unit. */
export type MetricName = keyof typeof METRICS;
export const METRIC_NAMES = Object.keys(METRICS) as readonly MetricName[];

/** The upper bounds of the buckets of a histogram. */
export const bucketsOf = (name: MetricName): readonly number[] =>
  METRICS[name].unit === "ratio" ? RATIO_BUCKETS : SECONDS_BUCKETS;

const SECONDS_BUCKETS = [
  0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800,
];
const RATIO_BUCKETS = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1];
