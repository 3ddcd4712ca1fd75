import { isInstalled, sortOut, TERMS } from "./contestant.mjs";
import { judge } from "./goals.mjs";
import { startProcess } from "./processes.mjs";
import { figureTable } from "./tables.mjs";

const KINDS = new URL("../kinds/", import.meta.url);

/** One entry of a benchmark's `measurements`, measured: its section, plots, figures and where its goals stand. */
export async function run(benchmark, file, measurement, { isQuick, isAlone, progress }) {
  const { kind: kindName, among, goals = [], byName: _, ...given } = measurement;
  const kindFile = new URL(`${kindName}.mjs`, KINDS).href;
  const kind = await import(kindFile);
  const options = { title: benchmark.title, ...kind.settings, ...given };
  if (isQuick) shorten(options, kind.quick);
  const wanted = among.map((name) => find(benchmark.contestants, name));
  const { present, leftOut } = sortOut(wanted, { isQuick, isAlone, has: isInstalled });
  const result =
    present.length === 0
      ? { figures: {}, failures: new Map() }
      : await measure(benchmark, file, { kind, kindFile, contestants: present, options, progress });
  const columns = kind.columns(options);
  const peers = present.filter(({ peer }) => peer).map(({ name }) => name);
  const failures = [...result.failures].map(([name, error]) => ({ name, error: firstLine(error) }));
  return {
    id: measurement.id ?? kindName,
    figures: result.figures,
    section: [
      `### ${options.title}: ${measurement.label ?? kindName}`,
      present.length === 0 ? "Nobody to measure." : figureTable(columns, result.figures),
      ...leftOut.map(({ name, why }) => `Left out: ${name} (${why}).`),
      ...failures.map(({ name, error }) => `Failed: ${name}: ${error}`),
    ].join("\n\n"),
    plots: present.length === 0 ? {} : kind.plots(result, options),
    leftOut,
    failures,
    goals: goals.map((goal) => judge(goal, { figures: result.figures, columns, peers })),
  };
}

async function measure(benchmark, file, { kind, kindFile, ...given }) {
  const { place, close, ...probes } = await benchmark.open();
  const start = (contestant, terms = TERMS) =>
    startProcess({ benchmark: file, kind: kindFile, contestant, place, terms, flags: kind.flags });
  try {
    return await kind.measure({ ...given, ...probes, place, start });
  } finally {
    await close();
  }
}

function shorten(options, quick) {
  for (const [key, value] of Object.entries(quick)) options[key] = Math.min(options[key], value);
}

const firstLine = (error) => String(error?.message ?? error).split("\n")[0];

function find(contestants, name) {
  const found = contestants.find((one) => one.name === name);
  if (found === undefined) throw new Error(`no contestant ${name}`);
  return found;
}
