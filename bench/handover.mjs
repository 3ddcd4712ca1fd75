import { fork } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { connect } from "../dist/index.js";
import { formatMs, machineMs, quantile, table } from "./lib/measure.mjs";

const TIMES = 300;
const IDLE_MS = 5_000;

/** From the call of release in one process to the waiter running in another. Goal: p50 ≤ 5 ms, idle waiter < 1 % of a core. */
export async function run() {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-bench-"));
  const url = `sqlite:${join(folder, "locks.db")}`;
  const child = fork(fileURLToPath(import.meta.url), [url]);
  try {
    const locks = await connect(url);
    await once(child, "message");
    const samplesMs = [];
    for (let i = 0; i < TIMES; i++) {
      const lease = await locks.acquire("name", { wait: "10s" });
      child.send("wait");
      await theOtherWaits(locks);
      const releasedMs = machineMs();
      const granted = once(child, "message");
      await lease.release();
      const [{ atMs }] = await granted;
      samplesMs.push(atMs - releasedMs);
    }
    const lease = await locks.acquire("name", { wait: "10s" });
    child.send("wait");
    await theOtherWaits(locks);
    await new Promise((resolve) => setTimeout(resolve, IDLE_MS));
    child.send("cpu");
    const [{ cpuMs, elapsedMs }] = await once(child, "message");
    await lease.release();
    await locks.close();
    return `### SQLite: handover between two processes\n\n${table(
      ["", "p50", "p99", "max", "idle waiter's CPU"],
      [
        [
          "holdfast sqlite",
          formatMs(quantile(samplesMs, 0.5)),
          formatMs(quantile(samplesMs, 0.99)),
          formatMs(Math.max(...samplesMs)),
          `${((cpuMs / elapsedMs) * 100).toFixed(2)} % of a core`,
        ],
      ],
    )}`;
  } finally {
    child.kill();
    rmSync(folder, { recursive: true, force: true });
  }
}

async function theOtherWaits(locks) {
  while (((await locks.inspect("name"))?.waiters.length ?? 0) === 0) {
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

/** The waiting process. */
async function wait(url) {
  const locks = await connect(url);
  let mark;
  process.on("message", async (message) => {
    if (message === "cpu") {
      const { user, system } = process.cpuUsage(mark.cpu);
      process.send({ cpuMs: (user + system) / 1_000, elapsedMs: machineMs() - mark.atMs });
      return;
    }
    mark = { cpu: process.cpuUsage(), atMs: machineMs() };
    const lease = await locks.acquire("name", { wait: Number.POSITIVE_INFINITY });
    process.send({ atMs: machineMs() });
    await lease.release();
  });
  process.send("ready");
}

if (process.send && process.argv[2]?.startsWith("sqlite:")) await wait(process.argv[2]);
