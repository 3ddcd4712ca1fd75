import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { quantile, table } from "./lib/measure.mjs";

const ROUNDS = 15;

/** What starting costs, on top of Node's own start. Goals: import a few ms, `holdfast run` < 150 ms. */
export async function run() {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-bench-"));
  const root = fileURLToPath(new URL("..", import.meta.url));
  const store = `sqlite:${join(folder, "locks.db")}`;
  const ways = {
    "node alone": ["--input-type=module", "-e", "0"],
    'import "holdfast"': ["--input-type=module", "-e", 'await import("holdfast")'],
    "holdfast run x -- true": ["dist/cli/main.js", "run", "x", "--store", store, "--", "true"],
  };
  const samples = Object.fromEntries(Object.keys(ways).map((name) => [name, []]));
  for (let round = 0; round < ROUNDS; round++) {
    for (const [name, args] of Object.entries(ways)) {
      const fromMs = performance.now();
      const { status } = spawnSync(process.execPath, args, { cwd: root, stdio: "ignore" });
      if (status !== 0) throw new Error(`${name} ended with ${status}`);
      samples[name].push(performance.now() - fromMs);
    }
  }
  rmSync(folder, { recursive: true, force: true });
  const base = quantile(samples["node alone"], 0.5);
  const rows = Object.entries(samples).map(([name, ms]) => {
    const median = quantile(ms, 0.5);
    return [name, `${median.toFixed(0)} ms`, `${(median - base).toFixed(0)} ms`];
  });
  return `### Starting\n\n${table(["", "p50", "on top of Node"], rows)}`;
}
