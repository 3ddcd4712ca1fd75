import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { monitorEventLoopDelay } from "node:perf_hooks";
import { fileURLToPath } from "node:url";
import { connect } from "../dist/index.js";
import { formatMs, table } from "./lib/measure.mjs";

const LEASES = 10_000;
const TTL_MS = 10_000;
const WATCH_MS = 10_000;

/** 10,000 leases of 10 s kept alive. Goals: ≤ 600 bytes of heap each beyond the name, event loop blocked ≤ 10 ms. */
export async function run() {
  const rows = [];
  for (const store of ["memory", "sqlite"]) {
    const { stdout, stderr, status } = spawnSync(
      process.execPath,
      ["--expose-gc", fileURLToPath(import.meta.url), store],
      { encoding: "utf8" },
    );
    if (status !== 0) throw new Error(stderr);
    const { bytes, bytesWithSignal, cpu, blockMs, idleBlockMs, lost } = JSON.parse(stdout);
    rows.push([
      store,
      `${Math.round(bytes)} B`,
      `${Math.round(bytesWithSignal)} B`,
      `${(cpu * 100).toFixed(1)} %`,
      formatMs(blockMs),
      formatMs(idleBlockMs),
      lost,
    ]);
  }
  return `### 10,000 held leases of 10 s\n\n${table(
    [
      "store",
      "heap a lease beyond its name",
      "with its signal used",
      "watchdog's CPU",
      "longest block of the event loop",
      "the same when idle",
      "lost",
    ],
    rows,
  )}`;
}

function heap() {
  for (let i = 0; i < 4; i++) gc();
  return process.memoryUsage().heapUsed;
}

async function longestBlock(ms) {
  const delay = monitorEventLoopDelay({ resolution: 1 });
  delay.enable();
  await new Promise((resolve) => setTimeout(resolve, ms));
  delay.disable();
  return delay.max / 1e6;
}

async function hold(store) {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-bench-"));
  const url = store === "memory" ? "memory:" : `sqlite:${join(folder, "locks.db")}`;
  const locks = await connect(url, { ttl: TTL_MS });
  const names = Array.from({ length: LEASES }, (_, i) => Buffer.from(`name-${i}`).toString());
  const leases = new Array(LEASES).fill(null);
  // Warms up what is allocated once.
  for (const name of names) await (await locks.acquire(name)).release();
  const idleBlockMs = await longestBlock(2_000);
  const before = heap();
  for (let i = 0; i < LEASES; i++) {
    leases[i] = await locks.acquire(names[i]);
    if (i % 100 === 0) await new Promise((resolve) => setTimeout(resolve, 20));
  }
  const bytes = (heap() - before) / LEASES;
  // The first renewals of all leases are part of what is watched.
  const cpuBefore = process.cpuUsage();
  const fromMs = performance.now();
  const blockMs = await longestBlock(WATCH_MS);
  const { user, system } = process.cpuUsage(cpuBefore);
  const cpu = (user + system) / 1_000 / (performance.now() - fromMs);
  const lost = leases.filter((lease) => lease.state !== "held").length;
  const signals = leases.map((lease) => lease.signal);
  const bytesWithSignal = (heap() - before) / LEASES;
  process.stdout.write(
    JSON.stringify({
      bytes,
      bytesWithSignal,
      cpu,
      blockMs,
      idleBlockMs,
      lost,
      signals: signals.length,
    }),
  );
  await locks.close();
  rmSync(folder, { recursive: true, force: true });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await hold(process.argv[2]);
