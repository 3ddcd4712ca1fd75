import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";
import { freePort } from "../../src/verify/lab/ports.js";
import { describeWith } from "../support/needs.js";

const root = fileURLToPath(new URL("../..", import.meta.url));
const PATIENCE_MS = 60_000;

interface Panel {
  title: string;
  targets: { expr: string }[];
}
const dashboard = JSON.parse(
  readFileSync(join(root, "monitoring/grafana-dashboard.json"), "utf8"),
) as {
  panels: Panel[];
  templating: { list: { name: string; query: string | { query: string } }[] };
};
const queries = dashboard.panels.flatMap(({ title, targets }) =>
  targets.map(({ expr }) => ({
    title,
    // As Grafana replaces them.
    query: expr
      .replaceAll("$job", ".*")
      .replaceAll("$group", ".*")
      .replaceAll("$__rate_interval", "10s"),
  })),
);
/** The variables that Grafana fills from Prometheus. */
const variables = dashboard.templating.list.flatMap(({ name, query }) =>
  typeof query === "string" ? [] : [{ name, query: query.query }],
);

describeWith(["prometheus"], "a real Prometheus that scrapes examples/metrics.mjs", () => {
  let folder: string;
  let example: ChildProcess;
  let prometheus: ChildProcess;
  let api: string;

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), "holdfast-prometheus-"));
    example = spawn(process.execPath, [join(root, "examples/metrics.mjs")], {
      env: { ...process.env, PORT: "0" },
      stdio: ["ignore", "pipe", "inherit"],
    });
    const target = await new Promise<string>((resolve) => {
      example.stdout!.once("data", (line) => resolve(/127\.0\.0\.1:\d+/.exec(String(line))![0]));
    });
    const port = await freePort();
    api = `http://127.0.0.1:${port}/api/v1`;
    writeFileSync(
      join(folder, "prometheus.yml"),
      JSON.stringify({
        global: { scrape_interval: "1s", evaluation_interval: "1s" },
        rule_files: [join(root, "monitoring/prometheus-alerts.yml")],
        scrape_configs: [{ job_name: "example", static_configs: [{ targets: [target] }] }],
      }),
    );
    prometheus = spawn(
      "prometheus",
      [
        `--config.file=${join(folder, "prometheus.yml")}`,
        `--storage.tsdb.path=${join(folder, "data")}`,
        `--web.listen-address=127.0.0.1:${port}`,
      ],
      { stdio: "ignore" },
    );
    await until("Prometheus replies", async () => (await get("/status/buildinfo")) !== null);
  });
  afterAll(async () => {
    await Promise.all([prometheus, example].map(end));
    rmSync(folder, { recursive: true, force: true });
  });

  /** The data of a reply; null if there is none. */
  async function get<T>(path: string): Promise<T | null> {
    try {
      const reply = await fetch(`${api}${path}`);
      return ((await reply.json()) as { data: T }).data;
    } catch {
      return null;
    }
  }

  const ask = async (query: string): Promise<{ value: [number, string] }[]> => {
    const data = await get<{ result: { value: [number, string] }[] }>(
      `/query?query=${encodeURIComponent(query)}`,
    );
    return data?.result ?? [];
  };

  test("the scrape succeeds, in OpenMetrics", async () => {
    await until("it is scraped", async () => (await ask("up == 1")).length === 1);
    const targets = await get<{ activeTargets: { lastError: string }[] }>("/targets");
    expect(targets!.activeTargets.map(({ lastError }) => lastError)).toEqual([""]);
    // In the text format, the name of the family would end in _total.
    type Family = { type: string; unit: string };
    const family = (name: string): Promise<Family[] | null> =>
      get<Family[]>(`/targets/metadata?metric=${name}`);
    expect(await family("holdfast_acquires")).toMatchObject([{ type: "counter" }]);
    expect(await family("holdfast_wait_seconds")).toMatchObject([
      { type: "histogram", unit: "seconds" },
    ]);
  });

  test.each(queries)("the dashboard's $title has data: $query", async ({ query }) => {
    await until(query, async () => {
      if (query.includes("stall")) await stall();
      return (await ask(query)).some(({ value: [, value] }) => value !== "NaN");
    });
  });

  test.each(variables)("the dashboard's variable $name has values: $query", async (variable) => {
    // Grafana makes one request of this function.
    const [, series, label] = /^label_values\((\w+), (\w+)\)$/.exec(variable.query)!;
    const path = `/label/${label}/values?match[]=${encodeURIComponent(series!)}`;
    const expected: Record<string, string> = { job: "example", group: "order" };
    await until(path, async () => (await get<string[]>(path))?.includes(expected[variable.name]!));
  });

  test("every alert rule is evaluated without an error", async () => {
    type Rules = { groups: { rules: { name: string; health: string; lastError?: string }[] }[] };
    const rules = await until("the rules are evaluated", async () => {
      const all = (await get<Rules>("/rules"))!.groups.flatMap((group) => group.rules);
      return all.length > 0 && all.every(({ health }) => health !== "unknown") && all;
    });
    expect(rules.map(({ health, lastError = "" }) => health + lastError)).toEqual(
      rules.map(() => "ok"),
    );
  });

  /** Stops the example for a moment: its timers are late. */
  async function stall(): Promise<void> {
    example.kill("SIGSTOP");
    await sleep(500);
    example.kill("SIGCONT");
    await sleep(1_000);
  }
});

async function end(child: ChildProcess | undefined): Promise<void> {
  if (child === undefined || child.exitCode !== null) return;
  const exited = new Promise((resolve) => child.once("exit", resolve));
  child.kill("SIGCONT");
  child.kill("SIGTERM");
  const killing = setTimeout(() => child.kill("SIGKILL"), 10_000);
  await exited;
  clearTimeout(killing);
}

async function until<T>(what: string, condition: () => Promise<T | false | undefined>): Promise<T> {
  const untilMs = performance.now() + PATIENCE_MS;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (performance.now() > untilMs) throw new Error(`gave up waiting until ${what}`);
    await sleep(100);
  }
}
