// npm run bench [-- NAMES] [--quick] [--alone] [--json] [--against FOLDER]: docs/performance.md says what for.
import { spawnSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { againstBefore } from "./lib/against.mjs";
import { isInstalled } from "./lib/contestant.mjs";
import { run } from "./lib/measurement.mjs";
import { table } from "./lib/tables.mjs";

const BENCHMARKS = [
  "memory",
  "sqlite",
  "redis",
  "quorum",
  "postgres",
  "etcd",
  "zookeeper",
  "fences",
  "lockfree",
  "optimistic",
  "wake",
  "start",
];
const NO_FIGURES =
  "**A quick run: it shows that the benchmarks work. Its figures are no figures.**";

const { values: flags, positionals: asked } = parseArgs({
  allowPositionals: true,
  options: {
    quick: { type: "boolean", default: false },
    alone: { type: "boolean", default: false },
    json: { type: "boolean", default: false },
    against: { type: "string" },
  },
});

// Before the benchmarks are loaded, here and in their processes: they list the builds as contestants.
if (flags.against !== undefined) process.env.HOLDFAST_BENCH_AGAINST = resolve(flags.against);
const benchmarks = new Map();
for (const name of BENCHMARKS) {
  const file = new URL(`./${name}.mjs`, import.meta.url).href;
  const benchmark = await import(file);
  benchmarks.set(name, { file, benchmark: flags.against ? againstBefore(benchmark) : benchmark });
}
const chosen = choose();
if (!flags.quick && !flags.alone) install();

const here = fileURLToPath(new URL(".", import.meta.url));
// So that a smoke test does not overwrite what was measured.
const folder = `${here}results/${flags.quick ? "quick/" : ""}${flags.against ? "against/" : ""}`;
mkdirSync(folder, { recursive: true });
const machine = `Node ${process.version}, ${cpus().length} × ${cpus()[0].model.trim()}`;
const head = [machine, ...(flags.quick ? [NO_FIGURES] : [])].join("\n\n");
const print = (markdown) => flags.json || console.log(`${markdown}\n`);
const results = [];

print(head);
for (const [name, measurements] of chosen) {
  const { file, benchmark } = benchmarks.get(name);
  const sections = [];
  for (const measurement of measurements) {
    const id = idOf(measurement);
    const progress = (text) => console.error(`${name} ${id}: ${text}`);
    const result = await run(benchmark, file, measurement, {
      isQuick: flags.quick,
      isAlone: flags.alone,
      progress,
    }).catch((error) => failed(benchmark, id, error));
    results.push({ benchmark: name, ...result });
    sections.push(result.section);
    print(result.section);
    for (const [what, svg] of Object.entries(result.plots)) {
      writeFileSync(`${folder}${name}-${id}-${what}.svg`, svg);
    }
  }
  // A part of a benchmark leaves the file of the whole alone.
  const part =
    measurements.length === benchmark.measurements.filter(({ byName }) => !byName).length
      ? ""
      : `-${measurements.map(idOf).join("-")}`;
  writeFileSync(`${folder}${name}${part}.md`, `${[head, ...sections].join("\n\n")}\n`);
}

const summary = summarize();
print(summary);
writeFileSync(`${folder}summary.md`, `${head}\n\n${summary}\n`);
if (flags.json) {
  const kept = results.map(({ section, plots, ...rest }) => rest);
  console.log(JSON.stringify({ machine, quick: flags.quick, results: kept }, null, 2));
}
if (results.some(({ failures }) => failures.length > 0)) process.exitCode = 1;

/** NAMES: a benchmark (`sqlite`), else a kind or measurement in all of them (`handover`), or one of one (`sqlite/handover`). */
function choose() {
  const chosen = new Map();
  const matched = new Set();
  for (const [name, { benchmark }] of benchmarks) {
    const wanted = benchmark.measurements.filter((measurement) => {
      const id = idOf(measurement);
      const { kind, byName = false } = measurement;
      const own = [id, `${name}/${id}`];
      const names = byName ? own : [...own, kind, `${name}/${kind}`];
      const hits = asked.filter((one) =>
        benchmarks.has(one) ? one === name && !byName : names.includes(one),
      );
      for (const hit of hits) matched.add(hit);
      return hits.length > 0 || (asked.length === 0 && !byName);
    });
    if (wanted.length > 0) chosen.set(name, wanted);
  }
  const unknown = asked.filter((one) => !matched.has(one));
  if (unknown.length === 0) return chosen;
  const there = [...benchmarks].flatMap(([name, { benchmark }]) =>
    benchmark.measurements.map((measurement) => `${name}/${idOf(measurement)}`),
  );
  console.error(`no benchmark ${unknown.join(", ")}; there are: ${there.join(", ")}`);
  process.exit(64);
}

function idOf({ id, kind }) {
  return id ?? kind;
}

function install() {
  const needed = [...chosen.keys()].flatMap((name) =>
    benchmarks.get(name).benchmark.contestants.flatMap(({ needs = [] }) => needs),
  );
  if (needed.every(isInstalled)) return;
  console.error("installing the peers that are measured beside Holdfast …");
  const cwd = fileURLToPath(new URL(".", import.meta.url));
  const { status } = spawnSync("npm", ["ci"], { cwd, stdio: ["ignore", 2, 2] });
  if (status !== 0) process.exit(status ?? 1);
}

function failed({ title }, id, error) {
  return {
    id,
    figures: {},
    section: `### ${title}: ${id}\n\nNot measured: ${error.message.split("\n")[0]}`,
    plots: {},
    leftOut: [],
    failures: [{ name: "all", error: error.stack }],
    goals: [],
  };
}

function summarize() {
  const rows = results.flatMap(({ benchmark, id, goals }) =>
    goals.map(({ what, goal, measured, verdict }) => [
      `${benchmark}/${id}`,
      what,
      goal,
      measured,
      flags.quick ? "not judged" : verdict,
    ]),
  );
  const notMeasured = results
    .filter(({ failures }) => failures.length > 0)
    .map(({ benchmark, id, failures }) =>
      failures
        .map(({ name, error }) => `- ${benchmark}/${id}: ${name}: ${error.split("\n")[0]}`)
        .join("\n"),
    );
  return [
    "## Where the goals stand",
    rows.length === 0 ? "No goals here." : table(["", "figure", "goal", "measured", ""], rows),
    ...(notMeasured.length === 0 ? [] : [`Failed:\n${notMeasured.join("\n")}`]),
    ...(flags.quick ? [NO_FIGURES] : []),
  ].join("\n\n");
}
