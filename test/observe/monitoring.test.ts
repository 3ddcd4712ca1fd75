import { execFileSync } from "node:child_process";
import { channel } from "node:diagnostics_channel";
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { LOSS_DETAIL } from "../../src/core/errors.js";
import { EVENT_NAMES, type EventName } from "../../src/core/events.js";
import { METRIC_NAMES, METRICS, type MetricName } from "../../src/observe/metric-table.js";
import { prometheusMetrics } from "../../src/observe/metrics.js";
import { POSTGRES_POLLED_TRAITS } from "../../src/stores/postgres/index.js";
import { traitsOfAllStores } from "../../src/stores/registry.js";
import { describeWith } from "../support/needs.js";
import { readSamples } from "./series.js";

const root = fileURLToPath(new URL("../..", import.meta.url));
const text = (path: string): string => readFileSync(`${root}${path}`, "utf8");
const ALERTS = text("monitoring/prometheus-alerts.yml");
const DASHBOARD = text("monitoring/grafana-dashboard.json");
const METRICS_PAGE = text("docs/metrics.md");

function prometheusName(name: MetricName): string {
  const { kind, unit } = METRICS[name];
  const base = unit === null ? `holdfast_${name}` : `holdfast_${name}_${unit}`;
  return kind === "counter" ? `${base}_total` : base;
}

describe("the documents", () => {
  test("list every kind of store that the label can name", () => {
    const traits = readdirSync(`${root}src/stores`, { recursive: true, encoding: "utf8" })
      .filter((path) => path.endsWith(".ts"))
      .flatMap((path) => [...text(`src/stores/${path}`).matchAll(/^ {2}store: "(.+)",$/gm)])
      .map(([, kind]) => kind!);
    expect(traits.length).toBeGreaterThan(8);
    const [, listed] = /the labels `store` \((.*?)\)/.exec(METRICS_PAGE)!;
    expect(listed!.split(", ").toSorted()).toEqual(traits.map((kind) => `\`${kind}\``).toSorted());
  });

  test("list every reason of a loss", () => {
    const row = METRICS_PAGE.split("\n").find((line) =>
      line.startsWith("| `holdfast_losses_total`"),
    )!;
    const listed = row
      .split("`reason`: ")[1]!
      .match(/`[a-z-]+`/g)!
      .map((one) => one.slice(1, -1));
    const reasons = Object.keys(LOSS_DETAIL).filter((reason) => reason !== "released");
    expect(listed.toSorted()).toEqual(reasons.toSorted());
  });

  test("list every metric, under both names, with its unit", () => {
    for (const name of METRIC_NAMES) {
      const { kind, ucum } = METRICS[name];
      const row = `| \`${prometheusName(name)}\` | \`holdfast.${name}\` | ${kind}, \`${ucum}\` |`;
      expect(METRICS_PAGE).toContain(row);
    }
  });

  test("list every event, its metric and its alert, all of which there are", () => {
    const page = text("docs/events.md");
    const alerts = [...ALERTS.matchAll(/- alert: (\w+)/g)].map(([, name]) => name!);
    const known = METRIC_NAMES.map(prometheusName);
    for (const event of EVENT_NAMES) {
      const row = page.split("\n").find((line) => line.startsWith(`| \`${event}\` |`));
      expect(row, event).toBeDefined();
      for (const [metric] of row!.matchAll(/holdfast_\w+/g)) expect(known, event).toContain(metric);
      for (const [alert] of row!.matchAll(/Holdfast[A-Z]\w+/g)) expect(alerts).toContain(alert);
    }
    for (const alert of alerts) expect(page).toContain(alert);
  });

  test("name the metrics that each event feeds, in its row", () => {
    const rows = text("docs/events.md").split("\n");
    const documented = (event: EventName): string[] => {
      const row = rows.find((line) => line.startsWith(`| \`${event}\` |`))!;
      return [...new Set(row.match(/holdfast_\w+/g) ?? [])].toSorted();
    };
    using metrics = prometheusMetrics();
    const lease = { id: 1, store: "memory", name: "a", mode: "exclusive", token: 1n, holder: "h" };
    const publish = (event: EventName, more: object = {}): void =>
      channel(`holdfast:${event}`).publish({ ...lease, ...more });
    // The series begin, with 0.
    publish("asked");
    publish("not-granted", { reason: "busy", waitMs: 1 });
    const values = (): Map<string, string> => {
      const samples = [...readSamples(metrics.text())];
      return new Map(
        METRIC_NAMES.map((name) => {
          const own = samples.filter(([sample]) => sample.startsWith(prometheusName(name)));
          return [prometheusName(name), JSON.stringify(own)];
        }),
      );
    };
    const fed = new Map<EventName, Set<string>>(EVENT_NAMES.map((event) => [event, new Set()]));
    const feed = (event: EventName, more?: object): void => {
      const before = values();
      publish(event, more);
      for (const [metric, now] of values()) {
        if (now !== before.get(metric)) fed.get(event)!.add(metric);
      }
    };
    feed("asked");
    feed("granted", { waitMs: 1, handedOver: true });
    feed("renewed", { remainingShare: 0.5 });
    feed("renewal-failed");
    feed("jeopardy");
    feed("recovered");
    publish("jeopardy");
    feed("released", { outcome: "unknown", heldMs: 1 });
    feed("not-granted", { reason: "busy", waitMs: 1 });
    publish("granted", { waitMs: 1 });
    publish("jeopardy");
    feed("lost", { reason: "closed", heldMs: 1 });
    feed("revoked");
    feed("unprotected");
    feed("stale-token");
    feed("request", { command: "claim", outcome: "replied", ms: 1 });
    feed("stalled", { lateMs: 1 });
    const gauges = METRIC_NAMES.filter((name) => METRICS[name].kind === "gauge");
    const isGauge = (metric: string): boolean =>
      gauges.map(prometheusName).includes(metric as never);
    for (const event of EVENT_NAMES) {
      const [named, seen] = [documented(event), fed.get(event)!];
      expect([...seen], event).toEqual(expect.arrayContaining(named));
      // The end of a wait or a lease lowers gauges: that needs no mention.
      expect(named, event).toEqual(
        expect.arrayContaining([...seen].filter((metric) => !isGauge(metric))),
      );
    }
    expect([...new Set(EVENT_NAMES.flatMap(documented))].toSorted()).toEqual(
      METRIC_NAMES.map(prometheusName).toSorted(),
    );
  });

  test("and monitoring/ are in the package", () => {
    const { files } = JSON.parse(text("package.json")) as { files: string[] };
    expect(files).toEqual(expect.arrayContaining(["docs", "monitoring", "examples"]));
  });

  test("have a section for every alert", () => {
    const runbooks = [...ALERTS.matchAll(/runbook_url: docs\/runbook\.md#([\w-]+)/g)];
    const headings = [...text("docs/runbook.md").matchAll(/^## (.*)$/gm)].map(([, one]) =>
      one!.toLowerCase().replaceAll(" ", "-"),
    );
    expect(runbooks).toHaveLength(ALERTS.split("- alert:").length - 1);
    for (const [, section] of runbooks) expect(headings).toContain(section);
  });
});

test("alerts and dashboard use no metric that does not exist, and the dashboard every one", () => {
  const known = METRIC_NAMES.map(prometheusName);
  const used = (one: string): Set<string> =>
    new Set(
      [...one.matchAll(/holdfast_\w+/g)].map(([name]) => name.replace(/_(bucket|count|sum)$/, "")),
    );
  for (const name of [...used(ALERTS), ...used(DASHBOARD)]) expect(known).toContain(name);
  expect([...used(DASHBOARD)].toSorted()).toEqual(known.toSorted());
});

test("the alert about notifications leaves out the stores that send none, and no others", async () => {
  const [, polled] = /alert: HoldfastHandoverSlow.*?store!~"(.*?)"/s.exec(ALERTS)!;
  const all = [...(await traitsOfAllStores()), POSTGRES_POLLED_TRAITS];
  const stores = all.filter(({ waiting }) => waiting === "polled").map(({ store }) => store);
  expect(polled!.split("|").toSorted()).toEqual([...new Set(stores)].toSorted());
});

test("every alert has a case in which it fires, and one in which it is silent", () => {
  const cases = text("test/observe/alerts.yml");
  for (const [, alert] of ALERTS.matchAll(/- alert: (\w+)/g)) {
    expect(cases).toMatch(new RegExp(`alertname: ${alert}\\s+exp_alerts:\\s+- exp_labels`));
    expect(cases).toMatch(new RegExp(`alertname: ${alert}, exp_alerts: \\[\\]`));
  }
});

describeWith(["prometheus"], "promtool", () => {
  test("accepts the alert rules, and sees each of them fire when it should", () => {
    const promtool = (...args: string[]): string =>
      execFileSync("promtool", args, { cwd: root, encoding: "utf8", stdio: "pipe" });
    expect(promtool("check", "rules", "monitoring/prometheus-alerts.yml")).toMatch(/SUCCESS/);
    expect(promtool("test", "rules", "test/observe/alerts.yml")).toMatch(/SUCCESS/);
  });
});
