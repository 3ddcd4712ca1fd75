/**
 * Writes docs/guarantees.md, and its summary in README.md, from results of the verifier:
 *
 *   for lab in sqlite redis redis-replica redis-cluster redlock postgres postgres-session postgres-standby pgbouncer etcd etcd-cluster \
 *       zookeeper zookeeper-cluster; do
 *     npx holdfast verify --lab $lab --for 1h --json > results/$lab.json
 *   done
 *   for fence in sqlite redis postgres etcd zookeeper; do
 *     npx holdfast verify --lab redis-replica --fence $fence --seed 1 --for 10m --json > results/fence-$fence.json
 *   done
 *   node scripts/guarantees.mjs results/*.json
 *
 * Stores without a result keep the row and the section that they have, and so does the table of fences. Without
 * any result, only the words around them are written anew.
 */
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const ORDER = [
  "sqlite",
  "redis",
  "redis-replica",
  "redis-cluster",
  "redlock",
  "postgres",
  "postgres-session",
  "postgres-standby",
  "pgbouncer",
  "etcd",
  "etcd-cluster",
  "zookeeper",
  "zookeeper-cluster",
];
const MARKS = [
  "<!-- guarantees: written by scripts/guarantees.mjs -->",
  "<!-- end of guarantees -->",
];

/** A run with `--fence` says something about that fence; its store has runs of its own. */
const isOfFence = ({ command }) => / --fence /.test(command);

const count = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, ",");
const minutes = (ms) =>
  ms < 90_000 ? `${Math.round(ms / 1_000)} s` : `${Math.round(ms / 60_000)} min`;

/** The promises that two holders do not overlap: as holders alone, and as holders of permits. */
const OVERLAPS = ["S1", "S8"];

/** How often a kind of fault was made, and how often these promises were broken in runs with it. */
function seen({ runs }, name) {
  const isStrike = ({ kind, failed }) => kind === name && failed === undefined;
  const struck = runs.filter(({ faults }) => faults.some(isStrike));
  const times = struck.flatMap(({ faults }) => faults).filter(isStrike).length;
  const broken = (rules) =>
    rules.reduce(
      (sum, rule) => sum + struck.reduce((of, { expected }) => of + (expected[rule] ?? 0), 0),
      0,
    );
  return { times, broken };
}

function cell(result, { name, breaks }) {
  const { times, broken } = seen(result, name);
  if (times === 0) return "not drawn";
  const others = breaks.filter((rule) => !OVERLAPS.includes(rule));
  const named = others.map((rule) => {
    const often = broken([rule]);
    return often === 0 ? rule : `${rule} (${count(often)})`;
  });
  return [
    overlapWords(broken(OVERLAPS), breaks),
    ...(named.length === 0 ? [] : [`not promised: ${named.join(", ")}`]),
  ].join("; ");
}

function overlapWords(overlaps, breaks) {
  if (!breaks.some((rule) => OVERLAPS.includes(rule))) return "held";
  return overlaps > 0 ? `overlap, fenced (${count(overlaps)})` : "overlap possible, none seen";
}

/** A promise that no run put to the test is named: it neither held nor broke. So is one that the store does not give. */
const heldOf = ({ checks, notOffered }) => {
  const unseen = checks.filter(({ verdict }) => verdict === "unknown").map(({ id }) => id);
  const untested = unseen.filter((id) => !notOffered.includes(id));
  return [
    untested.length === 0 ? "all held" : `held; not seen: ${untested.join(", ")}`,
    ...(notOffered.length === 0 ? [] : [`not offered: ${notOffered.join(", ")}`]),
  ].join("; ");
};
/** A number, and how many these are in a minute of the run. */
const withRate = (times, { lastedMs }) =>
  `${count(times)} (${count(Math.round((times * 60_000) / lastedMs))})`;
const overlapsOf = ({ checks }) =>
  checks.filter(({ id }) => OVERLAPS.includes(id)).reduce((sum, { expected }) => sum + expected, 0);
const versionsOf = ({ versions }) =>
  Object.entries(versions)
    .map(([name, version]) => `${name} ${version}`)
    .join(", ");

const rowOf = (one) =>
  `| ${one.about} | ${minutes(one.lastedMs)} | ${withRate(one.operations, one)} | ${count(one.grants)} | ${withRate(one.faults, one)} | ${heldOf(one)} | ${count(overlapsOf(one))} | ${count(one.fenced.lost)} |`;
const headingOf = (about) => `${about.charAt(0).toUpperCase()}${about.slice(1)}`;

function sectionOf(result) {
  const kinds = result.kinds.map((kind) => {
    const { times } = seen(result, kind.name);
    return `| ${kind.name} | ${kind.hits} | ${count(times)} | ${cell(result, kind)} | ${kind.because} |`;
  });
  return [
    `## ${headingOf(result.about)}`,
    "",
    `${versionsOf(result)}; ${result.startedAt.slice(0, 10)}; \`${result.command}\`; ${count(result.runs.length)} runs.`,
    "",
    "| fault | hits | times | result | not promised, because |",
    "|---|---|---|---|---|",
    ...kinds,
  ].join("\n");
}

const FENCES = {
  sqlite: "SQLite",
  redis: "Redis",
  postgres: "PostgreSQL",
  etcd: "etcd",
  zookeeper: "ZooKeeper",
};
const FENCE_HEADING = "## Fences";

/** The registers of these runs: behind this fence, and without one. */
function registersOf(runs) {
  const sum = (register, figure) =>
    runs.reduce((total, { registers }) => total + registers[register][figure], 0);
  const lost = (register) => `${count(sum(register, "lost"))} of ${count(sum(register, "writes"))}`;
  // A fence that had nothing to refuse has shown nothing.
  const shows = sum("unfenced", "lost") === 0 ? ": shows nothing" : "";
  return `${lost("fenced")}, ${count(sum("fenced", "refused"))} refused (no fence ${lost("unfenced")}${shows})`;
}

const isSectionOf = (heading) => (text) => text.split("\n")[0] === heading;

function fenceSection(fenceResults, sections) {
  const kept = sections.find(isSectionOf(FENCE_HEADING));
  const keptStore = kept && /^Locks in (.*?); no fault hits/m.exec(kept)[1];
  const tables =
    fenceResults.length === 0 ? kept?.slice(kept.indexOf("\n- ") + 1) : fenceTables(fenceResults);
  if (tables === undefined) return undefined;
  return [
    FENCE_HEADING,
    `Locks in ${fenceResults[0]?.about ?? keptStore}; no fault hits the register and its fence, which are in a file of SQLite or on a server of their own. A cell counts the updates that were lost, of all writes, and the accesses that the fence refused, in the runs with this fault; *no fence* is the register without one, in the same runs. Faults in one row struck in the same runs. Where no update was lost without a fence, a run shows nothing about the fence. The other fences have no register here: processes can't share memory, a service behind HTTP uses a fence of its own, and files, objects, guardRow and guardTxn are tested with paused processes only.`,
    tables,
  ].join("\n\n");
}

/** Fault × fence: lost updates of all writes, and refused accesses, in the runs with that fault. */
function fenceTables(fenceResults) {
  const names = Object.keys(FENCES).filter((name) =>
    fenceResults.some(({ fence }) => fence === name),
  );
  const results = names.map((name) => fenceResults.find(({ fence }) => fence === name));
  const rowOf = (label, runsOf) => {
    const cells = results.map(({ runs }, i) => {
      const those = runsOf(i, runs);
      return those.length === 0 ? "not drawn" : registersOf(those);
    });
    return `| ${[label, ...cells].join(" | ")} |`;
  };
  return [
    ...results.map(
      ({ fence, command, startedAt, lastedMs, runs }) =>
        `- ${FENCES[fence]}: \`${command}\`; ${startedAt.slice(0, 10)}, ${minutes(lastedMs)}, ${count(runs.length)} runs`,
    ),
    "",
    `| fault | ${names.map((name) => FENCES[name]).join(" | ")} |`,
    `|${"---|".repeat(names.length + 1)}`,
    ...faultsBySameRuns(results).map(({ faults, numbers }) =>
      rowOf(faults.join(", "), (i, runs) =>
        runs.filter((_, number) => numbers[i].includes(number)),
      ),
    ),
    rowOf("all runs", (_, runs) => runs),
  ].join("\n");
}

/** The faults that struck, those of the same runs together, with the numbers of these runs in each result. */
function faultsBySameRuns(results) {
  const struckIn = ({ faults }) =>
    faults.filter(({ failed }) => failed === undefined).map(({ kind }) => kind);
  const all = new Set(results.flatMap(({ runs }) => runs.flatMap(struckIn)));
  const groups = new Map();
  for (const fault of [...all].sort()) {
    const numbers = results.map(({ runs }) =>
      runs.flatMap((run, number) => (struckIn(run).includes(fault) ? [number] : [])),
    );
    const key = JSON.stringify(numbers);
    const group = groups.get(key) ?? { faults: [], numbers };
    group.faults.push(fault);
    groups.set(key, group);
  }
  return [...groups.values()];
}

/** Each store of the page, with its row and its section, in the page's order. */
function presentStores(head, sections) {
  const rows = head.split("\n").filter((line) => /^\| .* (min|s) \|/.test(line));
  return rows.map((row) => {
    const about = row.split(" | ")[0].slice(2);
    return { about, row, section: sections.find(isSectionOf(`## ${headingOf(about)}`)) };
  });
}

const INTRODUCTION = `# Guarantees, as they were verified

This page is written by \`scripts/guarantees.mjs\` from runs of [\`holdfast verify\`](verify.md#holdfast-verify). Run it yourself, on your own machine and your own store: the command is below each heading. A run may have ended before the time in its command: the first table has the time that it took.

- **held**: every promise of [the table](verify.md#the-promises) held under this fault.
- **overlap, fenced (n)**: the store does not promise exclusion under this fault; in runs with it, holders overlapped n times: two believed that they held a name alone, or more permits were held than there are. The register behind a [fence](fences.md) lost no update.
- **overlap possible, none seen**: the same, and it did not happen in these runs.
- **not promised: L1 (3), L2**: the store does not give these promises under this fault; in runs with it, L1 was broken three times, L2 never. All other promises held.
- **held, order not promised**: first come, first served (L4) is not promised under this fault; the rest held.
- **not drawn**: the fault did not strike in these runs, so they say nothing about it.
- **not seen: P4**: nothing in these runs put the promise P4 to the test.
- **not offered: L4**: the store refuses what the promise L4 is about, or does not give this promise at all.

Several faults are active at the same time in most runs, so a row shows the fault together with others, not alone. Up to eight labs ran side by side on two cores, so operations and faults per minute say more about the machine than about the store.`;

/** The page and the README with these results. */
export function withResults(all, { page, readme }) {
  for (const { target, outcome, notOffered } of all) {
    // Without it, a promise that the store does not give would pass for one that was not tested.
    if (notOffered === undefined)
      throw new Error(`${target}: an older verifier wrote this result; verify again`);
    if (outcome === "violated")
      throw new Error(`${target}: a promise was broken; nothing is written`);
  }
  const sorted = all.toSorted((a, b) => ORDER.indexOf(a.target) - ORDER.indexOf(b.target));
  const [head, ...sections] = page.trimEnd().split(/\n\n(?=## )/);
  const stores = presentStores(head, sections);
  for (const result of sorted.filter((one) => !isOfFence(one))) {
    const store = { about: result.about, row: rowOf(result), section: sectionOf(result) };
    const at = stores.findIndex(({ about }) => about === result.about);
    if (at === -1) stores.push(store);
    else stores[at] = store;
  }
  const summary = [
    "| store | time | operations (a minute) | grants | faults (a minute) | promises | overlaps where not promised | lost updates behind the fence |",
    "|---|---|---|---|---|---|---|---|",
    ...stores.map(({ row }) => row),
  ].join("\n");
  const fences = fenceSection(sorted.filter(isOfFence), sections);
  const parts = [INTRODUCTION, summary, fences, ...stores.map(({ section }) => section)];
  const [before, rest] = readme.split(MARKS[0]);
  const [, after] = rest.split(MARKS[1]);
  return {
    page: `${parts.filter(Boolean).join("\n\n")}\n`,
    readme: `${before}${MARKS[0]}\n${summary}\n${MARKS[1]}${after}`,
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const files = { page: "../docs/guarantees.md", readme: "../README.md" };
  const paths = Object.entries(files).map(([name, file]) => [
    name,
    fileURLToPath(new URL(file, import.meta.url)),
  ]);
  const present = paths.map(([name, path]) => [name, readFileSync(path, "utf8")]);
  const results = process.argv.slice(2).map((file) => JSON.parse(readFileSync(file, "utf8")));
  const written = withResults(results, Object.fromEntries(present));
  for (const [name, path] of paths) writeFileSync(path, written[name]);
}
