import { InvalidArgumentError, LOSS_DETAIL } from "../core/errors.js";
import type { Events } from "../core/events.js";
import { checkNumber, checkOptions, orElse, show } from "../core/validate.js";
import { Listeners } from "./listeners.js";
import type { MetricName } from "./metric-table.js";

/** Which labels metrics have. */
export interface LabelOptions {
  /**
   * Maps the name of a lock to a group, which becomes the label `group`: `(name) => name.split(":")[0]`.
   * Without it, metrics have no label for names. A result that is no text counts as `other`.
   */
  names?: ((name: string) => string) | undefined;
  /** More groups than this become `other`. From 1 to 10,000. Default 50. */
  maxGroups?: number | undefined;
}

/** Labels of one series. Equal labels are the same object, so that a map finds their series at once. */
export type Labels = Readonly<Record<string, string>>;

/** Where measurements go. */
export interface Sink {
  /** Adds to a counter, or enters a value into a histogram. */
  record(metric: MetricName, labels: Labels, value: number): void;
}

const OTHER = "other";
const NONE: Labels = {};
/** A counter that begins with 1 has never increased for Prometheus: these begin with 0. */
const LOSS_REASONS = Object.keys(LOSS_DETAIL).filter((reason) => reason !== "released");
const PLAIN_COUNTERS = [
  "jeopardies",
  "recoveries",
  "handovers",
  "revocations",
  "unprotected_runs",
] as const;

/** The values that are measured under one set of labels. */
class Series {
  readonly labels: Labels;
  /** The pending acquires and the held leases by number, the oldest first, with their beginning. */
  readonly waiting = new Map<number, number>();
  readonly held = new Map<number, number>();
  readonly jeopardized = new Set<number>();
  /** The same labels with an outcome, or with a reason. */
  readonly outcome: (value: string) => Labels;
  readonly reason: (value: string) => Labels;

  constructor(labels: Labels) {
    this.labels = labels;
    this.outcome = remembered((outcome) => ({ ...labels, outcome }));
    this.reason = remembered((reason) => ({ ...labels, reason }));
  }
}

function remembered(make: (value: string) => Labels): (value: string) => Labels {
  const made = new Map<string, Labels>();
  return (value) => {
    let labels = made.get(value);
    if (labels === undefined) {
      labels = make(value);
      made.set(value, labels);
    }
    return labels;
  };
}

type Acquired = Pick<Events["asked"], "id" | "store" | "mode" | "name">;

/** Turns the events of this thread into measurements, until it is stopped. */
export class Measurement {
  readonly #sink: Sink;
  readonly #groupOf: ((name: string) => string) | undefined;
  readonly #maxGroups: number;
  readonly #groups = new Set<string>([OTHER]);
  readonly #series = new Map<string, Series>();
  /** By the number of an acquire, until its lease has ended: a name is mapped once. */
  readonly #byId = new Map<number, Series>();
  readonly #requests = new Map<string, Series>();
  readonly #listeners = new Listeners();

  constructor(sink: Sink, options: LabelOptions) {
    checkOptions(options, "the options", ["names", "maxGroups"]);
    const { names } = options;
    if (names !== undefined && typeof names !== "function") {
      throw new InvalidArgumentError(
        `names is ${show(names)}; it must be a function from a name to the name of its group`,
      );
    }
    this.#groupOf = names;
    this.#maxGroups = checkNumber(orElse(options.maxGroups, 50), "maxGroups", {
      min: 1,
      max: 10_000,
      integer: true,
    });
    this.#sink = sink;
    sink.record("stale_tokens", NONE, 0);
    this.#listenToLeases();
    this.#listeners.on("stale-token", () => sink.record("stale_tokens", NONE, 1));
    this.#listeners.on("stalled", ({ lateMs }) => sink.record("stall", NONE, lateMs / 1_000));
    this.#listeners.on("request", (event) => {
      sink.record("request", this.#requestLabels(event), event.ms / 1_000);
    });
  }

  /** Reads all gauges. */
  readGauges(read: (metric: MetricName, labels: Labels, value: number) => void): void {
    const nowMs = performance.now();
    const oldestOf = (since: ReadonlyMap<number, number>): number => {
      const [first] = since.values();
      return first === undefined ? 0 : (nowMs - first) / 1_000;
    };
    for (const { labels, waiting, held, jeopardized } of this.#series.values()) {
      read("waiters", labels, waiting.size);
      read("longest_wait", labels, oldestOf(waiting));
      read("held_leases", labels, held.size);
      read("longest_hold", labels, oldestOf(held));
      read("jeopardized_leases", labels, jeopardized.size);
    }
  }

  /** Ends the subscriptions. Gauges are gone: nobody would count them down. */
  stop(): void {
    this.#listeners.stop();
    this.#series.clear();
    this.#byId.clear();
  }

  #listenToLeases(): void {
    const sink = this.#sink;
    this.#listeners.on("asked", (event) => {
      const series = this.#find(event);
      this.#byId.set(event.id, series);
      series.waiting.set(event.id, performance.now());
    });
    this.#listeners.on("granted", (event) => {
      const series = this.#seriesOf(event);
      this.#byId.set(event.id, series);
      series.waiting.delete(event.id);
      series.held.set(event.id, performance.now());
      this.#ended(series, "granted", event.waitMs);
      if (event.handedOver) sink.record("handovers", series.labels, 1);
    });
    this.#listeners.on("not-granted", (event) => {
      const series = this.#seriesOf(event);
      this.#forget(event.id, series);
      this.#ended(series, event.reason, event.waitMs);
    });
    this.#listeners.on("renewed", (event) => {
      const series = this.#seriesOf(event);
      sink.record("renewals", series.outcome("renewed"), 1);
      sink.record("renewal_remaining", series.labels, event.remainingShare);
    });
    this.#listeners.on("renewal-failed", (event) => {
      sink.record("renewals", this.#seriesOf(event).outcome("failed"), 1);
    });
    this.#listeners.on("jeopardy", (event) => {
      const series = this.#seriesOf(event);
      sink.record("jeopardies", series.labels, 1);
      // A subscriber before this one may have ended the lease: its end was counted first then.
      if (series.held.has(event.id)) series.jeopardized.add(event.id);
    });
    this.#listeners.on("recovered", (event) => {
      const series = this.#seriesOf(event);
      sink.record("recoveries", series.labels, 1);
      series.jeopardized.delete(event.id);
    });
    this.#listeners.on("lost", (event) => {
      const series = this.#seriesOf(event);
      if (event.reason === "closed") this.#endInTime(event.id, series);
      this.#forget(event.id, series);
      sink.record("losses", series.reason(event.reason), 1);
      sink.record("hold", series.outcome("lost"), event.heldMs / 1_000);
    });
    this.#listeners.on("released", (event) => {
      const series = this.#seriesOf(event);
      this.#endInTime(event.id, series);
      this.#forget(event.id, series);
      sink.record("hold", series.outcome(event.outcome), event.heldMs / 1_000);
    });
    this.#listeners.on("revoked", (event) =>
      sink.record("revocations", this.#find(event).labels, 1),
    );
    this.#listeners.on("unprotected", (event) =>
      sink.record("unprotected_runs", this.#find(event).labels, 1),
    );
  }

  #ended(series: Series, outcome: string, waitMs: number): void {
    const labels = series.outcome(outcome);
    this.#sink.record("acquires", labels, 1);
    this.#sink.record("wait", labels, waitMs / 1_000);
  }

  /** The lease was good when its holder released it: a jeopardy that counts as lasting would raise an alert for nothing. */
  #endInTime(id: number, series: Series): void {
    if (series.jeopardized.has(id)) this.#sink.record("recoveries", series.labels, 1);
  }

  #forget(id: number, series: Series): void {
    this.#byId.delete(id);
    series.waiting.delete(id);
    series.held.delete(id);
    series.jeopardized.delete(id);
  }

  /** The acquire may have begun before this: then its first event that is seen finds the series. */
  #seriesOf(event: Acquired): Series {
    return this.#byId.get(event.id) ?? this.#find(event);
  }

  #find({ store, mode, name }: Omit<Acquired, "id">): Series {
    const group = this.#groupOf === undefined ? null : this.#boundedGroup(name);
    const key = group === null ? `${mode} ${store}` : `${mode} ${store}\n${group}`;
    let series = this.#series.get(key);
    if (series === undefined) {
      series = new Series(group === null ? { store, mode } : { store, mode, group });
      this.#series.set(key, series);
      for (const metric of PLAIN_COUNTERS) this.#sink.record(metric, series.labels, 0);
      for (const reason of LOSS_REASONS) {
        this.#sink.record("losses", series.reason(reason), 0);
      }
      for (const outcome of ["renewed", "failed"]) {
        this.#sink.record("renewals", series.outcome(outcome), 0);
      }
    }
    return series;
  }

  #boundedGroup(name: string): string {
    let group: unknown;
    try {
      group = this.#groupOf!(name);
    } catch {
      // Metrics must not end the process that they observe.
    }
    if (typeof group !== "string") return OTHER;
    if (this.#groups.has(group)) return group;
    // `other` itself is not counted.
    if (this.#groups.size > this.#maxGroups) return OTHER;
    this.#groups.add(group);
    return group;
  }

  #requestLabels({ store, command, outcome }: Events["request"]): Labels {
    const key = `${command} ${store}`;
    let series = this.#requests.get(key);
    if (series === undefined) {
      series = new Series({ store, command });
      this.#requests.set(key, series);
    }
    return series.outcome(outcome);
  }
}
